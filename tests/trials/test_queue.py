"""The order of jobs: first models, trials as soon as theirs is there, and what other runs hold."""

from ray.tune.search import Searcher

from tests.helpers.tiny import tiny_spec
from trials.queue import WAIT_S, Entry, JobQueue
from trials.registry import DataLocations
from trials.worker import Job


def entry(seed, *, method="baseline", first_stage=False, needs_model=False):
    job = Job(tiny_spec(method=method, seed=seed), "results", "storage", DataLocations(), "run")
    return Entry(job, first_stage, needs_model)


def two_seeds():
    """Two first models, two trials that need each, and one that resumes its own checkpoint."""
    return [
        entry(1, first_stage=True),
        entry(2, first_stage=True),
        *(entry(seed, method=method, needs_model=True) for seed in (1, 2) for method in ("baseline", "gd")),
        entry(1, method="lwf"),
    ]


def ask(queue, number):
    """Return the next job in a few words, after Tune's id for it."""
    config = queue.suggest(str(number))
    if not isinstance(config, dict):
        return config
    return f"{'model' if config['first_stage'] else config['method']} {config['seed']} {config['wait_s']:g}"


def test_a_trial_starts_as_soon_as_its_own_first_model_is_there():
    queue = JobQueue(two_seeds())
    assert [ask(queue, number) for number in range(4)] == ["model 1 0", "model 2 0", "lwf 1 0", None]
    queue.on_trial_complete("1", {"finished": 1})
    assert [ask(queue, number) for number in range(4, 7)] == ["baseline 2 0", "gd 2 0", None]
    queue.on_trial_complete("0", error=True)  # its trials train it themselves
    assert [ask(queue, number) for number in range(7, 10)] == ["baseline 1 0", "gd 1 0", None]
    for number in (2, 4, 5, 7, 8):
        assert ask(queue, "none") is None
        queue.on_trial_complete(str(number), {"finished": 1})
    assert queue.left() == []
    assert ask(queue, 10) == Searcher.FINISHED


def test_a_job_that_another_run_holds_comes_last_and_is_then_waited_for():
    queue = JobQueue([entry(seed) for seed in (1, 2, 3)])
    assert [ask(queue, number) for number in (1, 2)] == ["baseline 1 0", "baseline 2 0"]
    queue.on_trial_complete("1", {"held": 1})
    queue.on_trial_complete("2", {"held": 1})
    assert [ask(queue, number) for number in (3, 4)] == ["baseline 3 0", f"baseline 1 {WAIT_S:g}"]
    queue.on_trial_complete("4", {"held": 1})
    assert [ask(queue, number) for number in (5, 6)] == [f"baseline 2 {WAIT_S:g}", f"baseline 1 {WAIT_S:g}"]


def test_a_first_model_that_another_run_trains_is_waited_for_when_no_trial_can_start():
    queue = JobQueue(two_seeds()[:-1])
    assert [ask(queue, number) for number in (1, 2)] == ["model 1 0", "model 2 0"]
    queue.on_trial_complete("1", {"held": 1})
    assert ask(queue, 3) is None  # the other one will let trials start
    queue.on_trial_complete("2", {"finished": 1})
    assert [ask(queue, number) for number in (4, 5, 6)] == ["baseline 2 0", "gd 2 0", f"model 1 {WAIT_S:g}"]
    queue.on_trial_complete("6", {"finished": 1})
    assert ask(queue, 7) == "baseline 1 0"


def test_trials_of_a_refused_first_model_are_dropped_and_only_those():
    queue = JobQueue(two_seeds())
    ask(queue, 1)
    assert [job.spec.method.name for job in queue.drop(queue.running["1"].job.spec.first_model_id)] == [
        "baseline",
        "gd",
    ]
    queue.on_trial_complete("1", {"refused": "no"})
    assert [ask(queue, number) for number in (2, 3, 4)] == ["model 2 0", "lwf 1 0", None]


def test_a_job_that_lost_its_machine_runs_again():
    lost = []

    def take_lost():
        names = set(lost)
        lost.clear()
        return names

    entries = two_seeds()
    queue = JobQueue(entries, take_lost)
    assert ask(queue, 1) == "model 1 0"
    queue.on_trial_complete("1", error=True)
    lost.append(entries[0].name)
    assert [ask(queue, number) for number in (2, 3, 4, 5)] == ["model 1 0", "model 2 0", "lwf 1 0", None]


def test_ranks_count_first_models_and_trials_apart():
    entries = two_seeds()
    assert list(JobQueue(entries).ranks().values()) == [0, 1, 0, 1, 2, 3, 4]
    assert set(JobQueue(entries).ranks()) == {entry.name for entry in entries}
