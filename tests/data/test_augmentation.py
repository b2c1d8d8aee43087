import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import functional as TF

from gd_ray.data.augmentation import TrainingBatches, augment, normalize
from gd_ray.data.pixels import Statistics
from tests.helpers.batches import sample_augmentation, shuffled_batches


@pytest.fixture(scope="module")
def photos():
    """Smooth random pictures with all kinds of brightness."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (64, 4, 4, 3), dtype=np.uint8)
    fine = np.stack([np.asarray(Image.fromarray(c).resize((32, 32), Image.Resampling.BICUBIC)) for c in coarse])
    return torch.from_numpy(fine)


@pytest.mark.parametrize("side", [32, 64])
def test_augmentation_is_torchvisions_pixel_for_pixel(photos, side):
    if side == 64:
        photos = photos.repeat(1, 2, 2, 1)
    padding = side // 8
    draw = sample_augmentation(len(photos), photos.shape[1], torch.Generator().manual_seed(5))
    found = augment(photos, draw).to(torch.uint8).numpy()
    for i, picture in enumerate(photos.numpy()):
        image = Image.fromarray(picture)
        steps = [(TF.adjust_brightness, draw.brightness[i].item()), (TF.adjust_contrast, draw.contrast[i].item())]
        for step, factor in steps if draw.brightness_first[i] else reversed(steps):
            image = step(image, factor)
        padded = TF.pad(image, padding)
        image = TF.crop(padded, int(draw.top[i]), int(draw.left[i]), side, side)
        if draw.flip[i]:
            image = TF.hflip(image)
        np.testing.assert_array_equal(found[i], np.asarray(image))


def test_draws_have_torchvisions_distributions():
    draw = sample_augmentation(20_000, 32, torch.Generator().manual_seed(0))
    jitter = transforms.ColorJitter(brightness=63 / 255, contrast=0.8)
    for values, (low, high) in ((draw.brightness, jitter.brightness), (draw.contrast, jitter.contrast)):
        assert low <= values.min() < low + 0.01
        assert high - 0.01 < values.max() <= high
        assert values.mean().item() == pytest.approx(1, abs=0.01)
    for values in (draw.top, draw.left):
        assert torch.bincount(values, minlength=9).min() > 2000  # 20,000 / 9 is 2222
        assert values.max() == 8
    for values in (draw.flip, draw.brightness_first):
        assert values.float().mean().item() == pytest.approx(0.5, abs=0.02)
    columns = torch.stack([draw.brightness, draw.contrast, draw.top.float(), draw.left.float(), draw.flip.float()])
    assert (torch.corrcoef(columns) - torch.eye(5)).abs().max() < 0.03


def test_pixels_are_distributed_as_torchvisions(photos):
    draws = 10_000
    pictures = photos[torch.arange(draws) % len(photos)]
    ours = augment(pictures, sample_augmentation(draws, 32, torch.Generator().manual_seed(3))).numpy()
    transform = transforms.Compose(
        [
            transforms.ColorJitter(brightness=63 / 255, contrast=0.8),
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
        ]
    )
    with torch.random.fork_rng():
        torch.manual_seed(4)
        theirs = np.stack([np.asarray(transform(Image.fromarray(picture))) for picture in pictures.numpy()])
    theirs = theirs.astype(np.float32)
    for statistic in (np.mean, np.var):
        # Each image gives one value; their means are equal within four standard errors.
        mine, others = (statistic(values, axis=(1, 2)) for values in (ours, theirs))
        error = np.hypot(mine.std(axis=0), others.std(axis=0)) / np.sqrt(draws)
        assert (np.abs(mine.mean(axis=0) - others.mean(axis=0)) < 4 * error).all()
    assert (ours.min(), ours.max()) == (theirs.min(), theirs.max()) == (0, 255)


def test_augmentation_leaves_its_input_alone_and_repeats(photos):
    before = photos.clone()
    first, second = (augment(photos, sample_augmentation(64, 32, torch.Generator().manual_seed(1))) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(photos, before)


def test_normalised_is_to_tensor_and_normalize(photos):
    statistics = Statistics((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    expected = transforms.Normalize(statistics.mean, statistics.std)(photos.permute(0, 3, 1, 2).double() / 255)
    found = normalize(photos, statistics)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_batches_are_shuffled_epochs_without_the_partial_batch():
    members = torch.arange(100, 110)
    found = list(shuffled_batches(members, 4, 5, torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in found] == [4] * 5
    for epoch in (found[0:2], found[2:4]):
        seen = torch.cat(epoch)
        assert len(seen.unique()) == 8
        assert ((seen >= 100) & (seen < 110)).all()
    assert not torch.equal(found[0], found[2])


def test_a_set_smaller_than_a_batch_is_one_batch():
    found = list(shuffled_batches(torch.arange(3), 128, 2, torch.Generator().manual_seed(0)))
    assert [sorted(batch.tolist()) for batch in found] == [[0, 1, 2], [0, 1, 2]]


def batches_of(photos):
    return TrainingBatches(
        images=photos,
        labels=torch.arange(len(photos)),
        statistics=Statistics((0.5, 0.4, 0.3), (0.2, 0.25, 0.3)),
        indices=torch.arange(len(photos)),
        batch_size=4,
        updates=5,
        shuffle_rng=torch.Generator().manual_seed(0),
        augmentation_rng=torch.Generator().manual_seed(1),
    )


def test_a_batch_compiles_as_one_graph_that_makes_no_constant(photos):
    graphs = []

    def backend(graph, _):
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph.forward

    def compare(batches):
        load = batches.loader()
        compiled = torch.compile(load, fullgraph=True, backend=backend)
        for draw in batches:
            for mine, theirs in zip(load(*draw), compiled(*draw), strict=True):
                assert torch.equal(mine, theirs)

    compare(batches_of(photos))
    assert len(graphs) == 1
    for fewer in (1, 2, 3):  # stages have sets of many sizes, and torch gives up after eight graphs
        compare(batches_of(photos[fewer:]))
    assert len(graphs) == 2
    assert not any(word in target for target in graphs[0] for word in ("arange", "tensor", "pin_memory"))


def test_a_cpu_compiles_nothing_and_keeps_its_bytes(photos, monkeypatch):
    expected = [value for draw in batches_of(photos) for value in batches_of(photos).loader()(*draw)]
    monkeypatch.setenv("GD_RAY_COMPILE", "1")
    monkeypatch.setattr(torch, "compile", None)
    found = [value for draw in batches_of(photos) for value in batches_of(photos).loader()(*draw)]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(expected, found, strict=True))
