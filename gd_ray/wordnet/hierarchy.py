"""The noun hierarchy of WordNet 3.0: distances between classes, and the classes below one.

ImageNet's class ids are offsets in WordNet 3.0's file data.noun, so this module reads that file alone. The libraries
do not fit: nltk needs its own copy of the database with files that Debian's package lacks, and `wn` builds a database
from XML with other ids.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gd_ray.errors import UserError

WORDNET = "/usr/share/wordnet"
"""Folder of Debian's package wordnet-base."""
_UP = ("@", "@i")  # hypernym, and hypernym of an instance


@dataclass(frozen=True)
class WordNet:
    """Every noun synset by its id, such as n02084071."""

    words: Mapping[str, tuple[str, ...]]
    hypernyms: Mapping[str, tuple[str, ...]]

    @cached_property
    def hyponyms(self) -> Mapping[str, list[str]]:
        below: dict[str, list[str]] = defaultdict(list)
        for synset, above in self.hypernyms.items():
            for hypernym in above:
                below[hypernym].append(synset)
        return below

    def below(self, roots: Iterable[str]) -> frozenset[str]:
        """Return these synsets and all below them."""
        return frozenset(_path_lengths(roots, lambda synset: self.hyponyms.get(synset, ())))

    def distances(self, classes: Iterable[str]) -> dict[str, int]:
        """Return the length of the shortest path, up or down, from each synset to the nearest of these classes."""
        known = (synset for synset in classes if synset in self.hypernyms)
        return _path_lengths(known, lambda synset: (*self.hypernyms[synset], *self.hyponyms.get(synset, ())))


def _path_lengths(starts: Iterable[str], neighbors: Callable[[str], Iterable[str]]) -> dict[str, int]:
    """Return the length of the shortest path from the starts to everything that they reach."""
    lengths = dict.fromkeys(starts, 0)
    waiting = deque(lengths)
    while waiting:
        synset = waiting.popleft()
        for neighbor in neighbors(synset):
            if neighbor not in lengths:
                lengths[neighbor] = lengths[synset] + 1
                waiting.append(neighbor)
    return lengths


def innermost_id(folders: Sequence[str]) -> str | None:
    """Return the innermost folder that is named after a WordNet id, as in train/n01443537/images/1.jpg."""
    return next((name for name in reversed(folders) if re.fullmatch(r"n\d{8}", name)), None)


def read_wordnet(folder: str = WORDNET) -> WordNet:
    """Read data.noun of a folder with WordNet 3.0's database files."""
    file = Path(folder, "data.noun")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fix = "install Debian's package wordnet-base, or give the folder 'dict' of WordNet 3.0 with --wordnet."
        raise UserError(f"wordnet {folder!r} has no readable data.noun; {fix}") from error
    license = " ".join(line for line in lines if line.startswith("  "))
    if license and "WordNet 3.0 " not in license:
        raise UserError(f"wordnet {folder!r} is not WordNet 3.0, whose offsets are ImageNet's ids; use that version.")
    words, hypernyms = {}, {}
    for number, line in enumerate(lines, start=1):
        if not line or line.startswith("  "):
            continue
        try:
            synset, words_of, above = _synset(line)
        except (IndexError, ValueError) as error:
            problem = f"is damaged in line {number} ({error}); install it again."
            raise UserError(f"wordnet file {str(file)!r} {problem}") from error
        words[synset], hypernyms[synset] = words_of, above
    for synset, above in hypernyms.items():
        if missing := [hypernym for hypernym in above if hypernym not in words]:
            problem = f"lacks {missing[0]}, the hypernym of {synset}; install it again."
            raise UserError(f"wordnet file {str(file)!r} {problem}")
    return WordNet(words, hypernyms)


def _synset(line: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Parse the id, words and hypernyms of a line of data.noun, whose format is in WordNet's manual, wndb(5)."""
    fields = line.split(" | ")[0].split()
    if len(fields[0]) != 8 or not fields[0].isdecimal():
        raise ValueError(f"{fields[0]!r} is not an offset")
    number = int(fields[3], 16)
    rest = fields[4 + 2 * number :]
    pointers = [rest[1 + 4 * k : 5 + 4 * k] for k in range(int(rest[0]))]
    if number < 1 or any(len(pointer) != 4 for pointer in pointers):
        raise ValueError("it ends too early")
    above = tuple(f"n{place}" for symbol, place, kind, _ in pointers if symbol in _UP and kind == "n")
    return f"n{fields[0]}", tuple(fields[4 : 4 + 2 * number : 2]), above
