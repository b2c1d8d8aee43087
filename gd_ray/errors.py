"""The one exception for a user's mistake, and help for mistyped names."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Bad input, told in one sentence: the field, its value, and what to do. Shown without a traceback."""


class Unreachable(UserError):
    """Storage that did not answer, or refused: nothing is known to be wrong with what lies there."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    known = list(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(known)}."
    return UserError(f"{kind} {name!r} does not exist; {hint}")
