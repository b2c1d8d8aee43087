import math

import pytest

from gd_ray.schedule import Cosine, schedule


def rates(training, epoch_factor=1.0, per_epoch=10):
    plan = schedule(training, images=per_epoch * 4, batch_size=4, epoch_factor=epoch_factor, learning_rate=0.1)
    return plan, [plan.rate(update) for update in range(plan.updates)]


@pytest.mark.parametrize(
    ("training", "epochs", "first", "decays"),
    [
        ("whole", 200, 0.1, (120, 160, 180)),
        ("before fine-tuning", 180, 0.1, (120, 160, 170)),
        ("fine-tuning", 20, 0.01, (10, 15)),
    ],
)
def test_the_appendix(training, epochs, first, decays):
    plan, found = rates(training)
    assert plan.updates == 10 * epochs
    for epoch in range(epochs):
        expected = first * 0.1 ** sum(epoch >= decay for decay in decays)
        assert found[10 * epoch : 10 * epoch + 10] == pytest.approx([expected] * 10)


def test_one_factor_scales_everything():
    plan, found = rates("whole", epoch_factor=0.075)
    assert plan.updates == 150
    assert [found.index(rate) for rate in sorted(set(found), reverse=True)] == [0, 90, 120, 135]
    assert rates("fine-tuning", epoch_factor=0.001)[0].updates == 1  # never none


def test_a_cosine_falls_epoch_by_epoch_and_starts_anew_with_each_cycle():
    plan, found = rates(Cosine((2, 4), share=0.3))
    assert (plan.updates, plan.last_epoch) == (60, 50)
    by_epoch = [1, 0.5, 1, 0.5 + math.sqrt(0.5) / 2, 0.5, 0.5 - math.sqrt(0.5) / 2]
    assert found == pytest.approx([0.03 * share for share in by_epoch for _ in range(10)])
    scaled, found = rates(Cosine((2, 4), share=0.3), epoch_factor=0.25)  # 2.5 updates an epoch
    assert scaled.updates == 15
    assert found[::5] == pytest.approx([0.03 * share for share in by_epoch[::2]])
    assert rates(Cosine((170,)), epoch_factor=1e-4, per_epoch=1)[1] == [0.1]  # never none


def test_an_epoch_drops_its_last_partial_batch_and_a_small_set_is_one_batch():
    per_epoch = [
        schedule("whole", images=images, batch_size=4, epoch_factor=1, learning_rate=0.1).updates_per_epoch
        for images in (3, 4, 10)
    ]
    assert per_epoch == [1, 1, 2]
