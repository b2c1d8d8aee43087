"""Errors that are a user's to mend, and help for mistyped names."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Invalid user input. The message names the field, its value and the fix, and is shown without a traceback."""


class Unreachable(UserError):
    """Storage that did not answer, or refused; its content may be fine."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a name that does not exist, with the nearest one that does."""
    return UserError(f"{kind} {name!r} does not exist; {_hint(name, list(known))}")


def unused_name(option: str, name: str, folder: str, known: Iterable[str]) -> UserError:
    """Return the error for a folder that is given for a name that no trial has, with the nearest one that some have."""
    return UserError(f"{option} {name}={folder}: no trial here has {name!r}; {_hint(name, list(known))}")


def _hint(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(known)}."
