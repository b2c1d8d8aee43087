"""What a trial returns: counts, so that every metric can be computed again exactly."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gd_ray.fingerprint import Fingerprints
from gd_ray.metrics import average_forgetting, average_incremental_accuracy
from gd_ray.spec import TrialSpec
from gd_ray.wild.sampling import Sample


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The outcome of one stage. All but `seconds` is the same in every run of the spec."""

    stage: int
    hits: tuple[int, ...]
    """Test images of tasks 1..t that the model of this stage gets right, task by task."""
    totals: tuple[int, ...]
    """Test images of tasks 1..t."""
    confusion: NDArray[np.int64]
    """Rows of (true class, predicted class, count), without zero counts; classes as numbered in the data set."""
    labelled_size: int
    coreset_size: int
    """Images in the coreset that this stage leaves."""
    samples: Sample
    """The external set; classes as numbered in the data set."""
    losses: dict[str, float]
    """Mean of each loss term over the last epoch of each training."""
    images: dict[str, int]
    """Images that each step worked on."""
    seconds: dict[str, float]
    """Wall-clock time of each step."""
    head_hits: tuple[int, ...] | None = None
    """`hits` of the model's head alone, where the model predicts otherwise; `hits` and `confusion` are the model's."""
    head_confusion: NDArray[np.int64] | None = None
    """`confusion` of the head, likewise."""
    task_aware_hits: tuple[int, ...] | None = None
    """Test images that are right among the classes of their own task, task by task. None in checkpoints of before."""
    top5_hits: tuple[int, ...] | None = None
    """Test images whose class is among the five with the highest scores, task by task."""
    nll: tuple[float, ...] | None = None
    """Sums of the head's negative log likelihood of the true class, task by task."""
    confidences: NDArray[np.float64] | None = None
    """The head's confidence, of classes not yet seen too: see `gd_ray.counts.Counts`."""
    teacher_confidences: NDArray[np.float64] | None = None
    """The same of the stage's teacher C, where one is trained: only the classes of its own task count as seen."""
    recorded: dict[str, float] = field(default_factory=dict)
    """Sizes of the model, and numbers that a learner records, such as WA's 'gamma'."""


@dataclass(frozen=True)
class TrialResult:
    """The outcome of a trial: its stages so far and the metrics over them."""

    spec: TrialSpec
    stages: tuple[StageResult, ...]
    fingerprints: Fingerprints = field(default_factory=Fingerprints)

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """accuracy[s, r]: after stage s+1 on task r+1; NaN where the task was not yet learned."""
        matrix = np.full((len(self.stages), len(self.stages)), np.nan)
        for row, stage in zip(matrix, self.stages, strict=True):
            row[: stage.stage] = np.array(stage.hits) / np.array(stage.totals)
        return matrix

    @property
    def acc(self) -> float:
        """Average incremental accuracy, in [0, 1]."""
        return average_incremental_accuracy(self.accuracy, self.spec.task_sizes[: len(self.stages)])

    @property
    def fgt(self) -> float:
        """Average forgetting under the spec's convention, in [0, 1]."""
        return self.forgetting(self.spec.convention)

    def forgetting(self, convention: str) -> float:
        return average_forgetting(self.accuracy, self.spec.task_sizes[: len(self.stages)], convention)
