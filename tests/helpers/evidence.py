"""Made trials of the evidence, with confidences, sampled images and the labels of a small stream."""

from dataclasses import replace

import numpy as np
import pandas as pd

import analysis
from analysis.evidence import wordnet_labels
from gd_ray.counts import confidence_histogram
from gd_ray.fingerprint import Fingerprints
from gd_ray.store import write_class_names
from tests.helpers.made import write_made

DISTANCES = {("apple", "n1"): 3, ("apple", "n2"): 9, ("aquarium_fish", "n1"): 8, ("aquarium_fish", "n2"): 5}
STREAM = ["n1" if position % 5 == 0 else "n2" for position in range(50)]
CALIBRATED = ("ref-pc", "teacher-cls-cnf")


def levels(forgotten, seed):
    """100 test images a task: 90 right when it is learned, `forgotten` fewer at each later stage."""
    return lambda stage, task: 90 + seed - forgotten * (stage - task)


def histogram(probability, unseen):
    """Three images right and one wrong, all of one confidence, and those of unseen classes."""
    p = np.array([probability] * 4 + list(unseen))
    return confidence_histogram(np.log(p / (1 - p)), np.array([0, 0, 0, 1] + [2] * len(unseen)))


def with_confidences(spec):
    """With the confidence loss confidence is accuracy; without it is 0.95, on seed 2 0.90, and C_4 knows no unseen."""
    sure = 0.75 if spec.method.name in CALIBRATED else 0.90 if spec.seed == 2 else 0.95

    def change(stage):
        last, number = stage.stage == 4, stage.stage
        own = histogram(0.85, [0.85]) if number == 1 else histogram(sure, [] if last else [0.5, min(sure, 0.9)])
        teacher = histogram(sure, [sure, sure] if last else [0.5, sure])
        has_teacher = number > 1 and spec.method.teacher == "distilled"
        moved = spec.method.name == "teacher-dst" or (spec.method.name == "ref-pc" and spec.seed == 2)
        by_mean = spec.method.learner == "icarl"
        return replace(
            stage,
            confidences=own,
            head_hits=tuple(hits - 20 for hits in stage.hits) if by_mean else None,
            teacher_confidences=teacher if has_teacher else None,
            samples=replace(stage.samples, positions=stage.samples.positions + int(moved)),
        )

    return change


def write_trials(folder, specs, forgotten, cpu=lambda spec: "a CPU"):
    folder.mkdir(exist_ok=True)
    for spec in specs:
        own = forgotten.get(spec.method.name, 5)
        inputs = Fingerprints("data", "made" if spec.method.external else None)
        options = {"inputs": inputs, "change": with_confidences(spec), "cpu": cpu(spec)}
        write_made(str(folder), "reduced-more", spec, levels(own, spec.seed), **options)
    write_class_names(str(folder), "cifar100", ["apple", "aquarium_fish"])
    rows = [("made", position, name) for position, name in enumerate(STREAM)]
    pd.DataFrame(rows, columns=["stream_digest", "position", "wordnet_id"]).to_parquet(folder / wordnet_labels.IMAGES)
    rows = [(*pair, steps) for pair, steps in DISTANCES.items()]
    pd.DataFrame(rows, columns=["class", "wordnet_id", "distance"]).to_parquet(folder / wordnet_labels.DISTANCES)
    return analysis.load(str(folder))


FORGOTTEN = {"gd+ext": 2, "gd": 6, "ref-p": 4, "sample-prev": 1, "ref-pc": 3, "teacher-dst": 3, "e2e": 4, "wa": 5}
"""Images of 100 that a method forgets of a task at each later stage; others forget 5."""


def texts(grid):
    return {row[0].text: [cell.text for cell in row[1:]] for row in grid.rows if len(row) > 1}
