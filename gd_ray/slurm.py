"""What a Slurm job was given on this machine, for a Ray that it starts there."""

import atexit
import fcntl
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

_SHORT = 25
"""Length of a temporary folder's path with which those of Ray's sockets stay below the limit of 107 bytes."""
_PREFIX, _LOCK = "gd", "gd-ray.lock"
_held: list[IO[str]] = []
"""Open locks of this process; the kernel releases them when it ends, however that may be."""


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
        folder = _own_folder(parent if len(parent) <= _SHORT else "/tmp")
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        os.environ.update(RAY_TMPDIR=str(folder), RAY_AUTH_TOKEN_PATH=str(token))
        atexit.register(_stop_and_remove, folder)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    cpus = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ["SLURM_CPUS_ON_NODE"]
    return {"num_cpus": int(cpus), "num_gpus": sum(gpu not in ("", "-1", "NoDevFiles") for gpu in visible)}


def _own_folder(parent: str) -> Path:
    """Make a folder that nobody else can read; remove those of processes that were killed."""
    for lock in Path(parent).glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), lock.open("r+") as file:  # another user's cannot be opened
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
            shutil.rmtree(lock.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))  # mode 0700
    new = folder / f"{_LOCK}-new"
    _held.append(new.open("w"))
    fcntl.flock(_held[-1], fcntl.LOCK_EX)
    new.rename(folder / _LOCK)  # none is ever seen unlocked before its process has ended
    return folder


def _stop_and_remove(folder: Path) -> None:
    import ray

    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
