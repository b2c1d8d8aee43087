"""A trial whose first task is larger than the others, by a plain second computation of all that depends on it."""

import numpy as np
import pytest

from analysis import load
from gd_ray.data.tasks import class_order
from gd_ray.methods import METHODS
from gd_ray.store import pack, read_rows, write_stages, write_trial
from gd_ray.trial import run_trial
from tests.helpers.tiny import tiny_spec
from trials.cost import spec_cost

pytestmark = pytest.mark.usefixtures("small_inference")
SIZES = (3, 2, 2)


def spec_of(method):
    return tiny_spec(method=method, num_classes=7, first_task_size=3, coreset_size=14)


@pytest.mark.parametrize("method", ["gd+ext", "oracle", "bic+ext", "icarl", "dmc+coreset", "sample-nearest"])
def test_tasks_quotas_and_metrics(method, tiny_data, tiny_stream):
    spec, coresets, external = spec_of(method), [], METHODS[method].external
    result = run_trial(spec, tiny_data, tiny_stream, on_stage=lambda _, c: coresets.append(c.coreset))
    assert spec.task_sizes == SIZES
    order = class_order(tiny_data, spec.seed)[:7].tolist()
    labels = tiny_data.train.labels.tolist()
    acc = paper = released = 0.0
    for number, (stage, coreset) in enumerate(zip(result.stages, coresets, strict=True), start=1):
        seen = sum(SIZES[:number])
        assert stage.totals == tuple(4 * size for size in SIZES[:number])
        right = {true: n for true, predicted, n in stage.confusion.tolist() if true == predicted}
        tasks = [order[sum(SIZES[:r]) : sum(SIZES[: r + 1])] for r in range(number)]
        assert stage.hits == tuple(sum(right.get(k, 0) for k in task) for task in tasks)
        exemplars = sum(SIZES[: number - 1]) * 8 if method == "oracle" else 14
        assert stage.labelled_size == SIZES[number - 1] * 8 + (exemplars if number > 1 else 0)
        # 14 images: as many of each class, one more of the newest where they do not divide.
        kept = [sum(labels[i] == k for i in coreset) for k in order[:seen]]
        assert kept == [14 // seen + (k >= seen - 14 % seen) for k in range(seen)]
        if number > 1:
            first = [result.stages[r].hits[r] / (4 * SIZES[r]) for r in range(number)]
            now = [hits / total for hits, total in zip(stage.hits, stage.totals, strict=True)]
            acc += sum(size * a for size, a in zip(SIZES, now, strict=False)) / seen
            falls = sum(SIZES[r] * (first[r] - now[r]) for r in range(number - 1))
            paper, released = paper + falls / seen, released + falls / 7
        assert stage.images["evaluate"] == 28
        assert stage.confidences[stage.confidences[:, 0] == 2, 2].sum() == 4 * (7 - seen)
    assert result.acc == pytest.approx(acc / 2)
    assert result.forgetting("paper") == pytest.approx(paper / 2)
    assert result.forgetting("released") == pytest.approx(released / 3)
    found = {(s.stage, step): images for s in result.stages for step, images in s.images.items() if images}
    planned = {(step.stage, step.step): step.images for step in spec_cost(spec)}
    assert set(found) == set(planned)
    for key, images in found.items():
        assert images == pytest.approx(planned[key], abs=16 if external else 0), key


def test_the_folder_keeps_the_tasks(tiny_data, tmp_path):
    result = run_trial(spec_of("baseline"), tiny_data)
    write_stages(str(tmp_path), result.spec, result.stages)
    write_trial(str(tmp_path), result, device="cpu", threads=1)
    pack(str(tmp_path))
    stages = read_rows(str(tmp_path), "stages")[0].to_pandas()
    assert stages["classes_of_task"].tolist() == [3, 3, 2, 3, 2, 2]
    assert stages["classes_seen"].tolist() == [3, 5, 5, 7, 7, 7]
    assert read_rows(str(tmp_path), "trials")[0]["first_task_size"].to_pylist() == [3]
    curves = load(str(tmp_path)).curves
    assert curves["classes_seen"].tolist() == [3, 5, 7]
    assert np.allclose(curves["acc"].iloc[-1], result.acc)
