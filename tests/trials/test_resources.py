import pytest

from gd_ray.errors import UserError
from trials.resources import Cluster, TrialResources, parse_folders, resolve_resources


@pytest.mark.parametrize(
    ("asked", "nodes", "resources"),
    [
        (
            {},
            [{"CPU": 2}],
            TrialResources(0.5, 0, None, 0.5, 0),
        ),  # a core for each trial and its scorer, which take turns
        ({}, [{"CPU": 64, "GPU": 8}] * 2, TrialResources(0.5, 0.25, None, 0.5, 0.25)),
        ({}, [{"CPU": 4, "GPU": 4}], TrialResources(0.25, 0.25, None, 0.25, 0.25)),  # eight trials share four CPUs
        ({}, [{"CPU": 8}, {"CPU": 16, "GPU": 1}], TrialResources(0.5, 0.25, None, 0.5, 0.25)),
        ({"gpus": 0}, [{"CPU": 4, "GPU": 4}], TrialResources(0.5, 0, None, 0.5, 0)),
        ({"gpus": 1, "scorers": 4, "cpus": 2}, [{"CPU": 64, "GPU": 8}], TrialResources(2, 1, 4, 2, 1)),
        (
            {"gpus": 1, "scorer_gpus": 0.5, "scorer_cpus": 1},
            [{"CPU": 64, "GPU": 8}],
            TrialResources(0.5, 1, None, 1, 0.5),
        ),
    ],
)
def test_defaults_fit_what_the_cluster_has(asked, nodes, resources):
    assert resolve_resources(Cluster(**asked), nodes, [1_000_000]) == resources


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"gpus": 1}, "--gpus and --scorer-gpus ask for 2 GPUs for a trial and its scorers, but the cluster has 0"),
        ({"cpus": 2}, "--cpus and --scorer-cpus ask for 4 CPUs for a trial and its scorers, but the cluster has 3"),
        ({"cpus": 2, "scorer_cpus": 0.5}, "--cpus 2 is more than the 1.5 of the largest machine; lower it."),
    ],
)
def test_what_does_not_fit_is_refused(asked, says):
    with pytest.raises(UserError) as error:
        resolve_resources(Cluster(**asked), [{"CPU": 1.5}, {"CPU": 1.5}], [1_000_000])
    assert says in str(error.value)


@pytest.mark.parametrize("windows", [[], [9_999]])
def test_trials_without_scorers_may_take_all_that_there_is(windows):
    """They learn without external data, or score windows so small that no scorer pays."""
    assert resolve_resources(Cluster(gpus=1), [{"CPU": 2, "GPU": 1}], windows).gpus == 1
    assert resolve_resources(Cluster(cpus=2), [{"CPU": 2}], windows).cpus == 2
    with pytest.raises(UserError, match="--cpus 3 is more than the 2 of the largest machine; lower it"):
        resolve_resources(Cluster(cpus=3), [{"CPU": 2}], windows)
    if windows:
        with pytest.raises(UserError, match="ask for 4 CPUs for a trial and its scorers"):
            resolve_resources(Cluster(cpus=2, scorers=1), [{"CPU": 2}], windows)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        # The machine with the GPUs has too few CPUs, the one with the CPUs no GPU.
        (
            {"cpus": 16, "gpus": 1, "scorers": 0},
            "--cpus 16 with --gpus 1 is more than any one machine has; lower them.",
        ),
        ({"cpus": 8, "gpus": 1, "scorers": 0}, None),
        (
            {"cpus": 8, "gpus": 0, "scorers": 1, "scorer_cpus": 9, "scorer_gpus": 1},
            "--scorer-cpus 9 with --scorer-gpus 1 is more than any one machine has; lower them.",
        ),
    ],
)
def test_a_trial_and_a_scorer_must_each_fit_on_one_machine(asked, says):
    nodes = [{"CPU": 32}, {"CPU": 8, "GPU": 4}]
    if says is None:
        resolve_resources(Cluster(**asked), nodes, [1_000_000])
        return
    with pytest.raises(UserError) as error:
        resolve_resources(Cluster(**asked), nodes, [1_000_000])
    assert str(error.value) == says


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"cpus": 0.0}, "--cpus 0.0 must be at least 0.01."),
        ({"scorers": -1}, "--scorers -1 must be at least 0."),
        ({"cpus": float("nan")}, "--cpus nan must be at least 0.01."),
        ({"gpus": 1.5}, "--gpus 1.5 must be whole above 1; give a fraction of one GPU, or whole ones."),
        ({"storage": "s3://bucket/x"}, "--storage 's3://bucket/x' must be a folder"),
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
    resources = resolve_resources(Cluster(), [{"CPU": 2}], [1_000_000])
    assert resources.scorers_for(1_000_000) == resources.scorers_for(10_000) == 1
    assert resources.scorers_for(9_999) == 0
    assert resolve_resources(Cluster(scorers=2), [{"CPU": 2}], [1_000_000]).scorers_for(200) == 2
    assert resolve_resources(Cluster(scorers=0), [{"CPU": 2}], [1_000_000]).scorers_for(1_000_000) == 0
