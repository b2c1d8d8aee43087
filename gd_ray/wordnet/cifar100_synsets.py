"""CIFAR-100's classes in WordNet 3.0, and the classes of other data sets that match them.

A synset matches if it is in cifar100.txt or below one of those, or if one of its words is the name of a CIFAR-100
class in any sense: a plate as a meal is excluded too. A class that is a plain name matches by the same words. WordNet
has no aquarium fish; cifar100.txt has its kinds that people keep, the goldfish first.
"""

from importlib.resources import files

from gd_ray.errors import UserError
from gd_ray.wordnet.hierarchy import WordNet

SYNSETS: dict[str, tuple[str, ...]] = {
    name: tuple(synsets)
    for name, *synsets in map(str.split, files("gd_ray.wordnet").joinpath("cifar100.txt").read_text().splitlines())
}


def matching_classes(wordnet: WordNet) -> frozenset[str]:
    """Return every synset that matches CIFAR-100 and every word for it: the possible class names of a stream."""
    roots = [synset for synsets in SYNSETS.values() for synset in synsets]
    missing = [synset for synset in roots if synset not in wordnet.words]
    if missing:
        raise UserError(f"wordnet lacks CIFAR-100's synset {missing[0]}; use the complete WordNet 3.0.")
    names = {plain_name(name) for name in SYNSETS}
    named = {synset for synset, words in wordnet.words.items() if names & {plain_name(word) for word in words}}
    below = wordnet.below(roots)
    words = {plain_name(word) for synset in below for word in wordnet.words[synset]}
    return below | named | names | words


def plain_name(name: str) -> str:
    """Return a name in lower case with spaces in place of underscores, for comparison."""
    return name.lower().replace("_", " ").strip()
