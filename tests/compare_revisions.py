"""Compare this checkout with an earlier revision bit by bit: every method that both have, both conventions, on glyphs.

    python tests/compare_revisions.py REVISION [METHOD ...]

checks REVISION out beside this one, runs the same tiny trials with both, and compares hits, confusions, sampled stream
positions, coresets and final weights.
"""

import pickle
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEC = {
    "dataset": "glyphs",
    "stream": "glyphs",
    "num_classes": 6,
    "task_size": 2,
    "test_per_class": 4,
    "batch_size": 8,
    "epoch_factor": 0.01,
}


def run(out: str, methods: list[str]) -> None:
    """Run the trials with the revision that is first on the path and write what they give."""
    import numpy as np
    import torch

    from gd_ray.data.glyphs import load_glyphs
    from gd_ray.methods import METHODS
    from gd_ray.spec import TrialSpec
    from gd_ray.trial import run_trial
    from gd_ray.wild.stream import MemoryStream

    try:
        from gd_ray.sources.glyphs import wild_glyphs
    except ImportError:
        from gd_ray.data.glyphs import wild_glyphs
    torch.set_num_threads(1)
    names = {field.name for field in fields(TrialSpec)}
    network = {"network": "wrn-10-1"} if "network" in names else {"depth": 10, "width": 1}
    stream = MemoryStream(wild_glyphs(200), block=64)
    results = {}
    for method in filter(METHODS.__contains__, methods):
        for convention in ("paper", "released"):
            kept = []
            # A coreset with uneven quotas; but BiC holds a tenth of each class out of it.
            per_class, coreset, window = (12, 44, 80) if method.startswith("bic") else (8, 7, 60)
            sizes = {"train_per_class": per_class, "coreset_size": coreset, "window": window, **SPEC, **network}
            spec, data = TrialSpec(method=method, convention=convention, **sizes), load_glyphs(per_class, 4)
            result = run_trial(spec, data, stream, on_stage=lambda _, checkpoint, kept=kept: kept.append(checkpoint))
            weights = {name.removeprefix("backbone."): value.numpy() for name, value in kept[-1].weights.items()}
            results[method, convention] = {
                "hits": [stage.hits for stage in result.stages],
                "confusions": [stage.confusion for stage in result.stages],
                "positions": [stage.samples.positions for stage in result.stages],
                "losses": [stage.losses for stage in result.stages],
                "coresets": [np.sort(checkpoint.coreset) for checkpoint in kept],
                "weights": weights,
            }
    Path(out).write_bytes(pickle.dumps(results))


def equal(a: object, b: object) -> bool:
    import numpy as np

    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b


def main(revision: str, methods: list[str]) -> int:
    sys.path.insert(0, str(ROOT))
    from gd_ray.methods import METHODS

    methods = methods or sorted(METHODS)
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder, "before")
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "-q", before, revision], check=True)
        try:
            outs = []
            for name, root in (("before", before), ("now", ROOT)):
                outs.append(Path(folder, f"{name}.pickle"))
                command = [sys.executable, __file__, "--run", str(outs[-1]), *methods]
                subprocess.run(command, check=True, cwd=folder, env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"})
            old, new = (pickle.loads(out.read_bytes()) for out in outs)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", before], check=True)
    different = 0
    if unknown := {method for method, _ in new} - {method for method, _ in old}:
        print(f"{revision} does not have {', '.join(sorted(unknown))}")
    for key, values in old.items():
        wrong = [name for name in values if not equal(values[name], new[key][name])]
        different += bool(wrong)
        print(f"{key[0]:18} {key[1]:9} {'DIFFERS in ' + ', '.join(wrong) if wrong else 'equal'}")
    print(f"{len(old) - different} of {len(old)} trials equal bit for bit ({revision} and this checkout)")
    return 1 if different else 0


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main(sys.argv[1], sys.argv[2:]))
