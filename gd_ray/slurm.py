"""What a Slurm job was given on this machine, for a Ray that it starts there."""

import atexit
import os
import secrets
import shutil
import tempfile
from pathlib import Path

_SHORT = 25
"""Length of a temporary folder's path with which those of Ray's sockets stay below the limit of 107 bytes."""


def in_slurm() -> bool:
    """Return whether this process belongs to a Slurm job, on a machine that the job was given."""
    return "SLURM_CPUS_ON_NODE" in os.environ


def slurm_options() -> dict[str, int]:
    """Return the CPUs and GPUs of this Slurm task: Ray would take the whole machine. Nothing outside Slurm.

    Jobs on one machine, or in one home folder, would also share Ray's temporary folder and its token. Each gets its
    own, with a path short enough for sockets; both are removed at the end.
    """
    if not in_slurm():
        return {}
    if not {"RAY_TMPDIR", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        parent = tempfile.gettempdir()
        folder = Path(tempfile.mkdtemp(prefix="gd", dir=parent if len(parent) <= _SHORT else "/tmp"))  # mode 0700
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        os.environ.update(RAY_TMPDIR=str(folder), RAY_AUTH_TOKEN_PATH=str(token))
        atexit.register(_stop_and_remove, folder)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    cpus = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ["SLURM_CPUS_ON_NODE"]
    return {"num_cpus": int(cpus), "num_gpus": sum(gpu not in ("", "-1", "NoDevFiles") for gpu in visible)}


def _stop_and_remove(folder: Path) -> None:
    import ray

    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
