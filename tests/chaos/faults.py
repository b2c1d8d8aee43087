"""Faults: each hits a run that is under way, and ends what it did to disks, networks and stopped processes."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

from tests.chaos.places import DistantDisk, Place, SmallDisk, TwoHosts
from tests.chaos.plan import Run
from tests.chaos.processes import Process, descendants, kill

Driver = subprocess.Popen[bytes]
PLACES: dict[str, type[Place]] = {"disk": SmallDisk, "storage": DistantDisk, "host": TwoHosts, "network": TwoHosts}
_SIGNALS = {"driver-kill": signal.SIGKILL, "driver-term": signal.SIGTERM, "driver-int": signal.SIGINT}
_ROLES = ("trial", "scorer", "raylet", "gcs")


def inject(run: Run, driver: Driver, place: Place) -> str | None:
    """Inject the fault, wait until it is over, and return what it hit; None if the command ended before."""
    if run.fault in _SIGNALS:
        return _signal_driver(run, driver)
    if run.fault in _ROLES:
        victim = _wait_for(run, driver, lambda process: process.role == run.fault)
        if victim:
            kill(victim)
        return victim and victim.name
    if run.fault == "stop":
        return _stop(run, driver)
    if isinstance(place, SmallDisk):
        place.fill(left=int(run.victim * 50_000))
        _pass(run.seconds, driver)
        place.free()
        return f"disk full for {run.seconds:.0f} s"
    if isinstance(place, DistantDisk):
        place.go_away()
        time.sleep(run.seconds)
        place.come_back()
        return f"disk away for {run.seconds:.0f} s"
    if isinstance(place, TwoHosts):
        return _host(run, place)
    raise ValueError(run.fault)


def _signal_driver(run: Run, driver: Driver) -> str:
    """Send the signal to the command alone, as a batch system may, or to its group, as a terminal does."""
    number, whole = _SIGNALS[run.fault], run.victim < 0.5
    (os.killpg if whole else os.kill)(driver.pid, number)
    return f"{number.name} to the {'group of the ' if whole else ''}command"


def _stop(run: Run, driver: Driver) -> str | None:
    """Stop the command or one of its processes for some time."""
    role = ("driver", *_ROLES)[int(run.victim * 5)]
    if role == "driver":
        victim: Process | None = Process(driver.pid, os.getpid(), 0, "", "command")
    else:
        victim = _wait_for(run, driver, lambda process: process.role == role)
    if victim is None:
        return None
    try:
        os.kill(victim.pid, signal.SIGSTOP)
        _pass(run.seconds, driver)
        os.kill(victim.pid, signal.SIGCONT)
    except ProcessLookupError:
        pass  # it was killed meanwhile
    return f"{victim.name} stopped for {run.seconds:.0f} s"


def _host(run: Run, place: TwoHosts) -> str:
    if run.fault == "host":
        host = "AB"[int(run.victim * 2)]
        place.kill(host)
        return f"host {host} ({'with the command' if host == 'A' else 'without the command'}) killed"
    place.cut("B")
    time.sleep(run.seconds)
    place.heal("B")
    return f"network cut for {run.seconds:.0f} s"


def _wait_for(run: Run, driver: Driver, suits: Callable[[Process], bool]) -> Process | None:
    """Wait until a suitable process exists; several are chosen from by the plan."""
    while driver.poll() is None:
        if found := sorted((p for p in descendants(driver.pid) if suits(p)), key=lambda process: process.pid):
            return found[int(run.victim * len(found))]
        time.sleep(0.3)
    return None


def _pass(seconds: float, driver: Driver) -> None:
    """Wait while the fault lasts, but no longer than the command."""
    deadline = time.monotonic() + seconds
    while driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
