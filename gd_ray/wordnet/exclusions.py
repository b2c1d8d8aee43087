"""Classes to exclude: single names, files of names, and the lists that the paper excludes."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gd_ray.errors import UserError
from gd_ray.wordnet.cifar100_synsets import matching_classes, plain_name
from gd_ray.wordnet.hierarchy import WORDNET, read_wordnet
from gd_ray.wordnet.ilsvrc2012 import WORDNET_IDS


@dataclass(frozen=True)
class Exclusions:
    """Names or WordNet ids of classes, compared without case and underscores."""

    named: frozenset[str] = frozenset()
    """Requested one by one: a name that matches nothing is worth a warning."""
    listed: frozenset[str] = frozenset()
    """Members of lists, which a source need not have."""

    def __contains__(self, name: str | None) -> bool:
        return name is not None and plain_name(name) in self._all

    @cached_property
    def _all(self) -> frozenset[str]:
        return frozenset(map(plain_name, self.named | self.listed))

    def with_listed(self, names: Iterable[str]) -> "Exclusions":
        return Exclusions(self.named, self.listed | frozenset(names))

    def unmatched(self, classes: Iterable[str]) -> list[str]:
        """Return the single names that are not among these classes."""
        known = set(map(plain_name, classes))
        return sorted(name for name in self.named if plain_name(name) not in known)


def read_exclusions(entries: Iterable[str], wordnet: str = WORDNET) -> Exclusions:
    """Read entries that are 'ilsvrc2012', 'cifar100', a file with a name on each line, or a name."""
    named: set[str] = set()
    listed: set[str] = set()
    for entry in entries:
        if entry == "ilsvrc2012":
            listed.update(WORDNET_IDS)
        elif entry == "cifar100":
            listed |= matching_classes(read_wordnet(wordnet))
        elif Path(entry).is_file():
            named.update(read_names(entry))
        else:
            named.add(entry)
    return Exclusions(frozenset(named), frozenset(listed))


def read_names(file: str) -> list[str]:
    """Read a name from each line of a file, without comments."""
    try:
        lines = Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"list {file!r} cannot be read ({error}); give a text file of classes, one a line.") from error
    names = [line.split("#")[0].strip() for line in lines]
    return [name for name in names if name]
