"""M's and C's whole loss on a batch against the paper's formulas written out with loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gd_ray.conventions import CONVENTIONS
from gd_ray.losses import EXTERNAL
from gd_ray.objective import ModelObjective, model_terms, task_labels, teacher_terms
from tests.helpers import plain


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2


def plain_model_loss(o, z, labels, p, c):
    """Equation 9 for one batch, either convention, image by image."""
    released = o.convention.name == "released"
    t, tq = o.temperature, o.ensemble_temperature
    scale, scale_q = (t * t, tq * tq) if released else (1.0, 1.0)
    sizes, seen = o.task_sizes, sum(o.task_sizes)
    prev = seen - sizes[-1]
    counts = None if o.class_counts is None else o.class_counts.tolist()

    def weight(label, classes):
        if counts is None or label not in classes:
            return 1.0
        return sum(counts[k] for k in classes) / len(classes) / counts[label]

    lone = released and o.teacher == "none" and not o.fine_tuning
    denominator = prev if lone else seen
    images = range(len(labels))
    labelled = [i for i in images if labels[i] != EXTERNAL]
    external = [i for i in images if labels[i] == EXTERNAL]
    every, current = list(range(seen)), list(range(prev, seen))

    def columns(row, classes):
        return [row[k] for k in classes]

    def distilled(reference, classes, offset=0):
        values = [
            weight(labels[i], classes)
            * plain.dst(columns(z[i], classes), plain.softmax([reference[i][k - offset] for k in classes], t), t)
            for i in images
        ]
        return plain.mean(values) * scale * len(classes) / denominator

    cls = [weight(labels[i], every) * plain.cls(z[i], labels[i]) for i in labelled]
    if o.ensemble:
        q = []
        for i in external:
            size = sizes[-1]
            p_cur = [1 / size] * size if c is None else plain.softmax(c[i], tq)
            q.append(scale_q * plain.dst(z[i], plain.ensemble(plain.softmax(p[i], tq), p_cur), tq))
        loss = (sum(cls) + sum(q)) / len(labels) if released else plain.mean(cls) + plain.mean(q)
    else:
        loss = plain.mean(cls)
    if o.previous == "global":
        loss += distilled(p, list(range(len(p[0]))))
    if o.previous == "local":
        start = 0
        for size in sizes:
            if start + size <= len(p[0]):
                loss += distilled(p, list(range(start, start + size)))
            start += size
    if o.teacher == "distilled":
        loss += distilled(c, current, offset=prev)
    if o.teacher == "hard labels":
        own = [i for i in images if labels[i] in current]
        terms = [weight(labels[i], current) * plain.cls(columns(z[i], current), labels[i] - prev) for i in own]
        loss += plain.mean(terms) * sizes[-1] / seen
        if o.confidence:
            rest = [i for i in images if labels[i] not in current]
            loss += plain.mean(plain.cnf(columns(z[i], current)) for i in rest) * sizes[-1] / seen
    return loss


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**31),
    number=st.integers(1, 8),
    task_sizes=st.lists(st.integers(2, 4), min_size=2, max_size=4).map(tuple),
    previous=st.sampled_from(["none", "local", "global"]),
    teacher=st.sampled_from(["none", "distilled", "hard labels"]),
    ensemble=st.booleans(),
    confidence=st.booleans(),
    weighted=st.booleans(),
    fine_tuning=st.booleans(),
    copy_of_model=st.booleans(),
    convention=st.sampled_from(["paper", "released"]),
)
def test_model_loss(
    seed, number, task_sizes, previous, teacher, ensemble, confidence, weighted, fine_tuning, copy_of_model, convention
):
    if copy_of_model:
        ensemble, teacher = False, "none"
    seen, size = sum(task_sizes), task_sizes[-1]
    numbers = torch.Generator().manual_seed(seed)
    objective = ModelObjective(
        task_sizes=task_sizes,
        previous=previous,
        teacher=teacher,
        ensemble=ensemble,
        confidence=confidence,
        fine_tuning=fine_tuning,
        temperature=2.0,
        ensemble_temperature=1.5,
        convention=CONVENTIONS[convention],
        class_counts=torch.randint(1, 9, (seen,), generator=numbers).double() if weighted else None,
    )
    labels = torch.randint(-1, seen, (number,), generator=numbers)
    z = draw(seed, number, seen)
    p = draw(seed + 1, number, seen if copy_of_model else seen - size)
    c = draw(seed + 2, number, size) if teacher == "distilled" or (ensemble and seed % 2) else None
    found = model_terms(objective, z, labels, p, c)
    expected = plain_model_loss(objective, z.tolist(), labels.tolist(), p.tolist(), None if c is None else c.tolist())
    assert float(sum(found.values())) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(st.integers(0, 2**31), st.integers(1, 8), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_teacher_loss_is_equation_12(seed, number, num_prev, size, calibrate):
    labels = torch.randint(-1, num_prev + size, (number,), generator=torch.Generator().manual_seed(seed))
    z = draw(seed, number, size)
    own = [i for i, label in enumerate(labels.tolist()) if label >= num_prev]
    rest = [i for i in range(number) if i not in own]
    rows = z.tolist()
    expected = plain.mean(plain.cls(rows[i], int(labels[i]) - num_prev) for i in own)
    if calibrate:
        expected += plain.mean(plain.cnf(rows[i]) for i in rest)
    found = teacher_terms(z, task_labels(labels, num_prev), calibrate=calibrate)
    assert float(sum(found.values())) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_terms_that_are_off_are_not_there():
    objective = ModelObjective(
        task_sizes=(2, 2),
        previous="none",
        teacher="none",
        ensemble=False,
        confidence=True,
        fine_tuning=False,
        temperature=2.0,
        ensemble_temperature=1.0,
        convention=CONVENTIONS["paper"],
    )
    assert set(model_terms(objective, draw(0, 3, 4), torch.tensor([0, 1, 3]), None, None)) == {"cls"}
