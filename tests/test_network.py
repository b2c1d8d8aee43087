import copy

import pytest
import torch

from gd_ray.network import WideResNet, grown, specialised
from gd_ray.seeding import Purpose, generator


def network(depth=10, width=1, dropout=0.3, classes=5, seed=0):
    return WideResNet(depth, width, dropout, classes, generator(seed, 1, Purpose.INITIALISATION))


def images(number=4):
    return torch.randn(number, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_wrn_16_2_is_the_papers():
    model = network(depth=16, width=2, classes=100)
    assert sum(p.numel() for p in model.parameters()) == 703_284 == 690_384 + 12_900  # shared + head of 100 classes
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) == 16 - 3  # the three 1x1 shortcuts complete WRN's count
    assert [block.conv2.out_channels for block in model.blocks] == [32, 32, 64, 64, 128, 128]
    assert model(images(2)).shape == (2, 100)


@pytest.mark.parametrize(("depth", "width"), [(10, 1), (16, 1), (22, 3)])
def test_any_depth_and_width(depth, width):
    model = network(depth, width)
    assert len(model.blocks) == (depth - 4) // 2
    assert model.features(images(2)).shape == (2, 64 * width)


def test_a_grown_head_keeps_old_rows_bit_for_bit_and_the_rest_too():
    old = network()
    before = copy.deepcopy(old.state_dict())
    new = grown(old, 3, generator(0, 2, Purpose.INITIALISATION))
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
    new = grown(old, 3, generator(0, 2, Purpose.INITIALISATION))
    teacher = specialised(old, 3, generator(0, 2, Purpose.INITIALISATION))
    assert torch.equal(new.head.weight[5:], teacher.head.weight)


def test_initialisation_follows_the_facts():
    model = network(depth=16, width=4, classes=200)
    assert model.head.weight.std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.05)
    wide = model.blocks[-1].conv2.weight
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
    assert not torch.equal(first["stem.weight"], other["stem.weight"])


def test_dropout_is_on_with_a_generator_only_and_keeps_the_mean():
    model = network(dropout=0.3).eval()
    x = images(8)
    assert torch.equal(model(x), model(x))
    dropped = [model(x, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(dropped[0], dropped[1])
    assert not torch.equal(dropped[0], dropped[2])

    from gd_ray.network import _dropout

    ones = torch.ones(50, 16, 33, 31)
    out = _dropout(ones, 0.3, torch.Generator().manual_seed(0))
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
