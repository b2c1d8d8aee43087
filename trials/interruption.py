"""What ends a run early: Ctrl-C, SIGTERM, and the death of one of Ray's servers."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gd_ray.errors import UserError

RESUME = "run the same command to resume"
_STOP_WITHIN_S = 7.0
"""Time in which a run must end after a signal; Ray waits a minute for servers that the same signal has killed."""
_START_WITHIN_S = 240.0
"""Time in which Ray must start; half a minute is usual on a busy machine."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_requested = threading.Event()
_command_line = threading.Event()
"""Set while the process is the command line's own, which may be ended at once; a user's notebook may not."""


class RayDiedError(UserError):
    """One of Ray's servers died during a run."""


_WATCHER = """
import os, select, signal, sys

def interrupt(*_):
    raise KeyboardInterrupt

signals = signal.SIGINT, signal.SIGTERM
driver, (limit_s, grace_s), (late, interrupted) = int(sys.argv[1]), map(float, sys.argv[2:4]), sys.argv[4:]
signal.signal(signal.SIGTERM, interrupt)
try:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    message, over = late, select.select([0], [], [], limit_s)[0]
except KeyboardInterrupt:
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    message, over = interrupted, select.select([0], [], [], grace_s)[0]
if not over:  # its end of the pipe is open
    print(message, file=sys.stderr)
    os.kill(driver, signal.SIGKILL)
"""
"""Ends a driver that has not started in time, or not ended in time after a signal to both, as a terminal sends it."""


@contextmanager
def interruptible() -> Iterator[None]:
    """End on SIGTERM, which batch systems and `timeout` send, as on Ctrl-C: answer at once, and end in seconds.

    Batch systems send it to all processes of a run, so that Ray may die before the run does, and hang.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers can be set there only
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def interrupt(_: int, __: FrameType | None) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # `timeout` sends two; the first one ends the run
        _requested.set()
        raise KeyboardInterrupt

    def watch() -> None:
        if reader.recv(1):
            _requested.set()
            print("gd-ray: stopping ...", file=sys.stderr, flush=True)
            answered.set()
            if not ended.wait(_STOP_WITHIN_S):
                _exit(f"interrupted; {RESUME}.", 130)

    answered, ended = threading.Event(), threading.Event()
    # Python's own handlers wait for the main thread, which may be inside Ray; this socket gets the number at once.
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        if before[number] is not signal.SIG_IGN:  # a shell's background job ignores Ctrl-C
            signal.signal(number, interrupt)
    threading.Thread(target=watch, daemon=True).start()
    _command_line.set()
    try:
        yield
    except KeyboardInterrupt:
        answered.wait(timeout=1.0)
        sys.stdout.flush()
        _exit(f"interrupted; {RESUME}.", 130)  # without destructors: those of a Ray that was starting crash
    finally:
        ended.set()
        _command_line.clear()
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        writer.close()
        _requested.clear()


@contextmanager
def limited_start() -> Iterator[None]:
    """End a command whose Ray does not start, by another process.

    A driver waits for ever for workers that died while they started, and holds Python's lock meanwhile: neither its
    threads nor its signal handlers run.
    """
    if not _command_line.is_set():
        yield
        return
    late = f"Ray did not start within {_START_WITHIN_S / 60:.0f} minutes; {RESUME}."
    limits = f"{_START_WITHIN_S}", f"{_STOP_WITHIN_S + 1}"
    words = str(os.getpid()), *limits, _line(late), _line(f"interrupted; {RESUME}.")
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # for the watcher, until it has handlers of its own
    try:
        watcher = subprocess.Popen([sys.executable, "-I", "-S", "-c", _WATCHER, *words], stdin=subprocess.PIPE)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        yield
    finally:
        watcher.communicate()


@contextmanager
def explained_memory() -> Iterator[None]:
    """Explain in one sentence that Ray ended trials for memory, which makes Tune end all of them with a traceback."""
    from ray.exceptions import OutOfMemoryError

    try:
        yield
    except RuntimeError as error:
        if not isinstance(error.__cause__, OutOfMemoryError):
            raise
        used = re.search(r"was ([\d.]+ ?GB) used / ([\d.]+ ?GB)", str(error.__cause__))
        amount = f" ({used[1]} of {used[2]} used)" if used else ""
        raise RayDiedError(
            f"a machine ran out of memory{amount}, and Ray ended trials; end other programs there, or run fewer trials "
            f"at once with a higher --cpus, then {RESUME}."
        ) from error


@contextmanager
def watched_servers(restarts_s: float) -> Iterator[None]:
    """End the run when Ray's GCS, or the raylet of this machine, dies: Ray itself would wait for them for ever.

    A cluster may restart its GCS within `restarts_s` seconds. On the command line the process ends. A user's program
    gets the message, and a RayDiedError unless its main thread waits inside Ray, where nothing can interrupt it.
    """
    import ray

    context, ended = ray.get_runtime_context(), threading.Event()
    own = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())  # type: ignore[no-untyped-call]
    host, _, port = context.gcs_address.rpartition(":")
    logs = Path(own["RayletSocketName"]).parents[1] / "logs"
    in_main_thread, messages = threading.current_thread() is threading.main_thread(), list[str]()

    def end(name: str) -> None:
        again = "start the cluster again, then " if restarts_s else ""
        message = f"Ray's {name} died (logs: {logs}); {again}{RESUME}."
        if _command_line.is_set():
            _exit(message, 1)
        print(f"gd-ray: {message}", file=sys.stderr, flush=True)
        messages.append(message)
        if in_main_thread:
            interrupt_main()

    def watch(name: str, address: str | tuple[str, int], patience_s: float) -> None:
        answered = time.monotonic()  # this process has just connected to it
        while not ended.wait(0.5):  # a signal that killed the server as well is known by then
            try:
                with _connect(address) as server:
                    answered = time.monotonic()
                    while not ended.is_set() and _is_open(server):
                        answered = time.monotonic()
            except PermissionError:  # another user's
                return
            except OSError:
                if time.monotonic() - answered > patience_s and not ended.is_set() and not _requested.is_set():
                    ended.set()
                    end(name)

    for server in (
        ("GCS", (host, int(port)), restarts_s),
        ("raylet", own["RayletSocketName"], 0.0),
    ):
        threading.Thread(target=watch, args=server, daemon=True).start()
    try:
        yield
    except KeyboardInterrupt:
        if messages:
            raise RayDiedError(messages[0]) from None
        raise
    finally:
        ended.set()


def _connect(address: str | tuple[str, int]) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, timeout=1.0)
    server = socket.socket(socket.AF_UNIX)
    server.settimeout(1.0)
    server.connect(address)
    return server


def _is_open(server: socket.socket) -> bool:
    """Wait a second at most; return whether the other side has not closed the connection."""
    try:
        return bool(server.recv(1 << 12))
    except TimeoutError:
        return True


def _exit(message: str, code: int) -> NoReturn:
    """End the process at once; what waits for Ray could not be ended otherwise."""
    print(_line(message), file=sys.stderr, flush=True)
    os._exit(code)


def _line(message: str) -> str:
    """Return the last line of a command, which shows the cursor again."""
    shown = "\x1b[?25h" if sys.stdout.isatty() else ""
    return f"{shown}gd-ray: {message}"
