from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gd_ray.conventions import CONVENTIONS
from gd_ray.data.augmentation import normalize
from gd_ray.methods import METHODS
from gd_ray.networks.classifier import new_classifier
from gd_ray.progress import no_progress
from gd_ray.seeding import Purpose, generator
from gd_ray.wild.external import sample_external_set
from gd_ray.wild.sampling import (
    Outputs,
    candidates,
    finish,
    log_odds,
    merge,
    merge_candidates,
    plan_sampling,
    probability,
    sample,
    select,
)
from gd_ray.wild.scoring import score_in_process
from gd_ray.wild.stream import MemoryStream
from tests.helpers import plain
from tests.helpers.tiny import tiny_spec

# Few distinct probabilities, so that ties are common.
streams = st.integers(1, 5).flatmap(
    lambda classes: st.tuples(
        st.just(classes),
        st.lists(
            st.tuples(st.integers(0, classes - 1), st.sampled_from([0.1, 0.25, 0.5, 0.9])), min_size=0, max_size=60
        ),
        st.integers(0, 25),
    )
)


@given(streams)
def test_sample_is_algorithm_2_one_by_one(case):
    num_classes, scores, num_prev = case
    stream = [(position, y, p) for position, (y, p) in enumerate(scores)]
    found = sample(
        [x for x, _, _ in stream],
        [y for _, y, _ in stream],
        [p for _, _, p in stream],
        num_prev=num_prev,
        num_classes=num_classes,
    )
    assert found.tolist() == plain.algorithm_2(stream, num_prev, num_classes)


