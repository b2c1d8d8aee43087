import pytest

from gd_ray.errors import UserError
from gd_ray.ray_utils import switches
from trials.resources import Cluster, TrialResources, gpu_shares, parse_folders, resolve_resources


@pytest.mark.parametrize(
    ("asked", "nodes", "trials", "resources"),
    [
        # A core for each trial and its scorer, which take turns.
        ({}, [{"CPU": 2}], 9, TrialResources(0.5, 0, None, 0.5)),
        ({}, [{"CPU": 64, "GPU": 8}] * 2, 16, TrialResources(0.99, 1, None, 0.01)),
        ({}, [{"CPU": 64, "GPU": 8}] * 2, 32, TrialResources(0.99, 0.5, None, 0.01)),
        ({}, [{"CPU": 64, "GPU": 8}] * 2, 33, TrialResources(0.99, 0.25, None, 0.01, doubled=31)),
        ({}, [{"CPU": 64, "GPU": 8}] * 2, 500, TrialResources(0.99, 0.25, None, 0.01)),
        ({}, [{"CPU": 4, "GPU": 4}], 4, TrialResources(0.99, 1, None, 0.01)),
        ({}, [{"CPU": 4, "GPU": 4}], 5, TrialResources(0.49, 0.5, None, 0.01, doubled=3)),
        ({}, [{"CPU": 4, "GPU": 4}], 16, TrialResources(0.24, 0.25, None, 0.01)),  # sixteen share four CPUs
        ({}, [{"CPU": 8}, {"CPU": 16, "GPU": 1}], 9, TrialResources(0.99, 0.25, None, 0.01)),
        ({}, [{"CPU": 7, "GPU": 3}], 12, TrialResources(0.5733, 0.25, None, 0.01)),  # seven hold twelve of them
        ({"gpus": 0}, [{"CPU": 4, "GPU": 4}], 4, TrialResources(0.5, 0, None, 0.5)),
        ({"gpus": 0.25}, [{"CPU": 64, "GPU": 4}], 4, TrialResources(0.99, 0.25, None, 0.01)),
        ({"gpus": 1, "scorers": 4, "cpus": 2}, [{"CPU": 64, "GPU": 8}], 1, TrialResources(2, 1, 4, 0.01)),
        ({"gpus": 1, "scorer_cpus": 1}, [{"CPU": 64, "GPU": 8}], 1, TrialResources(0.99, 1, None, 1)),
    ],
)
def test_defaults_fit_the_trials_and_what_the_cluster_has(asked, nodes, trials, resources):
    assert resolve_resources(Cluster(**asked), nodes, [1_000_000], trials) == resources


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 8, 16])
def test_shares_use_every_gpu_and_never_more(gpus):
    for trials in range(1, 6 * gpus):
        share, doubled = gpu_shares(trials, gpus)
        at_once = min(trials, 4 * gpus)
        assert share in (1, 0.5, 0.25)
        held = (at_once + doubled) * share
        assert held == min(trials, gpus)  # all at once, and no GPU is left over


def test_a_trial_reserves_its_share_with_those_of_its_scorers():
    cpu = resolve_resources(Cluster(), [{"CPU": 4}], [1_000_000], 4)
    assert cpu.bundles(0, 1) == [{"CPU": 0.5}] * 2
    assert cpu.bundles(0, 0) == [{"CPU": 1}]  # it never waits
    gpu = resolve_resources(Cluster(), [{"CPU": 4, "GPU": 4}], [1_000_000], 5)
    assert gpu.bundles(0, 0) == [{"CPU": 0.49, "GPU": 1}]
    assert gpu.bundles(0, 1) == [{"CPU": 0.49, "GPU": 1}, {"CPU": 0.01}]  # the scorer uses the GPU of its trial
    assert gpu.bundles(4, 1) == [{"CPU": 0.49, "GPU": 0.5}, {"CPU": 0.01}]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"gpus": 1}, "--gpus 1 needs a GPU, but Ray found none (CUDA_VISIBLE_DEVICES is '' here); use --gpus 0"),
        ({"cpus": 2}, "--cpus and --scorer-cpus ask for 4 CPUs for a trial and its scorers, but the cluster has 3"),
        ({"cpus": 2, "scorer_cpus": 0.5}, "--cpus 2 is more than the 1.5 of the largest machine; lower it."),
    ],
)
def test_what_does_not_fit_is_refused(asked, says, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError) as error:
        resolve_resources(Cluster(**asked), [{"CPU": 1.5}, {"CPU": 1.5}], [1_000_000], 3)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            {"gpus": 0.3},
            "--gpus 0.3 leaves a part of every GPU unused: 3 trials fit on one and 6 on the 2 of the cluster; give 1, "
            "0.5 or 0.25, or leave it out to fit 3 trials.",
        ),
        ({"gpus": 0.33}, None),
    ],
)
def test_shares_that_waste_a_gpu_are_refused(asked, says):
    nodes = [{"CPU": 4, "GPU": 2}]
    if says is None:
        assert resolve_resources(Cluster(**asked), nodes, [1_000_000], 3).gpus == asked["gpus"]
        return
    with pytest.raises(UserError) as error:
        resolve_resources(Cluster(**asked), nodes, [1_000_000], 3)
    assert says in str(error.value)


