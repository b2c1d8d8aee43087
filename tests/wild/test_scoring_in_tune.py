"""Ray Data inside Ray Tune: two trials that hold all CPUs of a two-CPU Ray both score, and neither waits for ever."""

import os
import subprocess
import sys
import textwrap

SCRIPT = """
    import json, os, sys
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", RAY_DATA_EXECUTION_NO_PROGRESS_TIMEOUT_S="60")
    from ray import tune
    from gd_ray.data.glyphs import load_glyphs
    from gd_ray.trial import run_trial
    from gd_ray.wild.prepare import prepare
    from gd_ray.wild.on_ray import map_in_process, start_ray
    from gd_ray.wild.ray_scoring import ScorerPool, ray_scorer
    from gd_ray.wild.stream import WildStream
    from tiny import tiny_spec

    folder = sys.argv[1]
    prepare("glyphs:200", folder + "/stream", shard_rows=64, group_rows=16, mapper=map_in_process)
    pool = ScorerPool(scorers=1, cpus=0.5)

    def positions(result):
        return [stage.samples.positions.tolist() for stage in result.stages]

    def trial(config):
        import torch
        torch.set_num_threads(1)
        spec = tiny_spec(seed=config["seed"])
        stream = WildStream.open(folder + "/stream")
        result = run_trial(spec, load_glyphs(8, 4), stream, scorer=ray_scorer(pool))
        tune.report({"positions": json.dumps(positions(result)), "acc": result.acc})

    start_ray(num_cpus=2)
    tuner = tune.Tuner(
        tune.with_resources(trial, tune.PlacementGroupFactory([{"CPU": 0.5}, *pool.bundles()])),
        param_space={"seed": tune.grid_search([0, 1])},
        run_config=tune.RunConfig(storage_path=folder, name="run", verbose=0),
    )
    found = {r.config["seed"]: r.metrics for r in tuner.fit()}
    import torch
    torch.set_num_threads(1)
    for seed in (0, 1):
        alone = run_trial(tiny_spec(seed=seed), load_glyphs(8, 4), WildStream.open(folder + "/stream"))
        assert json.loads(found[seed]["positions"]) == positions(alone)
        assert found[seed]["acc"] == alone.acc
    print("both trials finished")
"""


def test_two_trials_on_two_cpus_score_without_deadlock_and_give_their_own_results(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(__file__))},  # for `tiny`
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "both trials finished" in done.stdout
