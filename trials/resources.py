"""Where trials run and the resources of each, as the command line takes them."""

import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import tyro

from gd_ray.errors import UserError
from gd_ray.slurm import in_slurm
from gd_ray.storage import is_remote, without_credentials

_LEAST = {"cpus": 0.01, "gpus": 0, "scorers": 0, "scorer_cpus": 0.01, "retries": 0}
_POOL_PAYS = 10_000
"""Images in a window from which a scorer pays: it takes some seconds to start, at every stage."""
_TOKEN = 0.01
"""Share of a CPU that the scorer of a trial on a GPU reserves: they take turns."""

KeepModels = Literal["last", "all", "none"]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where trials run and the resources of each.

    GPUs: Ray finds them. A trial uses one, or a share: a whole GPU while there are as many GPUs as trials, then halves,
    then quarters; --gpus sets the share, --gpus 0 trains on CPUs. A GPU that torch cannot use ends the run.

    Sharing: a share is a promise, not a limit; processes on one GPU divide its time and memory (about 1 GB a trial,
    computed, not measured). 'nvidia-cuda-mps-control -d', started on each machine before 'ray start', lets their
    kernels run side by side; then a fault of one may end the others, which --retries covers. Scorers use the GPU of
    their trial, which waits while they work. 'make bench-gpu' measures what sharing gains.

    Precision: --set precision=float32 is IEEE arithmetic on every device; tf32 (from Ampere on) and bfloat16 are
    faster, with ids of their own. Scoring and testing are always IEEE float32. NVIDIA_TF32_OVERRIDE must be unset.

    Determinism: the same trial is meant to give the same bytes on one kind of GPU. GD_RAY_DETERMINISTIC=0 allows faster
    algorithms that do not repeat; GD_RAY_CUDA_GRAPH=0 launches kernels one by one; GD_RAY_COMPILE=1 augments in
    few compiled kernels (torch.compile; last bits differ). Rows of results name GPU, driver, cuDNN and arithmetic.
    """

    address: str | None = None
    """Of a running Ray cluster, such as 'auto' or host:6379. Without it, the cluster that RAY_ADDRESS names, or a Ray
    of its own on this machine."""
    storage: str = "storage"
    """Folder for checkpoints, first models and logs, on several machines one that all of them share; or an address
    such as s3://bucket/storage, also with options, as in s3://bucket/storage?region=eu-west-1 or ?endpoint_override=
    host:9000&scheme=http. Credentials are those of each machine (AWS_ACCESS_KEY_ID and others, ~/.aws, its role)."""
    cpus: float | None = None
    """CPUs of a trial; torch uses as many threads (at least one), and a trial with neither GPU nor scorer has at least
    one CPU. Without it, half a CPU for the trial and half for its scorer, which take turns; on a GPU one for both,
    less where a machine's GPUs carry more trials than it has CPUs."""
    gpus: float | None = None
    """Share of a GPU for a trial and its scorers, at most 1; 0 trains on CPUs. Without it, a whole GPU while there are
    as many GPUs as trials, then a half, then a quarter."""
    scorers: int | None = None
    """Ray Data actors that score the stream for a trial; with 0 it scores its window itself. Without it, one, but
    none for windows below 10,000 images: the actor takes some seconds to start, and takes turns with its trial."""
    scorer_cpus: float | None = None
    """CPUs of a scorer; without it, as many as the trial's, or with a GPU, which is the trial's, a hundredth of one."""
    retries: int = 2
    """Times that a trial is started again in the same stage: a finished stage sets the count back, and the loss
    of a machine does not count, nor that of the storage for less than ten minutes."""
    keep_models: KeepModels = "last"
    """Models that stay under RESULTS/models for 'gd-ray export': of the last stage, of all stages, or none; of a
    WRN-16-2 each takes 2.8 MB."""
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
            if name.endswith("gpus") and value is not None and value > 1:
                raise UserError(
                    f"{option} {value:g} is more than the one GPU that it would use; give 1 or a share of it."
                )
        if self.tensorboard and is_remote(self.storage):
            raise UserError(
                f"--tensorboard needs a folder, not --storage {without_credentials(self.storage)!r}; leave it out, and "
                f"'gd-ray log' writes the scalars of finished trials."
            )
        parse_folders(self.data, "--data")
        parse_folders(self.stream, "--stream")


