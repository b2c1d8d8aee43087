"""Runs that are killed, interrupted and repeated give the results of runs that are not."""

import os
import signal
import time

import pandas as pd

from gd_ray.checkpoint import Checkpoint
from tests.helpers.runs import Driver, alone, frame, specs_of_driver


def test_nothing_is_lost_to_a_killed_driver_to_ctrl_c_to_a_batch_system_or_to_two_runs_at_once(tmp_path):
    killed = Driver(tmp_path)
    killed.wait_for_checkpoint()
    os.killpg(killed.process.pid, signal.SIGKILL)
    killed.end()
    before = {
        checkpoint.trial_id: {stage.stage: stage.seconds["model"] for stage in checkpoint.results if stage.stage > 1}
        for checkpoint in map(Checkpoint.load, killed.checkpoints())
    }
    assert before

    interrupted, terminated = Driver(tmp_path), Driver(tmp_path)
    running = {interrupted: interrupted.interrupt, terminated: terminated.terminate}
    while running:  # at once: neither is left the time to finish its trials
        for driver in [driver for driver in running if driver.has_tune()]:
            running.pop(driver)()
        time.sleep(0.1)
    for driver in (interrupted, terminated):
        code, _, err = driver.end()
        assert (code, err) == (130, "gd-ray: stopping ...\ngd-ray: interrupted; run the same command to resume.\n")

    for code, out, err in [driver.end() for driver in (Driver(tmp_path), Driver(tmp_path))]:
        assert code == 0, err
        assert "ACC" in out
    found = frame(tmp_path / "results", "stages")
    pd.testing.assert_frame_equal(found, alone(specs_of_driver(), tmp_path / "storage"), check_exact=True)
    assert not list((tmp_path / "results").rglob("*.tmp"))
    assert not list((tmp_path / "storage" / "progress").iterdir())
    # Stages that were finished are not computed again: their times are those of the first run.
    timed = pd.read_parquet(tmp_path / "results" / "stages", columns=["trial_id", "stage", "seconds_model"]).set_index(
        ["trial_id", "stage"]
    )["seconds_model"]
    for trial_id, stages in before.items():
        for stage, seconds in stages.items():
            assert set(timed.loc[(trial_id, stage)]) == {seconds}
