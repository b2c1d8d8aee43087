"""The 1000 classes of ILSVRC 2012 as WordNet 3.0 ids, in ilsvrc2012.txt in the order of the challenge's own kit."""

from importlib.resources import files

BATCH_LABELS: tuple[str, ...] = tuple(files("gd_ray.wordnet").joinpath("ilsvrc2012.txt").read_text().split())
"""Label 1 of the downsampled-ImageNet batches is the first."""
WORDNET_IDS: tuple[str, ...] = tuple(sorted(BATCH_LABELS))
"""Sorted, as the class sets of the seeds are drawn from them."""
