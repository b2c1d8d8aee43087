"""How near sampled images are to the class that they were sampled for, in WordNet. No trial sees these labels.

Neither the streams nor WordNet are in this repository. What is needed of them are two small files of labels, written
once where both are:

    python -m analysis.evidence.wordnet_labels analysis/evidence/more streams/tiny-imagenet*
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.evidence.claims import Metric, Row, difference_text
from analysis.formats import Cell, Grid, mean_sd, number
from analysis.results import Results
from analysis.stats import paired
from gd_ray.wild.stream import WildStream
from gd_ray.wordnet.cifar100_synsets import SYNSETS
from gd_ray.wordnet.hierarchy import WordNet, read_wordnet

NEAR = 5
"""Longest path between two classes that counts as near: the longest that less than 5% of the pairs of a CIFAR-100 class
and an image of the stream `tiny-imagenet` have (3.1%; 6.2% have at most 6). Chosen before any trial was finished."""
NEAR_SHARE = Metric("near", f"within {NEAR} steps")
IMAGES, DISTANCES = "stream_classes.parquet", "class_distances.parquet"
"""WordNet id of each stream position, by the stream's digest; path length from each CIFAR-100 class to each such id."""


def write_labels(folder: Path, streams: Sequence[str], wordnet: WordNet) -> None:
    """Write both files."""
    parts = []
    for stream in map(WildStream.open, streams):
        positions = np.arange(len(stream), dtype=np.int32)
        ids = stream.all_classes().to_pylist()
        parts.append(pd.DataFrame({"stream_digest": stream.digest, "position": positions, "wordnet_id": ids}))
    images = pd.concat(parts)
    ids = sorted(set(images["wordnet_id"]))
    lengths = {name: wordnet.distances(synsets) for name, synsets in SYNSETS.items()}
    pairs = [(name, wordnet_id, own[wordnet_id]) for name, own in lengths.items() for wordnet_id in ids]
    distances = pd.DataFrame(pairs, columns=["class", "wordnet_id", "distance"]).astype({"distance": np.int8})
    for file, frame in ((IMAGES, images), (DISTANCES, distances)):
        texts = list(frame.select_dtypes(exclude="number"))
        encoding = {"position": "DELTA_BINARY_PACKED"} if "position" in frame else None
        table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
        pq.write_table(table, folder / file, compression="zstd", use_dictionary=texts, column_encoding=encoding)


def with_distances(results: Results, trials: pd.DataFrame, labels: Path) -> pd.DataFrame:
    """Add what a trial sampled for previous classes: images, the share that is near, and their mean distance.

    The columns `…_by_chance` have the same for images drawn at random from its stream for the same classes. All are NaN
    where a trial samples for no class, or where the labels of its stream or the names of the classes are not known.
    `labels` is the folder with both files.
    """
    columns = ["near", "distance", "near_by_chance", "distance_by_chance"]
    files = [labels / name for name in (IMAGES, DISTANCES)]
    ids = trials.loc[trials["stream_digest"].notna(), "trial_id"].astype(str).tolist()
    samples = results.rows("samples", ids, filters=[("class", ">=", 0)], columns=("position", "class"))
    names = dict(enumerate(results.class_names.get("cifar100", ())))
    if samples.empty or not names or not all(file.exists() for file in files):
        return trials.assign(**dict.fromkeys(["sampled", *columns], np.nan))
    images, distances = map(pd.read_parquet, files)
    digests = dict(zip(trials["trial_id"].astype(str), trials["stream_digest"].astype(object), strict=True))
    keys = {"class": samples["class"].map(names), "stream_digest": samples["trial_id"].astype(str).map(digests)}
    rows = samples.astype({"trial_id": str}).assign(**keys)
    rows = rows.merge(images, on=["stream_digest", "position"]).merge(distances, on=["class", "wordnet_id"])
    rows = rows.assign(near=rows["distance"] <= NEAR).merge(
        _by_chance(images, distances), on=["stream_digest", "class"]
    )
    by_trial = rows.groupby("trial_id")
    return trials.join(by_trial[columns].mean().assign(sampled=by_trial.size()), on="trial_id")


def _by_chance(images: pd.DataFrame, distances: pd.DataFrame) -> pd.DataFrame:
    """Return the means over all images of a stream, for each stream and CIFAR-100 class."""
    counts = images.groupby(["stream_digest", "wordnet_id"]).size().rename("number").reset_index()
    pairs = counts.merge(distances, on="wordnet_id")
    near = pairs["number"] * (pairs["distance"] <= NEAR)
    sums = pairs.assign(near=near, distance=pairs["number"] * pairs["distance"])
    sums = sums.groupby(["stream_digest", "class"])[["near", "distance", "number"]].sum()
    return sums[["near", "distance"]].div(sums["number"], axis=0).add_suffix("_by_chance").reset_index()


def sampling_grid(rows: Iterable[Row], trials: pd.DataFrame) -> Grid:
    """Return for each row of trials what it sampled for previous classes, beside what chance would give."""
    cells, columns = [], ["sampled", "near", "near_by_chance", "distance", "distance_by_chance"]
    for row in rows:
        means = row.by_seed(trials.dropna(subset="near"), columns)
        if means.empty:
            continue
        near, chance = 100 * means["near"], 100 * means["near_by_chance"]
        distance, by_chance = means["distance"], means["distance_by_chance"]
        texts = (
            *(row.title, str(len(means)), f"{means['sampled'].sum():,.0f}"),
            *(mean_sd(near.mean(), near.std()), number(chance.mean()), difference_text(paired(near, chance))),
            *(number(distance.mean()), number(by_chance.mean())),
        )
        cells.append(tuple(map(Cell, texts)))
    near_header = (f"within {NEAR} steps, %", "random images, %", "above these (95% interval)")
    header = ("", "n", "images", *near_header, "mean steps", "random images")
    return Grid(
        "Images sampled for previous classes: steps in WordNet from their class to that one", header, tuple(cells)
    )


if __name__ == "__main__":
    write_labels(Path(sys.argv[1]), sys.argv[2:], read_wordnet())
