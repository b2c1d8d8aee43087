"""Where trials run and what each gets, as the command line takes it."""

import math
from collections.abc import Collection
from dataclasses import dataclass

import tyro

from gd_ray.errors import UserError

_LEAST = {"cpus": 0.01, "gpus": 0, "scorers": 0, "scorer_cpus": 0.01, "scorer_gpus": 0, "retries": 0}
_POOL_PAYS = 10_000
"""Images in a window from which on a scorer pays: it takes some seconds to start, at every stage."""
_ROUNDING = 1e-6
_GPU_SHARE = 0.25
"""Of a trial where there are GPUs: a WRN-16-2 and a coreset do not fill one."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where trials run and what each gets."""

    address: str | None = None
    """Of a running Ray cluster, such as 'auto' or host:6379. Without it, the cluster that RAY_ADDRESS names, or a Ray
    of its own on this machine."""
    storage: str = "storage"
    """Folder for checkpoints, first models and logs; on several machines one that all of them share."""
    cpus: float | None = None
    """CPUs of a trial; torch uses as many threads (at least one), and a trial with neither GPU nor scorer has at least
    one CPU. Without it, half a CPU for the trial and half for its scorer, which take turns; less where a machine's GPUs
    carry more trials than it has CPUs."""
    gpus: float | None = None
    """GPUs of a trial; a fraction lets several share one. Without it, a quarter where the cluster has GPUs."""
    scorers: int | None = None
    """Ray Data actors that score the stream for a trial; with 0 it scores its window itself. Without it, one, but
    none for windows below 10,000 images: the actor takes some seconds to start, and takes turns with its trial."""
    scorer_cpus: float | None = None
    """CPUs of a scorer; without it, as many as the trial's."""
    scorer_gpus: float | None = None
    """GPUs of a scorer; without it, as many as the trial's."""
    retries: int = 2
    """Times that a failed trial is started again from its last stage."""
    tensorboard: bool = False
    """Also write TensorBoard scalars of every stage, under STORAGE/tune."""
    data: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Where a data set lies, as name=folder; data/NAME without it; may be repeated."""
    stream: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Where a prepared stream lies, as name=folder; streams/NAME without it; may be repeated."""

    def check(self) -> None:
        """Refuses values that cannot work. Not done on construction: the command line would wrap the sentence."""
        for name, low in _LEAST.items():
            value, option = getattr(self, name), f"--{name.replace('_', '-')}"
            if value is not None and not value >= low:
                raise UserError(f"{option} {value} must be at least {low}.")
            if value == math.inf:
                raise UserError(f"{option} {value} is more than any machine has; lower it.")
            if name.endswith("gpus") and value is not None and value > 1 and value != int(value):
                raise UserError(f"{option} {value} must be whole above 1; give a fraction of one GPU, or whole ones.")
        if "://" in self.storage:
            raise UserError(f"--storage {self.storage!r} must be a folder; mount shared storage and name its path.")
        named(self.data, "--data")
        named(self.stream, "--stream")


@dataclass(frozen=True)
class Share:
    """What a trial and each of its scorers get of a cluster."""

    cpus: float
    gpus: float
    scorers: int | None
    """As asked for; None leaves it to the window of each trial."""
    scorer_cpus: float
    scorer_gpus: float

    def scorers_for(self, window: int) -> int:
        """Scorers of a trial with windows of that many images."""
        return _scorers(self.scorers, window)


def _scorers(asked: int | None, window: int) -> int:
    return asked if asked is not None else int(window >= _POOL_PAYS)


def fitted(cluster: Cluster, nodes: list[dict[str, float]], windows: Collection[int]) -> Share:
    """What was asked for, completed to fit the machines of a cluster; a sentence where it cannot fit.

    `windows` are those of the trials that learn with external data: the others have no scorers.
    """
    most_gpus = max(node.get("GPU", 0.0) for node in nodes)
    gpus = cluster.gpus if cluster.gpus is not None else (_GPU_SHARE if most_gpus else 0.0)
    scorers = max((_scorers(cluster.scorers, window) for window in windows), default=0)
    scorer_gpus = cluster.scorer_gpus if cluster.scorer_gpus is not None else gpus
    cpus = cluster.cpus if cluster.cpus is not None else _cpu_share(nodes, gpus + scorers * scorer_gpus)
    scorer_cpus = cluster.scorer_cpus if cluster.scorer_cpus is not None else cpus
    share = Share(cpus, gpus, cluster.scorers, scorer_cpus, scorer_gpus)
    for kind, own, scorer in (("GPU", gpus, scorer_gpus), ("CPU", cpus, scorer_cpus)):
        largest = max(node.get(kind, 0.0) for node in nodes)
        total = sum(node.get(kind, 0.0) for node in nodes)
        wanted, option = own + scorers * scorer, f"--{kind.lower()}s"
        if scorers and wanted > total:
            raise UserError(
                f"{option} and --scorer-{kind.lower()}s ask for {wanted:g} {kind}s for a trial and its scorers, but "
                f"the cluster has {total:g}; lower them, or let trials score for themselves (--scorers 0)."
            )
        most = max(own, scorer if scorers else 0.0)
        if most > largest:
            raise UserError(f"{option} {most:g} is more than the {largest:g} of the largest machine; lower it.")
    if not _fits(share, scorers, nodes):
        raise UserError(
            f"--cpus {cpus:g} with --gpus {gpus:g}, and {scorers} scorers of {scorer_cpus:g} CPUs and {scorer_gpus:g} "
            f"GPUs each, do not fit on the machines of the cluster together; lower them."
        )
    return share


def _fits(share: Share, scorers: int, nodes: list[dict[str, float]]) -> bool:
    """Whether one machine has room for the trial, and all of them for its scorers besides; a GPU is one piece."""
    for place in range(len(nodes)):
        left = [(node.get("CPU", 0.0), [1.0] * int(node.get("GPU", 0.0))) for node in nodes]
        cpus, devices = left[place]
        if not _number_that_fit(cpus, devices, share.cpus, share.gpus):
            continue
        whole = int(share.gpus)
        devices = [1 - (share.gpus - whole), *devices[whole + 1 :]] if share.gpus != whole else devices[whole:]
        left[place] = cpus - share.cpus, devices
        if sum(_number_that_fit(*room, share.scorer_cpus, share.scorer_gpus) for room in left) >= scorers:
            return True
    return False


def _number_that_fit(cpus: float, devices: list[float], each_cpus: float, each_gpus: float) -> int:
    by_cpus = int(cpus / each_cpus + _ROUNDING)
    if not each_gpus:
        return by_cpus
    if each_gpus > 1:
        return min(by_cpus, int(sum(device == 1 for device in devices) / each_gpus))
    return min(by_cpus, sum(int(device / each_gpus + _ROUNDING) for device in devices))


def _cpu_share(nodes: list[dict[str, float]], gpus: float) -> float:
    """Half a CPU, or less where the GPUs of a machine carry more trials than it has CPUs."""
    if not gpus:
        return 0.5
    per_trial = [node.get("CPU", 0.0) * gpus / node["GPU"] for node in nodes if node.get("GPU")]
    return max(0.05, min([0.5, *(share / 2 for share in per_trial)]))


def named(entries: tuple[str, ...], option: str) -> dict[str, str]:
    """Entries of the form name=folder."""
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, folder = entry.partition("=")
        if not (name and equals and folder):
            raise UserError(f"{option} {entry!r} is not of the form name=folder; write it so.")
        if found.setdefault(name, folder) != folder:
            raise UserError(f"{option} places {name!r} in both {found[name]!r} and {folder!r}; keep one of them.")
    return found
