"""Why something failed, in the one line that a user sees."""

import re

from gd_ray.errors import Unreachable, UserError


class ExplainedError(RuntimeError):
    """A failure of which the text is the line that a user sees."""


class OutageError(ExplainedError):
    """A failure because a machine of the cluster, or its storage, was lost."""


def innermost(error: BaseException) -> BaseException:
    """Return the error that caused the others, through Ray's wrappers; a sentence for the user needs no cause."""
    while True:
        cause = getattr(error, "cause", None)  # of Ray's errors, which are of their cause's class as well
        if cause is None and not isinstance(error, UserError | ExplainedError):
            cause = error.__cause__
        # Ray Data raises Ray's own errors from a SystemException, which has no text.
        if not isinstance(cause, BaseException) or type(cause).__name__ == "SystemException":
            return error
        error = cause


def is_users(error: BaseException) -> bool:
    """Whether another attempt would fail alike; storage may answer again."""
    return isinstance(error, UserError) and not isinstance(error, Unreachable)


def is_outage(error: BaseException) -> bool:
    """Whether a machine of the cluster, or its storage, was lost, and no process failed by itself."""
    from ray import exceptions

    cause = innermost(error)
    if isinstance(cause, exceptions.ActorDiedError):  # its class alone does not say of what it died
        return cause.preempted or "node has died" in str(cause)
    # Ray learns within a second that a process has died; an actor that is unavailable for longer is on a lost machine.
    lost = (exceptions.NodeDiedError, exceptions.LocalRayletDiedError, exceptions.ActorUnavailableError)
    gone = (exceptions.ActorUnschedulableError, exceptions.TaskUnschedulableError)  # of scorers beside their trial
    return isinstance(cause, (OutageError, *lost, *gone))


def explain(error: BaseException, *, gpus: float = 0.0, batch: str = "its batches") -> str:
    """Return the innermost cause of an error in one line.

    `gpus` is the share of a GPU that the failed process had, `batch` what it computed at a time and where.
    """
    cause = innermost(error)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if isinstance(cause, UserError | ExplainedError) and lines:
        return lines[0]
    if _is_gpu_memory(cause):
        change = "lower batch_size, or end other programs on it"
        if gpus < 0.75:
            change = "raise --gpus, so that fewer trials share one, or lower batch_size"
        return f"the GPU ran out of memory for {batch} with {gpus:g} of it; {change}."
    return ": ".join([type(cause).__name__, *lines[:1]])


def _is_gpu_memory(error: BaseException) -> bool:
    """Whether a GPU, or one of its libraries, could not allocate memory."""
    text = str(error)
    named = type(error).__module__.startswith("torch") and type(error).__name__ == "OutOfMemoryError"
    return named or "CUDA out of memory" in text or "CUDA error: out of memory" in text or "STATUS_ALLOC_FAILED" in text


def last_line(text: str) -> str:
    """Return the line of a traceback that names its error, without the name of an explained one."""
    lines = [line.strip() for line in text.strip().splitlines()] or [""]
    # Ray's own errors have text after those of the process that they quote.
    named = (line for line in reversed(lines) if re.match(r"(?!ray\.)[\w.]+(Error|Exception)(: |$)", line))
    explained = rf"{__name__}\.({ExplainedError.__name__}|{OutageError.__name__}): "
    return re.sub(f"^{explained}", "", next(named, lines[-1]))
