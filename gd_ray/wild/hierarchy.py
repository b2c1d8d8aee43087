"""The noun hierarchy of WordNet 3.0: how far classes are from each other, and what lies below one.

ImageNet's class ids are places in WordNet 3.0's file data.noun, so that file alone is read, by the few lines here. The
kept-up readers do not fit: nltk wants its own copy of the database with files that Debian's package lacks, and `wn`
builds a database of its own from XML whose ids are others.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gd_ray.errors import UserError

WORDNET = "/usr/share/wordnet"
"""Where Debian's package wordnet-base puts it."""
_UP = ("@", "@i")  # hypernym, and hypernym of an instance


@dataclass(frozen=True)
class WordNet:
    """Every noun synset by its id, such as n02084071."""

    words: Mapping[str, tuple[str, ...]]
    hypernyms: Mapping[str, tuple[str, ...]]

    @cached_property
    def hyponyms(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for synset, above in self.hypernyms.items():
            for hypernym in above:
                found[hypernym].append(synset)
        return found

    def below(self, roots: Iterable[str]) -> frozenset[str]:
        """These synsets and all below them."""
        waiting = list(roots)
        found = set(waiting)
        while waiting:
            fresh = [synset for synset in self.hyponyms.get(waiting.pop(), ()) if synset not in found]
            found.update(fresh)
            waiting += fresh
        return frozenset(found)

    def distances(self, classes: Iterable[str]) -> dict[str, int]:
        """The length of the shortest path, up or down, from each synset to the nearest of these classes."""
        found = {synset: 0 for synset in classes if synset in self.hypernyms}
        waiting = deque(found)
        while waiting:
            synset = waiting.popleft()
            for neighbour in (*self.hypernyms[synset], *self.hyponyms.get(synset, ())):
                if neighbour not in found:
                    found[neighbour] = found[synset] + 1
                    waiting.append(neighbour)
        return found


def read_wordnet(folder: str = WORDNET) -> WordNet:
    """Reads data.noun of a folder with WordNet 3.0's database files."""
    file = Path(folder, "data.noun")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"wordnet {folder!r} has no data.noun that can be read; install Debian's package wordnet-base, or unpack "
            f"WordNet 3.0 and name its folder 'dict' with --wordnet."
        ) from error
    licence = " ".join(line for line in lines if line.startswith("  "))
    if licence and "WordNet 3.0 " not in licence:
        raise UserError(f"wordnet {folder!r} is not WordNet 3.0, whose places ImageNet's ids are; take that version.")
    words, hypernyms = {}, {}
    for number, line in enumerate(lines, start=1):
        if not line or line.startswith("  "):
            continue
        try:
            synset, words_of, above = _synset(line)
        except (IndexError, ValueError) as error:
            raise UserError(
                f"wordnet file {str(file)!r} is damaged in line {number} ({error}); install it again."
            ) from error
        words[synset], hypernyms[synset] = words_of, above
    for synset, above in hypernyms.items():
        missing = [hypernym for hypernym in above if hypernym not in words]
        if missing:
            raise UserError(
                f"wordnet file {str(file)!r} lacks {missing[0]}, which {synset} lies below; install it again."
            )
    return WordNet(words, hypernyms)


def _synset(line: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The id, the words and the hypernyms of a line of data.noun; its format is in WordNet's manual, wndb(5)."""
    fields = line.split(" | ")[0].split()
    if len(fields[0]) != 8 or not fields[0].isdecimal():
        raise ValueError(f"{fields[0]!r} is no place in the file")
    number = int(fields[3], 16)
    rest = fields[4 + 2 * number :]
    pointers = [rest[1 + 4 * k : 5 + 4 * k] for k in range(int(rest[0]))]
    if number < 1 or any(len(pointer) != 4 for pointer in pointers):
        raise ValueError("it ends too early")
    above = tuple(f"n{place}" for symbol, place, kind, _ in pointers if symbol in _UP and kind == "n")
    return f"n{fields[0]}", tuple(fields[4 : 4 + 2 * number : 2]), above