@dataclass(frozen=True)
class TrialResources:
    """Resources of trials, or of first models, and of their scorers."""

    cpus: float
    gpus: float
    """Share of a GPU for a trial and its scorers."""
    scorers: int | None
    """As asked for; None leaves it to the window of each trial."""
    scorer_cpus: float
    doubled: int = 0
    """The first trials, which are the longest, hold twice the share: Ray fills a GPU before it uses the next one."""
    strategy: Literal["STRICT_PACK", "PACK"] = "STRICT_PACK"
    """A trial and its scorers are on one machine where they fit: else it would end with either of two."""

    @property
    def threads(self) -> int:
        return max(1, int(self.cpus))

    def scorers_for(self, window: int) -> int:
        """Return the number of scorers of a trial with windows of that many images."""
        return self.scorers if self.scorers is not None else int(window >= _POOL_PAYS)

    def share(self, rank: int) -> float:
        """Return the share of a GPU for the trial of that rank, with its scorers."""
        return self.gpus * (1 + (rank < self.doubled))

    def bundles(self, rank: int, scorers: int) -> list[dict[str, float]]:
        """Return what the trial of that rank reserves for itself, and for each of its scorers."""
        # A trial waits while its scorers work, and may then hold less than a CPU; one without scorers never waits.
        cpus = self.cpus if scorers or self.gpus else max(self.cpus, self.threads)
        return [_bundle(cpus, self.share(rank)), *[_bundle(self.scorer_cpus, 0)] * scorers]


def _bundle(cpus: float, gpus: float) -> dict[str, float]:
    return {"CPU": cpus, **({"GPU": round(gpus, 4)} if gpus else {})}


def resolve_resources(
    cluster: Cluster, nodes: list[dict[str, float]], windows: Collection[int], trials: int
) -> TrialResources:
    """Complete what was asked for with defaults; refuse what the machines of the cluster cannot give.

    `trials` is how many want to run at once; `windows` are those of the trials with external data: the others have no
    scorers.
    """
    scorers = max((TrialResources(0, 0, cluster.scorers, 0).scorers_for(window) for window in windows), default=0)
    total_gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    gpus, doubled = (cluster.gpus, 0) if cluster.gpus is not None else gpu_shares(trials, total_gpus)
    if gpus and not total_gpus:
        raise UserError(
            f"--gpus {gpus:g} needs a GPU, but Ray found none{_more('GPU')}{_hidden_gpus()}; use --gpus 0, or check "
            f"nvidia-smi on the machines of the cluster."
        )
    if gpus and 1 - int(1 / gpus + 1e-9) * gpus > 0.05:
        fit = int(1 / gpus)
        raise UserError(
            f"--gpus {gpus:g} leaves a part of every GPU unused: {fit} trials fit on one and {fit * total_gpus} on the "
            f"{total_gpus} of the cluster; give 1, 0.5 or 0.25, or leave it out to fit {trials} trials."
        )
    tokens = _TOKEN if gpus else 0.0
    cpus = cluster.cpus if cluster.cpus is not None else max(_TOKEN, _default_cpus(nodes, gpus) - scorers * tokens)
    scorer_cpus = cluster.scorer_cpus if cluster.scorer_cpus is not None else tokens or cpus
    wanted, total = cpus + scorers * scorer_cpus, sum(node.get("CPU", 0.0) for node in nodes)
    if scorers and wanted > total:
        raise UserError(
            f"--cpus and --scorer-cpus ask for {wanted:g} CPUs for a trial and its scorers, but the cluster has "
            f"{total:g}{_more('CPU')}; lower them, or let trials score for themselves (--scorers 0)."
        )
    most, largest = max(cpus, scorer_cpus if scorers else 0.0), max(node.get("CPU", 0.0) for node in nodes)
    if most > largest:
        raise UserError(f"--cpus {most:g} is more than the {largest:g} of the largest machine{_more('CPU')}; lower it.")
    on_one = any(node.get("CPU", 0.0) >= wanted and node.get("GPU", 0.0) >= gpus for node in nodes)
    if gpus and not on_one:
        more = f" and --scorer-cpus {scorer_cpus:g}" if scorers else ""
        raise UserError(f"--cpus {cpus:g}{more} with --gpus {gpus:g} is more than any one machine has; lower them.")
    return TrialResources(cpus, gpus, cluster.scorers, scorer_cpus, doubled, "STRICT_PACK" if on_one else "PACK")


def gpu_shares(trials: int, gpus: int) -> tuple[float, int]:
    """Return the share of a GPU for each trial, and how many trials get twice as much without a GPU too many.

    Whole GPUs while there are as many as trials, then halves, then quarters: a trial need not fill a fast GPU.
    """
    if not gpus:
        return 0.0, 0
    parts = next((parts for parts in (1, 2, 4) if trials <= parts * gpus), 4)
    return 1 / parts, max(0, parts * gpus - trials) if parts > 1 else 0


def _more(kind: str) -> str:
    return f" (ask Slurm for more with --{kind.lower()}s-per-task)" if in_slurm() else ""


def _hidden_gpus() -> str:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if hidden is None else f" (CUDA_VISIBLE_DEVICES is {hidden!r} here)"


def _default_cpus(nodes: list[dict[str, float]], gpus: float) -> float:
    """Return half a CPU: a trial and its scorer take turns. On a GPU one, which launches kernels all the time, or less
    where a machine's GPUs carry more trials than it has CPUs."""
    if not gpus:
        return 0.5
    per_trial = [node.get("CPU", 0.0) * gpus / node["GPU"] for node in nodes if node.get("GPU")]
    return max(0.05, math.floor(1e4 * min([1.0, *per_trial])) / 1e4)  # Ray counts ten-thousandths


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
