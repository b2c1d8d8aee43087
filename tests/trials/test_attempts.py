"""When a failed trial is given up: Tune's rule, with a limit that moves."""

import pickle
from types import SimpleNamespace

import pytest
from ray.tune.experiment import Trial as TuneTrial

from gd_ray.failures import ExplainedError, OutageError, explain, is_outage
from trials import attempts
from trials.attempts import Attempts
from trials.interruption import RayDiedError


class Trial:
    """Tune's count: a running trial is started again while its failures are not more than its limit."""

    def __init__(self, folder, callback, retries):
        self.config, self.callback, self.max_failures, self.num_failures = {"job": "one"}, callback, retries, 0
        self.error_file, self.pickled_error_file = str(folder / "error.txt"), str(folder / "error.pkl")

    def fail(self, error):
        """Return whether the trial is started again."""
        self.num_failures += 1
        with open(self.error_file, "w") as text, open(self.pickled_error_file, "wb") as pickled:
            text.write(f"Failure # 1\n{type(error).__module__}.{type(error).__name__}: {error}\n")
            pickle.dump(error, pickled)
        again = self.num_failures <= self.max_failures
        (self.callback.on_trial_recover if again else self.callback.on_trial_error)(1, [], self)
        return again

    def finish(self, *stages):
        for stage in stages:
            self.callback.on_trial_result(1, [], self, {"stage": stage})


@pytest.fixture
def given_up():
    return []


@pytest.fixture
def trial(tmp_path, given_up):
    return Trial(tmp_path, Attempts(1, "CPU", lambda _, error: given_up.append(error)), retries=1)


LOST, BAD = OutageError("a machine was lost"), ExplainedError("it failed")


def test_a_finished_stage_sets_the_count_back_and_a_repeated_one_does_not(trial, given_up):
    assert trial.fail(BAD)
    trial.finish(1)
    assert trial.fail(BAD)
    trial.finish(1, 2)  # the first from the checkpoint
    assert trial.fail(BAD)
    trial.finish(1, 2)
    assert not trial.fail(BAD)
    assert given_up == ["it failed"]
    assert trial.callback.take_lost() == set()


def test_an_outage_does_not_count_but_not_for_ever(trial, given_up):
    for error in (LOST, BAD, LOST):
        trial.fail(error)
    assert trial.callback.take_lost() == {"one"}  # Tune had given up by its own count
    assert trial.callback.take_lost() == set()
    assert given_up == []
    trial.max_failures, trial.num_failures = 1, 0  # started by Tune anew
    assert all(trial.fail(LOST) for _ in range(attempts._OUTAGES - 2))
    assert trial.fail(LOST)  # one too many counts
    assert not trial.fail(LOST)
    assert given_up == ["a machine was lost"]


def test_a_trial_has_an_outage_before_it_ever_fails(tmp_path, given_up):
    trial = Trial(tmp_path, Attempts(0, "CPU", lambda _, error: given_up.append(error)), retries=0)
    assert not trial.fail(LOST)
    assert (trial.callback.take_lost(), given_up) == ({"one"}, [])


def test_which_errors_are_outages():
    from ray import exceptions
    from ray.data.exceptions import SystemException

    dead = exceptions.ActorDiedError()
    assert not is_outage(dead)  # its process died
    dead.error_msg = "The actor died unexpectedly.\nThe actor died because its node has died. Node Id: 1"
    unavailable = exceptions.ActorUnavailableError("no answer", None)
    for error in (dead, unavailable, exceptions.NodeDiedError("gone"), LOST):
        assert is_outage(error)
        assert is_outage(exceptions.RayTaskError("score", "long\ntraceback", error))
    gone = exceptions.ActorUnschedulableError("The node specified doesn't exist any more.")
    gone.__cause__ = SystemException()  # as Ray Data raises it
    assert is_outage(gone)
    assert explain(gone).startswith("ActorUnschedulableError: The actor is not schedulable: The node specified")
    for error in (BAD, ValueError("x"), exceptions.WorkerCrashedError(), exceptions.OutOfMemoryError("full")):
        assert not is_outage(error)


def test_a_run_without_any_machine_ends_in_a_sentence(trial, monkeypatch):
    now, nodes = [0.0], [{"CPU": 2.0}]
    monkeypatch.setattr(attempts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(attempts, "machines", lambda: nodes)
    callback = Attempts(1, "CPU", lambda *_: None)

    def wait(seconds):
        now[0] += seconds
        callback.on_step_begin(1, [])

    wait(1000)
    nodes[0] = {"memory": 1.0}  # a head without CPUs
    wait(300)
    nodes[0] = {"CPU": 2.0}
    wait(200)
    nodes[0] = {"memory": 1.0}
    wait(500)
    with pytest.raises(RayDiedError) as error:
        wait(200)
    assert str(error.value) == (
        "the cluster has had no machine with a CPU for 10 minutes; add one, then run the same command to resume."
    )


def test_a_finished_trial_leaves_little_in_the_memory_of_the_driver():
    trial = TuneTrial("trial", config={"job": "one"}, stub=True)
    for stage in (1, 2):
        trial.update_last_result({"stage": stage, "training_iteration": stage, "config": {"job": "one"}})
    assert trial.metric_analysis["stage"]["max"] == 2
    Attempts(1, "CPU", lambda *_: None).on_trial_complete(1, [trial], trial)
    assert (trial.metric_analysis, trial.metric_n_steps) == ({}, {})
    assert {"stage", "training_iteration"} <= trial.last_result.keys()  # which Tune reads once more
    assert "config" not in trial.last_result