@pytest.mark.parametrize("windows", [[], [9_999]])
def test_trials_without_scorers_may_take_all_that_there_is(windows):
    """They learn without external data, or score windows so small that no scorer pays."""
    assert resolve_resources(Cluster(gpus=1), [{"CPU": 2, "GPU": 1}], windows, 3).gpus == 1
    assert resolve_resources(Cluster(cpus=2), [{"CPU": 2}], windows, 3).cpus == 2
    with pytest.raises(UserError, match="--cpus 3 is more than the 2 of the largest machine; lower it"):
        resolve_resources(Cluster(cpus=3), [{"CPU": 2}], windows, 3)
    if windows:
        with pytest.raises(UserError, match="ask for 4 CPUs for a trial and its scorers"):
            resolve_resources(Cluster(cpus=2, scorers=1), [{"CPU": 2}], windows, 3)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        # The machine with the GPUs has too few CPUs, the one with the CPUs no GPU.
        (
            {"cpus": 16, "gpus": 1, "scorers": 0},
            "--cpus 16 with --gpus 1 is more than any one machine has; lower them.",
        ),
        (
            {"cpus": 8, "gpus": 1, "scorer_cpus": 1},
            "--cpus 8 and --scorer-cpus 1 with --gpus 1 is more than any one machine has; lower them.",
        ),
        ({"cpus": 8, "gpus": 1, "scorers": 0}, "STRICT_PACK"),
        ({"cpus": 31, "gpus": 0, "scorer_cpus": 1}, "STRICT_PACK"),
        ({"cpus": 31, "gpus": 0, "scorer_cpus": 2}, "PACK"),  # scorers of a trial on CPUs may be elsewhere
    ],
)
def test_a_trial_and_its_scorers_are_on_one_machine_where_they_fit(asked, says):
    nodes = [{"CPU": 32}, {"CPU": 8, "GPU": 4}]
    if "PACK" in says:
        assert resolve_resources(Cluster(**asked), nodes, [1_000_000], 3).strategy == says
        return
    with pytest.raises(UserError) as error:
        resolve_resources(Cluster(**asked), nodes, [1_000_000], 3)
    assert str(error.value) == says


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"cpus": 0.0}, "--cpus 0.0 must be at least 0.01."),
        ({"scorers": -1}, "--scorers -1 must be at least 0."),
        ({"cpus": float("nan")}, "--cpus nan must be at least 0.01."),
        ({"gpus": 2}, "--gpus 2 is more than the one GPU that it would use; give 1 or a share of it."),
        (
            {"storage": "s3://key:secret@bucket/x", "tensorboard": True},
            "--tensorboard needs a folder, not --storage 's3://bucket/x'; leave it out, and 'gd-ray log' writes",
        ),
        ({"data": ("cifar100",)}, "--data: expected name=folder, got 'cifar100'."),
        ({"stream": ("a=1", "a=2")}, "--stream gives 'a' both '1' and '2'; keep one of them."),
    ],
)
def test_values_that_cannot_work_are_refused(asked, says):
    with pytest.raises(UserError) as error:
        Cluster(**asked).check()
    assert says in str(error.value)


def test_folders_by_name():
    assert parse_folders(("a=/x", "b=s3://y=z", "a=/x"), "--data") == {"a": "/x", "b": "s3://y=z"}


def test_short_windows_are_scored_by_the_trial_itself_unless_asked_otherwise():
    resources = resolve_resources(Cluster(), [{"CPU": 2}], [1_000_000], 3)
    assert resources.scorers_for(1_000_000) == resources.scorers_for(10_000) == 1
    assert resources.scorers_for(9_999) == 0
    assert resolve_resources(Cluster(scorers=2), [{"CPU": 2}], [1_000_000], 3).scorers_for(200) == 2
    assert resolve_resources(Cluster(scorers=0), [{"CPU": 2}], [1_000_000], 3).scorers_for(1_000_000) == 0


def test_the_help_of_run_has_a_page_on_gpus():
    page = Cluster.__doc__.split("GPUs:")[1]
    for word in ("Sharing:", "nvidia-cuda-mps-control", "Precision:", "Determinism:", "GD_RAY_DETERMINISTIC=0"):
        assert word in page
    assert len([line for line in page.splitlines() if line.strip()]) <= 20


def test_switches_reach_other_machines(monkeypatch):
    monkeypatch.setenv("GD_RAY_CUDA_GRAPH", "0")
    assert switches()["GD_RAY_CUDA_GRAPH"] == "0"
    assert "PATH" not in switches()
