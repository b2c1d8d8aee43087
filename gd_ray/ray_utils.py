"""Ray as this project uses it: quiet, and inside the resources of the trial that calls it. Public API only."""

import atexit
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import chdir, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from gd_ray.errors import UserError
from gd_ray.slurm import slurm_options

_QUEUED_PER_CPU = 3
"""Tasks that wait for each CPU; the rest of the items stay with the caller."""
_GREETED_WITHIN_S = 4.0
"""Time in which a server must react to a connection."""
_ANSWER_WITHIN_S = 7
"""Time in which a server that did must answer as a Ray cluster; the import of Ray is not counted."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The first bytes of any gRPC client."""
_REFUSED = 3
_CONNECT = f"""
import logging, os, signal, sys, ray
signal.alarm({_ANSWER_WITHIN_S})  # ends the process
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
except ray.exceptions.AuthenticationError:
    os._exit({_REFUSED})
except Exception as error:
    print(error, flush=True)
    os._exit(1)
os._exit(0)
"""

Mapper = Callable[[Callable[[Any], Any], list[Any]], Iterator[Any]]
"""Applies a function to items, in this process or in others; the results may come in any order."""


def start_ray(address: str | None = None, **options: Any) -> None:
    """Start a Ray of our own on this machine, or connect to the one at `address`, unless that is done already.

    Left to itself Ray would join whatever cluster was last started on this machine.
    """
    import ray

    if ray.is_initialized():
        return
    check_environment(address)
    if address is None and "RAY_ADDRESS" not in os.environ:  # a submitted job finds its cluster there
        address, options = "local", {"include_dashboard": False, **slurm_options(), **options}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        # Ray puts the working directory first on its workers' path: a user's folder 'trials' there would hide ours.
        with chdir(Path(__file__).parents[1]):
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except SystemExit:  # from a handler of SIGTERM that Ray sets
        raise KeyboardInterrupt from None
    except Exception as error:
        if address != "local":
            _check_versions(address, str(error))
            raise
        reason = str(error).partition(". ")[0].rstrip(".")  # the rest is a paragraph of advice
        folder = os.environ.get("RAY_TMPDIR", "/tmp")
        raise UserError(
            f"Ray did not start on this machine ({reason}); run the same command when it is less busy and {folder} has "
            f"space, or see Ray's logs, usually in {folder}/ray/session_latest/logs."
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def connect(address: str | None) -> list[dict[str, float]]:
    """Connect to a cluster that answers, or start a Ray on this machine; return the resources of each machine."""
    if "ray" not in sys.modules or not sys.modules["ray"].is_initialized():  # before its import, for a token
        check_environment(address)
        if address is not None:
            _check_answers(address)
    start_ray(address)
    return machines()


def machines() -> list[dict[str, float]]:
    """Return the resources of each machine of the cluster."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _check_answers(address: str) -> None:
    """Refuse an address that does not answer: Ray itself would wait for minutes in a call that cannot be interrupted.

    A cluster of a machine with a token asks every caller for it; Ray sends one if RAY_AUTH_MODE is set at its import.
    """
    if "://" in address:
        raise UserError(
            f"--address {address!r} is not the address of a cluster; give host:6379 as 'ray start --head' printed it, "
            f"or 'auto' on a machine of the cluster."
        )
    if address != "auto" and not _is_reachable(address):
        raise _no_answer(address)
    has_token = Path.home().joinpath(".ray", "auth_token").exists()
    mode = {"RAY_AUTH_MODE": "token"} if has_token and "RAY_AUTH_MODE" not in os.environ else {}
    answer = _try_to_connect(address, **mode)
    if not answer:
        os.environ.update(mode)
    if answer == _REFUSED:
        raise UserError(
            f"--address {address!r} asks for a token that it did not get; copy ~/.ray/auth_token from the machine "
            f"where the cluster was started, and leave RAY_AUTH_MODE unset or set it to token."
        )
    if answer:
        raise _no_answer(address)


def _no_answer(address: str) -> UserError:
    return UserError(
        f"--address {address!r} does not answer; start a cluster there with 'ray start --head', or leave --address "
        f"out to run on this machine alone."
    )


def _is_reachable(address: str) -> bool:
    """Return whether a server reacts to a connection, if only by closing it; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_GREETED_WITHIN_S) as server:
            server.sendall(_GREETING)
            server.recv(1)
    except ConnectionResetError:
        return True  # one that wants TLS, say
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _try_to_connect(address: str, **environment: str) -> int:
    """Connect in another process; return zero on success, _REFUSED if the token was missing or wrong."""
    command = [sys.executable, "-c", _CONNECT, address]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **environment})
    _check_versions(address, done.stdout.decode())
    # Without a token to send, Ray tries again and again.
    return _REFUSED if done.returncode and b"Unauthenticated" in done.stderr else done.returncode


