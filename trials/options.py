"""Where trials run and what each gets, as the command line takes it."""

from dataclasses import dataclass

import tyro

from gd_ray.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where trials run and what each gets."""

    address: str | None = None
    """Of a running Ray cluster, such as 'auto' or ray://host:10001; a Ray of its own on this machine without it."""
    storage: str = "storage"
    """Shared folder for checkpoints, first models and logs."""
    cpus: float = 0.5
    """CPUs of a trial; torch uses as many threads (at least one)."""
    gpus: float = 0.0
    """GPUs of a trial; a fraction lets several share one."""
    scorers: int = 1
    """Ray Data actors that score the stream for a trial."""
    scorer_cpus: float = 0.5
    """CPUs of a scorer."""
    scorer_gpus: float = 0.0
    """GPUs of a scorer."""
    retries: int = 2
    """Times that a failed trial is started again from its last stage."""
    data: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Where a data set lies, as name=folder; data/NAME without it; may be repeated."""
    stream: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Where a prepared stream lies, as name=folder; streams/NAME without it; may be repeated."""

    def check(self) -> None:
        """Refuses values that cannot work. Not done on construction: the command line would wrap the sentence."""
        for name, low in {
            "cpus": 0.01,
            "gpus": 0,
            "scorers": 1,
            "scorer_cpus": 0.01,
            "scorer_gpus": 0,
            "retries": 0,
        }.items():
            if getattr(self, name) < low:
                option = name.replace("_", "-")
                raise UserError(f"--{option} {getattr(self, name)} must be at least {low}.")
        named(self.data, "--data")
        named(self.stream, "--stream")


def named(entries: tuple[str, ...], option: str) -> dict[str, str]:
    """Entries of the form name=folder."""
    for entry in entries:
        name, equals, folder = entry.partition("=")
        if not (name and equals and folder):
            raise UserError(f"{option} {entry!r} is not of the form name=folder; write it so.")
    return dict(entry.split("=", 1) for entry in entries)
