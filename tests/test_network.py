import copy

import pytest
import torch

from gd_ray.networks.classifier import expand_head, new_classifier, with_new_head
from gd_ray.networks.dropout import drop
from gd_ray.seeding import Purpose, generator


def network(name="wrn-10-1", dropout=0.3, classes=5, seed=0):
    return new_classifier(name, dropout, classes, generator(seed, 1, Purpose.INITIALISATION))


def images(number=4, side=32):
    return torch.randn(number, 3, side, side, generator=torch.Generator().manual_seed(1))


def test_wrn_16_2_is_the_papers():
    model = network("wrn-16-2", classes=100)
    assert sum(p.numel() for p in model.parameters()) == 703_284 == 690_384 + 12_900  # shared + head of 100 classes
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) == 16 - 3  # the three 1x1 shortcuts complete WRN's count
    assert [block.conv2.out_channels for block in model.backbone.blocks] == [32, 32, 64, 64, 128, 128]
    assert model(images(2)).shape == (2, 100)


@pytest.mark.parametrize(("depth", "width"), [(10, 1), (16, 1), (22, 3)])
def test_any_depth_and_width(depth, width):
    model = network(f"wrn-{depth}-{width}")
    assert len(model.backbone.blocks) == (depth - 4) // 2
    assert model.features(images(2)).shape == (2, 64 * width)


def test_a_grown_head_keeps_old_rows_bit_for_bit_and_the_rest_too():
    old = network()
    before = copy.deepcopy(old.state_dict())
    new = expand_head(old, 3, generator(0, 2, Purpose.INITIALISATION))
    assert new.head.weight.shape == (8, 64)
    assert torch.equal(new.head.weight[:5], old.head.weight)
    assert torch.equal(new.head.bias[:5], old.head.bias)
    assert (new.head.bias[5:] == 0).all()
    for name, value in old.state_dict().items():
        assert torch.equal(value, before[name])
        if not name.startswith("head."):
            assert torch.equal(new.state_dict()[name], value)


def test_teacher_and_model_start_from_the_same_new_rows():
    old = network()
    new = expand_head(old, 3, generator(0, 2, Purpose.INITIALISATION))
    teacher = with_new_head(old, 3, generator(0, 2, Purpose.INITIALISATION))
    assert torch.equal(new.head.weight[5:], teacher.head.weight)


def test_initialisation_follows_the_facts():
    model = network("wrn-16-4", classes=200)
    assert model.head.weight.std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.05)
    wide = model.backbone.blocks[-1].conv2.weight
    assert wide.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.02)
    scales = torch.cat([m.weight for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)])
    assert 0 <= scales.min() < 0.05
    assert 0.95 < scales.max() <= 1
    assert scales.mean().item() == pytest.approx(0.5, abs=0.03)
    assert (model.head.bias == 0).all()


def test_the_seed_alone_fixes_the_weights():
    first = network(seed=3).state_dict()
    torch.rand(1)  # moves the global generator
    second, other = network(seed=3).state_dict(), network(seed=4).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["backbone.stem.weight"], other["backbone.stem.weight"])


def test_dropout_is_on_with_a_generator_only_and_keeps_the_mean():
    model = network(dropout=0.3).eval()
    x = images(8)
    assert torch.equal(model(x), model(x))
    dropped = [model(x, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(dropped[0], dropped[1])
    assert not torch.equal(dropped[0], dropped[2])

    ones = torch.ones(50, 16, 33, 31)
    out = drop(ones, 0.3, torch.Generator().manual_seed(0))
    assert (out == 0).float().mean().item() == pytest.approx(0.3, abs=0.002)
    assert out.mean().item() == pytest.approx(1, abs=0.003)
    assert len(out.unique()) == 2
    # No two images, channels or places share their mask.
    zero = (out == 0).float()
    for dim in range(4):
        others = [d for d in range(4) if d != dim]
        assert zero.mean(dim=others).std() < 0.02
        a, b = zero.select(dim, 0).flatten(), zero.select(dim, 1).flatten()
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1].item()) < 0.03


@pytest.mark.parametrize("name", ["wrn-10-1", "resnet-32", "resnet-18"])
def test_every_network_takes_images_of_any_side_and_needs_no_batch(name):
    model = network(name).eval()
    for side in (32, 64):
        assert model(images(2, side)).shape == (2, 5)
    assert model.features(images(1)).shape == (1, model.backbone.dim)
    assert torch.equal(model.predict(images(3)), model(images(3)).argmax(dim=1))


def test_resnet_32_is_the_one_of_the_literature():
    model = network("resnet-32", classes=100)
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 31  # and the head; option-A shortcuts have no weights
    # By hand: stem 3*16*9; five blocks of 16 channels; then 16-32 and 32-64 with four equal blocks each; batch norms.
    weights = 27 * 16 + 10 * 9 * 16 * 16 + 9 * (16 * 32 + 9 * 32 * 32) + 9 * (32 * 64 + 9 * 64 * 64)
    norms = 2 * (16 + 10 * 16 + 10 * 32 + 10 * 64)
    assert sum(p.numel() for p in model.backbone.parameters()) == weights + norms
    assert model.backbone.dim == 64


def test_option_a_shortcuts_take_every_second_pixel_and_pad_channels_with_zeros():
    block = network("resnet-32").backbone.blocks[5]
    x = images(2, 8).repeat(1, 6, 1, 1)[:, :16]
    shortcut = block._shortcut(x)
    assert shortcut.shape == (2, 32, 4, 4)
    assert torch.equal(shortcut[:, :16], x[:, :, ::2, ::2])
    assert (shortcut[:, 16:] == 0).all()


def test_resnet_18_has_the_usual_number_of_parameters():
    assert sum(p.numel() for p in network("resnet-18", classes=100).parameters()) == 11_220_132
