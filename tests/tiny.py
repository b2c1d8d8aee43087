"""A trial small enough for tests: six classes in three tasks, a few updates a stage."""

from gd_ray.spec import TrialSpec


def tiny_spec(**changes) -> TrialSpec:
    defaults = {
        "dataset": "glyphs",
        "stream": "glyphs",
        "num_classes": 6,
        "task_size": 2,
        "train_per_class": 8,
        "test_per_class": 4,
        "coreset_size": 7,
        "window": 60,
        "depth": 10,
        "width": 1,
        "batch_size": 8,
        "epoch_factor": 0.005,
    }
    return TrialSpec(**{**defaults, **changes})