def _check_versions(address: str | None, error: str) -> None:
    """Refuse a cluster of another Ray or Python in one sentence; the message of Ray has several lines."""
    versions = re.findall(r"^\s*(Ray|Python): (\S+)$", error, re.MULTILINE)
    if "Version mismatch" in error and len(versions) == 4:
        theirs, ours = (" and ".join(map(" ".join, pair)) for pair in (versions[:2], versions[2:]))
        cluster = f"--address {address!r}" if address else f"RAY_ADDRESS {os.environ.get('RAY_ADDRESS')!r}"
        raise UserError(f"{cluster} is a cluster of {theirs}, but here is {ours}; use the same versions on both.")


def check_environment(address: str | None) -> None:
    """Refuse a RAY_ADDRESS that Ray's job tools understand, but Ray itself does not, where it would be used."""
    named = os.environ.get("RAY_ADDRESS", "")
    if "://" in named and address in (None, "auto"):
        raise UserError(
            f"RAY_ADDRESS {named!r} is not the address of a cluster; unset it for this command, or set it to host:6379 "
            f"as 'ray start --head' printed it."
        )


def switches() -> dict[str, str]:
    """Return the variables that change how this program computes, for processes on other machines."""
    return {name: value for name, value in os.environ.items() if name.startswith("GD_RAY_")}


def exit_without_destructors() -> None:
    """Let an actor's process end as soon as Ray has shut down in it; no other process.

    Destructors of C++ libraries would run then, and Ray does not end a process from which it has disconnected: a scorer
    whose logs end there stayed for ever, with its memory.
    """
    import ray

    if ray.get_runtime_context().get_actor_id():
        atexit.unregister(_exit)  # an actor may run several trials
        atexit.register(_exit)


def _exit() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def actor_options(cpus: float, *, own_machine: bool) -> dict[str, Any]:
    """Return the options of Ray Data actors that work for the calling process; inside a trial, on what it reserved.

    Those of a trial ask for no CPU, for its placement group has reserved them on the machines where they run: Data
    cannot start actors inside a group, and a limit of trials at once, the other way, hangs as soon as another run takes
    the CPUs that it left for actors.
    """
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    group = ray.util.get_current_placement_group()
    if group is None and not own_machine:
        return {"num_cpus": cpus}
    machines = {ray.get_runtime_context().get_node_id()}
    if not own_machine:
        machines |= set(ray.util.placement_group_table(group)["bundles_to_node_id"].values())
    return {"num_cpus": 0 if group else cpus, "label_selector": {"ray.io/node-id": f"in({','.join(sorted(machines))})"}}


def map_in_process(function: Callable[[Any], Any], items: list[Any]) -> Iterator[Any]:
    """Apply the function in this process, one item after another."""
    return map(function, items)


def map_with_ray(function: Callable[[Any], Any], items: list[Any]) -> Iterator[Any]:
    """Apply the function in Ray tasks on all CPUs of the cluster.

    Nothing flows from one task to another, so Ray Data would add nothing here but time: preparing 60,000 JPEGs on two
    cores took 6.3 s with it and 3.8 s without.
    """
    import ray

    start_ray()
    cpus = int(ray.cluster_resources()["CPU"])  # type: ignore[no-untyped-call]
    shared, left = ray.put((function, os.getcwd())), iter(items)
    task = ray.remote(num_cpus=1)(_apply)
    running = {task.remote(shared, item) for item in islice(left, _QUEUED_PER_CPU * cpus)}
    try:
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            running.remove(done)
            running |= {task.remote(shared, item) for item in islice(left, 1)}
            try:
                yield ray.get(done)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, UserError):
                    raise error.cause from None  # without Ray's traceback, whose error has it as its own cause
                raise
    finally:
        for stopped in running:
            ray.cancel(stopped, force=True)


def _apply(shared: tuple[Callable[[Any], Any], str], item: Any) -> Any:
    """Call the function in the caller's working directory, because items may name files by relative paths."""
    function, folder = shared
    with suppress(FileNotFoundError):  # a folder of another machine
        os.chdir(folder)
    return function(item)
