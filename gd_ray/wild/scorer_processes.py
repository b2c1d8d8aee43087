"""The scorers of a stage as processes of one machine: which of them died, and of what."""

import faulthandler
import os
import platform
import re
from pathlib import Path

from gd_ray.heartbeat import Progress, is_dead, this_host
from gd_ray.naming import counted
from gd_ray.temporary import remove_temporary_folders, use_folder


class ScorerProcesses:
    """A folder with a file for each process; Python writes there which fatal signal ends it, and where."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add_this_process(self) -> None:
        remove_temporary_folders()  # a machine without the trial has nobody else to delete those of earlier stages
        self._lock = use_folder(self.folder)
        # Stays open, for a signal handler cannot open a file.
        self._file = self.folder.joinpath(str(os.getpid())).open("w")
        faulthandler.enable(self._file, all_threads=False)

    def dead(self) -> list[int]:
        """Return the ids of those that do not exist any more."""
        known = sorted(int(path.name) for path in self.folder.glob("[0-9]*"))
        return [pid for pid in known if is_dead(Progress(host=this_host(), pid=pid))]

    def explain(self, dead: list[int]) -> str:
        """Return in one line how many died, where, and of what, as far as a process can know that."""
        faults = (_fault(self.folder.joinpath(str(pid)).read_text()) for pid in dead)
        unknown = "they exited without an error or a fatal signal, by a call of exit or killed for want of memory"
        reason = next(filter(None, faults), unknown)
        processes = ", ".join(map(str, dead))
        return (
            f"{counted(len(dead), 'scorer')} of the stream died on {platform.node()} (processes {processes}): "
            f"{reason}; Ray's logs worker-*-{dead[-1]}.* have what the last one printed"
        )


def _fault(dump: str) -> str | None:
    """Return the signal and the innermost line of Python from what faulthandler wrote; None if it wrote nothing."""
    signal = re.match(r"Fatal Python error: (.+)", dump)
    frame = re.search(r'File "(.+)", line (\d+)', dump)
    return signal and signal[1] + (f" at {frame[1]}:{frame[2]}" if frame else "")
