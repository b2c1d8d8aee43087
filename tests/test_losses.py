import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gd_ray import losses
from tests.helpers import plain

EXACT = {"rtol": 1e-9, "atol": 1e-12}


def random_logits(seed: int, *shape: int, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


sizes = st.integers(1, 7)
seeds = st.integers(0, 2**31)


@given(seeds, sizes, st.integers(2, 9))
def test_classification_is_the_cross_entropy_and_nothing_for_external_images(seed, number, classes):
    z = random_logits(seed, number, classes)
    labels = torch.randint(-1, classes, (number,), generator=torch.Generator().manual_seed(seed))
    expected = [
        0.0 if label < 0 else plain.cls(row, label) for row, label in zip(z.tolist(), labels.tolist(), strict=True)
    ]
    torch.testing.assert_close(losses.classification(z, labels), torch.tensor(expected, dtype=torch.float64), **EXACT)


@given(seeds, sizes, st.integers(1, 9), st.sampled_from([1.0, 2.0, 3.7]))
def test_distillation_is_the_softened_cross_entropy(seed, number, classes, temperature):
    z, reference = random_logits(seed, number, classes), random_logits(seed + 1, number, classes)
    expected = [
        plain.dst(row, plain.softmax(r, temperature), temperature)
        for row, r in zip(z.tolist(), reference.tolist(), strict=True)
    ]
    found = losses.distillation(z, losses.softmax_with_temperature(reference, temperature), temperature)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), **EXACT)


@given(seeds, sizes, st.integers(1, 9))
def test_confidence_is_the_cross_entropy_from_uniform(seed, number, classes):
    z = random_logits(seed, number, classes)
    expected = torch.tensor([plain.cnf(row) for row in z.tolist()], dtype=torch.float64)
    torch.testing.assert_close(losses.confidence(z), expected, **EXACT)


def test_confidence_is_least_for_a_uniform_prediction():
    assert losses.confidence(torch.zeros(1, 5)).item() == pytest.approx(torch.log(torch.tensor(5.0)).item())
    assert losses.confidence(torch.tensor([[4.0, 0, 0, 0, 0]])) > losses.confidence(torch.zeros(1, 5))


@given(seeds, sizes, st.integers(2, 12), st.integers(1, 12))
def test_ensemble_is_equations_6_and_7(seed, number, num_prev, num_cur):
    p_prev = losses.softmax_with_temperature(random_logits(seed, number, num_prev), 1.0)
    p_cur = losses.softmax_with_temperature(random_logits(seed + 1, number, num_cur), 1.0)
    expected = [plain.ensemble(p, c) for p, c in zip(p_prev.tolist(), p_cur.tolist(), strict=True)]
    found = losses.ensemble(p_prev, p_cur)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(number, dtype=torch.float64))


def test_ensemble_by_hand():
    # p_max = 0.6, |T_t| = 2, |T_1:t| = 4: epsilon = 0.4 * 2 / 3, the other previous class keeps 0.4 / 3.
    found = losses.ensemble(torch.tensor([[0.6, 0.4]]), torch.tensor([[0.25, 0.75]]))
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.4 / 3, 0.8 / 3 * 0.25, 0.8 / 3 * 0.75]]))


def test_ensemble_of_a_certain_previous_model_stays_certain():
    found = losses.ensemble(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0, 0.0, 0.0]]))


def test_ensemble_of_one_previous_class():
    # With one previous class p_max = 1 always, and nothing is left for the current task.
    torch.testing.assert_close(
        losses.ensemble(torch.tensor([[1.0]]), torch.tensor([[0.5, 0.5]])), torch.tensor([[1.0, 0.0, 0.0]])
    )


@given(st.lists(st.integers(-1, 6), min_size=1, max_size=60), st.integers(1, 6))
def test_data_weights_are_equation_10(labels, num_classes):
    found = losses.data_weights(torch.tensor(labels), num_classes).tolist()
    for k in range(num_classes):
        expected = plain.data_weight(k, labels, list(range(num_classes))) if k in labels else 0.0
        assert found[k] == pytest.approx(expected, rel=1e-9)


def test_data_weights_are_one_when_balanced():
    assert losses.data_weights(torch.tensor([0, 1, 2, 2, 1, 0, -1, 7]), 3).tolist() == [1, 1, 1]


@given(seeds, st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_weighting_an_image_equals_repeating_it(seed, repeats):
    number, weights = len(repeats), torch.tensor(repeats)
    z, labels = random_logits(seed, number, 4).requires_grad_(), torch.arange(number) % 4
    (losses.masked_mean(losses.classification(z, labels), weights=weights) * number).backward()
    weighted = z.grad.clone()
    z.grad = None
    repeated = losses.classification(z.repeat_interleave(weights, dim=0), labels.repeat_interleave(weights))
    (losses.masked_mean(repeated) * sum(repeats)).backward()
    torch.testing.assert_close(weighted, z.grad, **EXACT)


def test_mean_over_counts_members_only_and_is_zero_without_any():
    values = torch.tensor([1.0, 2.0, 30.0])
    assert losses.masked_mean(values, torch.tensor([True, True, False])) == 1.5
    assert losses.masked_mean(values, torch.zeros(3, dtype=torch.bool)) == 0
    assert losses.masked_mean(values, torch.tensor([True, True, False]), torch.tensor([3.0, 1.0, 9.0])) == 2.5


def test_loss_weight_is_the_share_of_classes():
    assert losses.loss_weight(10, 40) == 0.25
