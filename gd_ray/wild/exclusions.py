"""Which classes stay out of a stream: single names, files of names, and the lists that the paper leaves out."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gd_ray.data.ilsvrc2012 import WORDNET_IDS
from gd_ray.errors import UserError
from gd_ray.wild.cifar100_synsets import matching_classes, plain_name
from gd_ray.wild.hierarchy import WORDNET, read_wordnet

LISTS = ("ilsvrc2012", "cifar100")


@dataclass(frozen=True)
class Exclusions:
    """Names or WordNet ids of classes; case and underscores do not matter."""

    named: frozenset[str] = frozenset()
    """Asked for one by one: one that matches nothing is worth a word."""
    listed: frozenset[str] = frozenset()
    """Members of lists, of which a source need not have all."""

    def __contains__(self, name: str | None) -> bool:
        return name is not None and plain_name(name) in self._all

    @cached_property
    def _all(self) -> frozenset[str]:
        return frozenset(map(plain_name, self.named | self.listed))

    def with_listed(self, names: Iterable[str]) -> "Exclusions":
        return Exclusions(self.named, self.listed | frozenset(names))

    def unmatched(self, found: Iterable[str]) -> list[str]:
        """Single names that none of the found classes has."""
        known = set(map(plain_name, found))
        return sorted(name for name in self.named if plain_name(name) not in known)


def read_exclusions(entries: Iterable[str], wordnet: str = WORDNET) -> Exclusions:
    """From entries that are a list of `LISTS`, a file with a name on each line, or a name."""
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
    """A name from each line of a file, without comments."""
    try:
        lines = Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"list {file!r} cannot be read ({error}); give a text file with a class on each line."
        ) from error
    names = [line.split("#")[0].strip() for line in lines]
    return [name for name in names if name]
