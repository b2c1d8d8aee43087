"""A trial small enough for tests: six classes in three tasks, a few updates a stage."""

from dataclasses import replace

from gd_ray.methods import METHODS, Method
from gd_ray.spec import TrialSpec
from gd_ray.store import write_stages, write_trial
from gd_ray.trial_result import TrialResult


def tiny_spec(**changes) -> TrialSpec:
    defaults = {
        "dataset": "glyphs",
        "stream": "glyphs",
        "num_classes": 6,
        "task_size": 2,
        "train_per_class": 8,
        "test_per_class": 4,
        "coreset_size": 8 if str(changes.get("method")).startswith("bic") else 7,  # one to hold out of each class
        "window": 60,
        "network": "wrn-10-1",
        "batch_size": 8,
        "epoch_factor": 0.005,
    }
    if isinstance(changes.get("method"), str) and changes["method"] in METHODS:
        changes = {**changes, "method": tiny_method(changes["method"])}
    return TrialSpec(**{**defaults, **changes})


def tiny_method(name: str) -> Method:
    """A preset. BiC holds out half of its coreset, for the usual tenth of a tiny one is no image; PLCiL takes labels
    that models are less sure of, for tiny ones are never surer."""
    options = {"bic": {"held_out": 0.5}, "plcil": {"threshold": 0.3}}
    family = name.partition("+")[0]
    return replace(METHODS[name], options=options[family]) if family in options else METHODS[name]


def write_result(folder, result: TrialResult, seed: int | None = None, **changes) -> str:
    """Write a result into the store, of the same trial or as if it were that of another seed."""
    spec = result.spec if seed is None else replace(result.spec, seed=seed, **changes)
    write_stages(str(folder), spec, result.stages)
    write_trial(str(folder), replace(result, spec=spec), device="cpu", threads=1)
    return spec.trial_id
