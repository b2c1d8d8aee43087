"""CIFAR-100's classes in WordNet 3.0, and which classes of another data set match them.

A synset matches where it is one of those listed here or lies below one, or where one of its words is the name of a
CIFAR-100 class, in whatever sense: a plate as a meal goes too. A class that is a plain name matches by the same words.
WordNet has no aquarium fish; those listed are its kinds that people keep, the goldfish first.
"""

from gd_ray.errors import UserError
from gd_ray.wild.hierarchy import WordNet

SYNSETS: dict[str, tuple[str, ...]] = {
    "apple": ("n07739125", "n12633994"),
    "aquarium_fish": ("n01443537", "n01448291", "n01448594", "n01449980", "n02605316", "n02605936", "n02606384"),
    "baby": ("n09827683",),
    "bear": ("n02131653",),
    "beaver": ("n02363005",),
    "bed": ("n02818832",),
    "bee": ("n02206856",),
    "beetle": ("n02164464",),
    "bicycle": ("n02834778",),
    "bottle": ("n02876657", "n02877266"),
    "bowl": ("n02880940", "n02881193"),
    "boy": ("n10285313",),
    "bridge": ("n02898711",),
    "bus": ("n02924116",),
    "butterfly": ("n02274259",),
    "camel": ("n02437136",),
    "can": ("n02946921",),
    "castle": ("n02980441", "n03878066"),
    "caterpillar": ("n02309337",),
    "cattle": ("n02402425",),
    "chair": ("n03001627",),
    "chimpanzee": ("n02481823",),
    "clock": ("n03046257",),
    "cloud": ("n09247410",),
    "cockroach": ("n02233338",),
    "couch": ("n04256520",),
    "crab": ("n01976957",),
    "crocodile": ("n01697178",),
    "cup": ("n03147509",),
    "dinosaur": ("n01699831",),
    "dolphin": ("n02068974",),
    "elephant": ("n02503517",),
    "flatfish": ("n02657368",),
    "forest": ("n08438533", "n09284015"),
    "fox": ("n02118333",),
    "girl": ("n10084295", "n10129825"),
    "hamster": ("n02342885",),
    "house": ("n03544360",),
    "kangaroo": ("n01877134",),
    "keyboard": ("n03085013", "n03614007"),
    "lamp": ("n03636248", "n03636649"),
    "lawn_mower": ("n03649909",),
    "leopard": ("n02128385",),
    "lion": ("n02129165",),
    "lizard": ("n01674464",),
    "lobster": ("n01982650",),
    "man": ("n10287213",),
    "maple": ("n12752205",),
    "motorcycle": ("n03790512",),
    "mountain": ("n09359803",),
    "mouse": ("n02330245",),
    "mushroom": ("n07734744", "n12997919", "n13000891", "n13001041"),
    "oak": ("n12268246",),
    "orange": ("n07747607", "n12708293"),
    "orchid": ("n12041446",),
    "otter": ("n02444819",),
    "palm": ("n12582231",),
    "pear": ("n07767847", "n12651611"),
    "pickup_truck": ("n03930630",),
    "pine": ("n11608250",),
    "plain": ("n09393605",),
    "plate": ("n03959485",),
    "poppy": ("n11900569",),
    "porcupine": ("n02346627",),
    "possum": ("n01874928", "n01881857"),
    "rabbit": ("n02324045",),
    "raccoon": ("n02508021",),
    "ray": ("n01495701",),
    "road": ("n04096066",),
    "rocket": ("n04099429",),
    "rose": ("n12620196",),
    "sea": ("n09376198", "n09426788"),
    "seal": ("n02076196",),
    "shark": ("n01482330",),
    "shrew": ("n01891633",),
    "skunk": ("n02445715",),
    "skyscraper": ("n04233124",),
    "snail": ("n01944390",),
    "snake": ("n01726692",),
    "spider": ("n01772222",),
    "squirrel": ("n02355227",),
    "streetcar": ("n04335435",),
    "sunflower": ("n11978233",),
    "sweet_pepper": ("n07720615", "n12901264"),
    "table": ("n04379243", "n04379964"),
    "tank": ("n04389033",),
    "telephone": ("n04401088",),
    "television": ("n04405907",),
    "tiger": ("n02129604",),
    "tractor": ("n04465501",),
    "train": ("n04468005",),
    "trout": ("n02537085",),
    "tulip": ("n12454159",),
    "turtle": ("n01662784",),
    "wardrobe": ("n04550184",),
    "whale": ("n02062744",),
    "willow": ("n12724942",),
    "wolf": ("n02114100",),
    "woman": ("n10787470",),
    "worm": ("n01922303",),
}


def matching_classes(wordnet: WordNet) -> frozenset[str]:
    """Every synset that matches CIFAR-100, and every word for one: what a stream's class may be called."""
    roots = [synset for synsets in SYNSETS.values() for synset in synsets]
    missing = [synset for synset in roots if synset not in wordnet.words]
    if missing:
        raise UserError(f"wordnet lacks CIFAR-100's synset {missing[0]}; take the whole of WordNet 3.0.")
    names = {plain_name(name) for name in SYNSETS}
    named = {synset for synset, words in wordnet.words.items() if names & {plain_name(word) for word in words}}
    below = wordnet.below(roots)
    words = {plain_name(word) for synset in below for word in wordnet.words[synset]}
    return below | named | names | words


def plain_name(name: str) -> str:
    """A name without its case, with spaces for underscores, for comparing."""
    return name.lower().replace("_", " ").strip()
