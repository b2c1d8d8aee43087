"""Where trials and scorers run that reserve what `resolve_resources` gives them, on a Ray with declared GPUs."""

import os
from collections import Counter

import pytest
from rich.console import Console

from gd_ray.errors import UserError
from trials.experiments import small_spec
from trials.preflight import check_devices
from trials.resources import Cluster, resolve_resources
from trials.runner import run_experiment


@pytest.fixture(scope="module")
def ray():
    import ray

    from gd_ray.ray_utils import start_ray

    ray.shutdown()
    start_ray(num_cpus=8, num_gpus=8, object_store_memory=100 << 20)
    yield ray
    ray.shutdown()


def placed(ray, trials, gpus, scorers):
    """Reserve the trials of a wave, as Tune does in their order; return (trial's GPU, its share)."""
    windows = [1_000_000] if scorers else []
    resources = resolve_resources(Cluster(), [{"CPU": 2 * gpus, "GPU": gpus}], windows, trials)
    bundles = [resources.bundles(rank, scorers) for rank in range(min(trials, 4 * gpus))]
    groups = [ray.util.placement_group(own, strategy=resources.strategy) for own in bundles]
    ray.get([group.ready() for group in groups], timeout=60)

    @ray.remote(num_cpus=0)
    def gpu_ids():
        from gd_ray.wild.ray_scoring import variables_for

        return [int(number) for number in ray.get_gpu_ids()], variables_for("cuda")["CUDA_VISIBLE_DEVICES"]

    def gpu_of(group, share):
        where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, 0)
        (found,), of_scorers = ray.get(gpu_ids.options(num_gpus=share, scheduling_strategy=where).remote(), timeout=60)
        assert of_scorers == str(found)  # they use the GPU of their trial
        return found

    shares = [own[0]["GPU"] for own in bundles]
    result = [(gpu_of(group, share), share) for group, share in zip(groups, shares, strict=True)]
    for group in groups:
        ray.util.remove_placement_group(group)
    return result


def held(found):
    shares = Counter()
    for gpu, share in found:
        shares[gpu] += share
    return shares


def test_first_models_trials_and_their_scorers_spread_over_the_gpus(ray):
    first_models = placed(ray, 6, 8, scorers=0)
    assert len({gpu for gpu, _ in first_models}) == 6
    rest = ray.util.placement_group([{"GPU": 4}])  # leaves a machine of four
    ray.get(rest.ready(), timeout=60)
    for trials, shares in ((4, {1}), (5, {1, 0.5}), (16, {0.25})):
        found = placed(ray, trials, 4, scorers=1)
        assert {round(share, 4) for _, share in found} == shares
        assert held(found) == pytest.approx(dict.fromkeys(held(found), 1))
        assert len(held(found)) == 4  # none idles, none holds more than it has


def test_a_granted_gpu_that_torch_cannot_use_ends_the_run_in_a_sentence(ray, tmp_path):
    """Without the switch of the other tests, this Ray's GPUs pass for real ones."""
    cluster = Cluster(storage=str(tmp_path / "storage"))
    with pytest.raises(UserError, match=r"^device 'cuda' needs a GPU, but torch .* can use none of .*; use 'cpu'"):
        run_experiment("mine", [small_spec("gd", 0)], str(tmp_path / "results"), cluster, Console(quiet=True))


def test_a_check_of_gpus_that_dies_is_left_to_the_trials(ray, monkeypatch):
    monkeypatch.setattr("trials.preflight._device_notes", lambda precisions: os._exit(1))
    assert check_devices([node["Resources"] for node in ray.nodes()], 1.0, []) == []
