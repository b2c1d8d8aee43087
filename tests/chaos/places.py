"""Where a run happens: this machine, or two hosts in namespaces of their own; and disks that fill up or go away."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.chaos.processes import Process, descendants, is_spare, nothing_stays

SLURM_HOSTS = Path(__file__).parents[1] / "cluster" / "slurm-hosts"
HEAD = "10.77.0.2"
_FOR_ALL_USERS = "ray::_StatsActor", "ray::_AutoscalingCoordinatorActor", "ray::ActorLocationTracker"
"""Actors of Ray Data that a cluster keeps."""
OWN: set[int] = set()
"""Children whose exit codes their starters ask for."""


class Place:
    """This machine: a run starts a Ray of its own. What it writes is in `data`, where a disk may be mounted."""

    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.data.mkdir(parents=True)
        self.tmp = folder / "tmp"
        self.tmp.mkdir()
        self.ray = Path(tempfile.mkdtemp(prefix="gdc", dir="/tmp"))  # Ray's sockets need a short path
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        self.environment = {**kept, "PATH": path, "TMPDIR": str(self.tmp), "RAY_TMPDIR": str(self.ray)}
        self.environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # its usual 15 starves them

    def prepare(self) -> set[int]:
        """Make it ready for the next attempt; return the processes that this started."""
        return set()

    def stays(self, process: Process) -> bool:
        """Whether a process may outlive a run."""
        return nothing_stays(process)

    def close(self) -> None:
        shutil.rmtree(self.ray, ignore_errors=True)

    @property
    def path(self) -> Path:
        """Where the files of `data` are after the run."""
        return self.data


class SmallDisk(Place):
    """The results are on a disk of 32 MB."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        _mount("-t", "tmpfs", "-o", "size=32m", "none", self.data)

    def fill(self, left: int) -> None:
        """Leave some bytes free."""
        free = os.statvfs(self.data)
        with suppress(OSError), (self.data / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_bsize - left))

    def free(self) -> None:
        (self.data / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        super().close()
        subprocess.run(["umount", "-l", self.data], check=True)


class DistantDisk(Place):
    """The results are on a disk that can go away: an empty folder that nobody can write to is in its place."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "disk").mkdir()
        _mount("-t", "tmpfs", "-o", "ro", "none", self.data)
        self.come_back()

    def go_away(self) -> None:
        subprocess.run(["umount", "-l", self.data], check=True)

    def come_back(self) -> None:
        _mount("--bind", self.folder / "disk", self.data)

    @property
    def path(self) -> Path:
        return self.folder / "disk"

    def close(self) -> None:
        super().close()
        for _ in range(2):
            subprocess.run(["umount", "-l", self.data], check=True)


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


class TwoHosts(Place):
    """A Ray of two hosts, each with a network and processes of its own; the command runs on the first."""

    command = (str(SLURM_HOSTS), "on", "A")
    options = ("--address", f"{HEAD}:6379")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text("0123456789abcdef" * 4)
        (folder / "hosts").mkdir()
        self.environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
        self.environment["SLURM_HOSTS_DIR"] = str(folder / "hosts")
        self.rays: dict[str, subprocess.Popen[bytes]] = {}
        self.prepare()

    def prepare(self) -> set[int]:
        """Start hosts that are down, and Ray on each that has none; a new head needs a new Ray on the other host."""
        before = descendants()
        if not self._has_ray("A"):
            for host in self.rays:
                with suppress(subprocess.CalledProcessError):  # down already
                    self.kill(host)
            self.rays.clear()
        self._hosts("start")
        if "A" not in self.rays:
            self._start_ray("A", "--head", f"--node-ip-address={HEAD}", "--port=6379", "--include-dashboard=false")
        if not self._has_ray("B"):
            self._start_ray("B", f"--address={HEAD}:6379", "--node-ip-address=10.77.0.3")
        return {process.pid for process in descendants()} - {process.pid for process in before}

    def _hosts(self, *words: str) -> None:
        subprocess.run([SLURM_HOSTS, *words], env=self.environment, check=True, timeout=120, capture_output=True)

    def _has_ray(self, host: str) -> bool:
        return host in self.rays and self.rays[host].poll() is None

    def _start_ray(self, host: str, *words: str) -> None:
        own = {"RAY_TMPDIR": str(self.ray / host)}  # each host has a disk of its own
        command = [SLURM_HOSTS, "on", host, "ray", "start", "--block", "--num-cpus=2", *words]
        out = self.folder / f"ray-{host}.out"
        with out.open("wb") as file:
            options = {"stdout": file, "stderr": file, "start_new_session": True}
            self.rays[host] = subprocess.Popen(command, env={**self.environment, **own}, **options)
        OWN.add(self.rays[host].pid)
        deadline = time.monotonic() + 90
        while "Ray runtime started" not in out.read_text():
            if not self._has_ray(host) or time.monotonic() > deadline:
                raise RuntimeError(f"Ray on host {host} does not start: {out.read_text()[-2000:]}")
            time.sleep(0.3)

    def stays(self, process: Process) -> bool:
        return process.name.startswith(_FOR_ALL_USERS) or is_spare(process)

    def kill(self, host: str) -> None:
        self._hosts("kill", host)

    def cut(self, host: str) -> None:
        self._hosts("cut", host)

    def heal(self, host: str) -> None:
        self._hosts("heal", host)

    def close(self) -> None:
        self._hosts("stop")
        for ray in self.rays.values():
            ray.wait(timeout=60)
        super().close()