@given(streams, st.data())
def test_any_partition_in_any_merge_order_gives_the_same(case, data):
    num_classes, scores, num_prev = case
    stream = [(position, y, p) for position, (y, p) in enumerate(scores)]
    owner = data.draw(st.lists(st.integers(0, 4), min_size=len(stream), max_size=len(stream)))
    quota = -(-num_prev // num_classes)
    parts = [[entry for entry, part in zip(stream, owner, strict=True) if part == k] for k in range(5)]
    pending = [
        select([x for x, _, _ in p], [y for _, y, _ in p], np.array([c for _, _, c in p]), quota=quota) for p in parts
    ]
    while len(pending) > 1:  # a random merge tree
        i, j = data.draw(st.permutations(range(len(pending))))[:2]
        merged = merge(pending[i], pending[j])
        pending = [part for k, part in enumerate(pending) if k not in (i, j)] + [merged]
    assert sorted(pending[0].positions.tolist()) == plain.algorithm_2(stream, num_prev, num_classes)


def test_the_quota_rounds_up_and_a_tie_keeps_the_earlier_image():
    # N_prev / classes = 3 / 2: a class takes a second image, for 1 < 1.5.
    found = sample([0, 1, 2, 3], [0, 0, 0, 1], [0.5, 0.5, 0.5, 0.2], num_prev=3, num_classes=2)
    assert found.tolist() == [0, 1, 3]
    assert sample([0, 1], [0, 0], [0.5, 0.5], num_prev=1, num_classes=1).tolist() == [0]
    assert sample([0, 1], [0, 0], [0.5, 0.6], num_prev=1, num_classes=1).tolist() == [1]
    assert sample([0, 1], [0, 0], [0.5, 0.6], num_prev=0, num_classes=1).tolist() == []


def test_selections_of_different_quotas_do_not_merge():
    with pytest.raises(ValueError, match="quotas 1 and 2"):
        merge(select([0], [0], [0.5], quota=1), select([1], [0], [0.5], quota=2))


def logits_of(seed, number, classes):
    # Rounded, so that ties are common.
    return np.random.default_rng(seed).normal(size=(number, classes)).round(1).astype(np.float32)


def external(method, convention, logits, size, ood_ratio=0.7, block=7, seed=0):
    plan = plan_sampling(
        METHODS[method], CONVENTIONS[convention], size=size, ood_ratio=ood_ratio, num_classes=logits.shape[1]
    )
    offsets = np.arange(plan.skipped, len(logits))
    blocks = np.array_split(offsets, max(1, len(offsets) // block))
    found = reduce(merge_candidates, [candidates(plan, b, Outputs(logits[b])) for b in blocks])
    return plan, finish(plan, found, len(logits), np.random.default_rng(seed))


@given(st.integers(0, 2**31), st.integers(1, 5), st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]))
def test_the_papers_external_set(seed, classes, ood_ratio):
    logits = logits_of(seed, 80, classes)
    _, found = external("gd+ext", "paper", logits, 20, ood_ratio)
    num_ood = round(20 * ood_ratio)
    ood = found.positions[found.is_ood]
    assert ood.tolist() == list(range(num_ood))  # the first images of the stream, never scored
    assert np.isnan(found.scores[found.is_ood]).all()
    rows = [[float(value) for value in row] for row in logits]
    stream = []
    for x in range(num_ood, 80):
        p = plain.softmax(rows[x])
        y = rows[x].index(max(rows[x]))
        stream.append((x, y, float(np.float32(p[y]))))
    expected = plain.algorithm_2(stream, 20 - num_ood, classes)
    kept = sorted(found.positions[~found.is_ood].tolist())
    # Probabilities computed in another order may differ in the last bit, so compare the probabilities kept.
    by_offset = {x: (y, p) for x, y, p in stream}
    assert sorted(by_offset[x][0] for x in kept) == sorted(by_offset[x][0] for x in expected)
    np.testing.assert_allclose(
        sorted(by_offset[x][1] for x in kept), sorted(by_offset[x][1] for x in expected), rtol=1e-6
    )


def test_the_more_probable_image_wins_also_where_probabilities_round_to_one():
    # 1 - p is about exp(-margin): below half a unit in the last place of 1 from a margin of 17 on.
    margins = [17.5, 30.0, 18.0, 95.0, 17.0]
    logits = np.array([[margin, 0.0] for margin in margins], np.float32)
    _, found = external("gd+ext", "paper", logits, 4, ood_ratio=0.0, block=2)
    assert found.positions.tolist() == [1, 3]
    assert found.scores.tolist() == [1.0, 1.0]
    exact = [plain.softmax([float(value) for value in row]) for row in logits_of(0, 50, 4)]
    np.testing.assert_allclose(probability(log_odds(logits_of(0, 50, 4))), [max(p) for p in exact], rtol=1e-6)


@given(st.integers(0, 2**31), st.integers(1, 5))
def test_the_released_external_set(seed, classes):
    logits = logits_of(seed, 80, classes)
    _, found = external("gd+ext", "released", logits, 20, 0.5, seed=seed)
    quota = 10 // classes
    wins = set()
    for k in range(classes):
        ranked = sorted(range(80), key=lambda x: (-float(logits[x, k]), x))
        wins |= set(ranked[:quota])
    assert set(found.positions[~found.is_ood].tolist()) == wins
    drawn = set(np.random.default_rng(seed).choice(80, 10, replace=False).tolist())
    assert set(found.positions[found.is_ood].tolist()) == drawn - wins
    assert len(np.unique(found.positions)) == len(found)


@given(st.integers(0, 2**31), st.integers(2, 5))
def test_ood_by_prediction_takes_the_least_confident_of_the_rest(seed, classes):
    logits = logits_of(seed, 80, classes)
    _, found = external("sample-ood-pred", "paper", logits, 20, 0.5)
    previous = set(found.positions[~found.is_ood].tolist())
    ood = found.positions[found.is_ood].tolist()
    assert len(ood) == 10
    assert not previous & set(ood)
    confidence = {x: plain.cnf([float(v) for v in logits[x]]) for x in range(80)}
    ranked = sorted(confidence[x] for x in range(80) if x not in previous)
    np.testing.assert_allclose(sorted(confidence[x] for x in ood), ranked[:10], rtol=1e-5)


@given(st.integers(0, 2**31), st.integers(1, 4), st.booleans(), st.data())
def test_nearest_mean_sampling_of_any_partition_merged_in_any_order(seed, classes, far, data):
    """Against one image after the other, by plain cosines to the means of previous and of new classes."""
    # Few distinct directions, so that ties are common.
    rng = np.random.default_rng(seed)
    cosines = rng.choice([0.0, 0.6, 0.8, 1.0], (50, classes + 2)).astype(np.float32)
    plan = plan_sampling(
        METHODS["sample-nearest-far" if far else "sample-nearest"],
        CONVENTIONS["paper"],
        size=20,
        ood_ratio=0.5,
        num_classes=classes,
    )
    assert plan.needs_means
    owner = np.array(data.draw(st.lists(st.integers(0, 3), min_size=40, max_size=40)))
    logits = np.zeros((50, classes), np.float32)
    pending = []
    for part in range(4):
        offsets = 10 + np.flatnonzero(owner == part)
        pending.append(candidates(plan, offsets, Outputs(logits[offsets], cosines[offsets])))
    while len(pending) > 1:
        i, j = data.draw(st.permutations(range(len(pending))))[:2]
        merged = merge_candidates(pending[i], pending[j])
        pending = [part for k, part in enumerate(pending) if k not in (i, j)] + [merged]
    found = finish(plan, pending[0], 50, rng)
    stream = []
    for x in range(10, 50):
        old, new = cosines[x, :classes].tolist(), cosines[x, classes:].tolist()
        stream.append((x, old.index(max(old)), float(np.float32(max(old)) - np.float32(max(new)) * far)))
    assert sorted(found.positions[~found.is_ood].tolist()) == plain.algorithm_2(stream, 10, classes)
    scores = {x: score for x, _, score in stream}
    assert found.scores[~found.is_ood].tolist() == [scores[x] for x in found.positions[~found.is_ood].tolist()]
    assert set(found.score_kind[~found.is_ood]) == {"cosine difference" if far else "cosine"}


@pytest.mark.usefixtures("small_inference")
@pytest.mark.parametrize("method", ["sample-nearest", "sample-nearest-far"])
def test_nearest_means_are_of_the_previous_model_and_do_not_depend_on_the_blocks(method, tiny_data, tiny_stream):
    """From pixels: features of P, means over the labelled images, cosines; blocks of the stream of any size."""
    model = new_classifier("wrn-10-1", 0.0, 2, generator(0, 1, Purpose.INITIALISATION)).eval()
    labels = tiny_data.train.labels.numpy()
    labelled = np.flatnonzero(labels < 4)
    images, labels = tiny_data.train.images[labelled], labels[labelled]

    def sampled(block):
        stream = MemoryStream(tiny_stream.images, block=block)
        options = tiny_spec(method=method, window=150), 2, 20, model, tiny_data.statistics, stream
        sample = sample_external_set(*options, score_in_process, no_progress, (images, labels)).sample
        return sample.positions[~sample.is_ood], sample.classes[~sample.is_ood], sample.scores[~sample.is_ood]

    whole = sampled(200)
    for block in (7, 64):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(sampled(block), whole, strict=True))

    def directions(pixels):
        with torch.no_grad():
            features = model.features(normalize(torch.as_tensor(pixels), tiny_data.statistics)).double()
        return features / features.norm(dim=1, keepdim=True)

    own, wild = directions(images), directions(tiny_stream.images[whole[0]])
    means = torch.stack([own[torch.from_numpy(labels == k)].mean(dim=0) for k in range(4)])
    cosines = torch.nn.functional.cosine_similarity(wild[:, None], means[None], dim=2)
    assert cosines[:, :2].argmax(dim=1).tolist() == whole[1].tolist()
    expected = cosines[:, :2].max(dim=1).values - (cosines[:, 2:].max(dim=1).values if "far" in method else 0)
    np.testing.assert_allclose(whole[2], expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("convention", ["paper", "released"])
def test_sampling_one_kind_only_keeps_the_total(convention):
    plan, _ = external("sample-ood", convention, logits_of(0, 80, 4), 20)
    assert (plan.num_prev, plan.num_ood) == (0, 20)
    plan, _ = external("sample-prev", convention, logits_of(0, 80, 4), 20)
    assert (plan.num_prev, plan.num_ood) == (20, 0)


def test_the_first_stage_has_nothing_to_predict_with():
    plan = plan_sampling(METHODS["sample-prev"], CONVENTIONS["paper"], size=20, ood_ratio=0.7, num_classes=0)
    assert (plan.num_prev, plan.num_ood, plan.scores) == (0, 20, False)
    assert finish(plan, None, 80, np.random.default_rng(0)).positions.tolist() == list(range(20))
