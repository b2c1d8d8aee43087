"""Where trials run and the resources of each, as the command line takes them."""

import math
from collections.abc import Collection
from dataclasses import dataclass

import tyro

from gd_ray.errors import UserError

_LEAST = {"cpus": 0.01, "gpus": 0, "scorers": 0, "scorer_cpus": 0.01, "scorer_gpus": 0, "retries": 0}
_POOL_PAYS = 10_000
"""Images in a window from which a scorer pays: it takes some seconds to start, at every stage."""
_GPUS_PER_TRIAL = 0.25
"""Where there are GPUs: a WRN-16-2 and a coreset do not fill one."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where trials run and the resources of each."""

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
    """Folder of a data set, as name=folder; data/NAME without it; may be repeated."""
    stream: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Folder of a prepared stream, as name=folder; streams/NAME without it; may be repeated."""

    def check(self) -> None:
        """Refuse values that cannot work. Not done on construction: the command line would wrap the sentence."""
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
        parse_folders(self.data, "--data")
        parse_folders(self.stream, "--stream")


@dataclass(frozen=True)
class TrialResources:
    """Resources of a trial and of each of its scorers."""

    cpus: float
    gpus: float
    scorers: int | None
    """As asked for; None leaves it to the window of each trial."""
    scorer_cpus: float
    scorer_gpus: float

    def scorers_for(self, window: int) -> int:
        """Return the number of scorers of a trial with windows of that many images."""
        return self.scorers if self.scorers is not None else int(window >= _POOL_PAYS)


def resolve_resources(cluster: Cluster, nodes: list[dict[str, float]], windows: Collection[int]) -> TrialResources:
    """Complete what was asked for with defaults; refuse what the machines of the cluster cannot give.

    `windows` are those of the trials with external data: the others have no scorers.
    """
    gpus = cluster.gpus
    if gpus is None:
        gpus = _GPUS_PER_TRIAL if any(node.get("GPU") for node in nodes) else 0.0
    scorer_gpus = cluster.scorer_gpus if cluster.scorer_gpus is not None else gpus
    scorers = max((TrialResources(0, 0, cluster.scorers, 0, 0).scorers_for(window) for window in windows), default=0)
    cpus = cluster.cpus if cluster.cpus is not None else _default_cpus(nodes, gpus + scorers * scorer_gpus)
    scorer_cpus = cluster.scorer_cpus if cluster.scorer_cpus is not None else cpus
    for kind, own, scorer in (("GPU", gpus, scorer_gpus), ("CPU", cpus, scorer_cpus)):
        option = f"--{kind.lower()}s"
        wanted, total = own + scorers * scorer, sum(node.get(kind, 0.0) for node in nodes)
        if scorers and wanted > total:
            raise UserError(
                f"{option} and --scorer-{kind.lower()}s ask for {wanted:g} {kind}s for a trial and its "
                f"scorers, but the cluster has {total:g}; lower them, or let trials score for themselves (--scorers 0)."
            )
        most, largest = max(own, scorer if scorers else 0.0), max(node.get(kind, 0.0) for node in nodes)
        if most > largest:
            raise UserError(f"{option} {most:g} is more than the {largest:g} of the largest machine; lower it.")
    for what, cpu, gpu in (("--", cpus, gpus), ("--scorer-", scorer_cpus, scorer_gpus))[: 1 + bool(scorers)]:
        if not any(node.get("CPU", 0.0) >= cpu and node.get("GPU", 0.0) >= gpu for node in nodes):
            asked = f"{what}cpus {cpu:g} with {what}gpus {gpu:g}"
            raise UserError(f"{asked} is more than any one machine has; lower them.")
    return TrialResources(cpus, gpus, cluster.scorers, scorer_cpus, scorer_gpus)


def _default_cpus(nodes: list[dict[str, float]], gpus: float) -> float:
    """Return half a CPU, or less where the GPUs of a machine carry more trials than it has CPUs."""
    if not gpus:
        return 0.5
    per_trial = [node.get("CPU", 0.0) * gpus / node["GPU"] for node in nodes if node.get("GPU")]
    return max(0.05, min([0.5, *(cpus / 2 for cpus in per_trial)]))


def parse_folders(entries: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse entries of the form name=folder."""
    folders: dict[str, str] = {}
    for entry in entries:
        name, equals, folder = entry.partition("=")
        if not (name and equals and folder):
            raise UserError(f"{option}: expected name=folder, got {entry!r}.")
        if folders.setdefault(name, folder) != folder:
            raise UserError(f"{option} gives {name!r} both {folders[name]!r} and {folder!r}; keep one of them.")
    return folders
