"""Commands on a results folder: `gd-ray pack`, `export`, `log` and `convert`. Torch is imported late."""

from typing import Annotated

import tyro

from gd_ray.errors import UserError


def pack(results: tyro.conf.Positional[str] = "results") -> None:
    """Move the rows of all finished trials into one Parquet file per kind, for upload and faster reading.

    Everything reads packed results as it reads single files, and runs add to them. An interruption loses nothing.
    Methods have different losses: of packed stages pandas reads every column, of single files those of the first.

    Args:
        results: The folder that 'gd-ray run --results' writes to.
    """
    import gd_ray.store

    numbers = gd_ray.store.pack(results)
    if not any(numbers.values()):
        raise UserError(f"results {results!r} have no finished trial; give the folder that 'gd-ray run' wrote to.")
    print(f"{results}: {', '.join(f'{kind} of {number}' for kind, number in numbers.items())} finished trials packed.")


def export(
    trial: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TRIAL")],
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    results: str = "results",
    stage: int | None = None,
) -> None:
    """Export the model of a trial as a folder that torch and safetensors load without gd_ray.

    It has model.safetensors, config.json (network, classes in the order of learning, mean and std, spec, digests),
    load_model.py and a model card. 'gd-ray run --keep-models' says which models are kept.

    Args:
        trial: The id of a trial, or its beginning.
        out: A new or empty folder.
        results: The folder or address that 'gd-ray run --results' writes to.
        stage: The stage whose model to take; the last one that was kept without it.
    """
    from trials.export import export_model

    config = export_model(results, trial, out, stage)
    print(
        f"{out}: the model of trial {config['trial_id']} after stage {config['stage']}; README.md shows how to use it."
    )


def log(
    results: tyro.conf.Positional[str] = "results",
    to: Annotated[str, tyro.conf.arg(metavar="TRACKER")] = "tensorboard",
    project: str = "gd_ray",
    out: str | None = None,
) -> None:
    """Log finished trials to a tracker: a run per trial with its spec and the metrics of every stage.

    It may be repeated: a trial that the tracker has is skipped. Trackers are not installed with gd_ray, TensorBoard's
    writer apart. Each takes its own settings, such as MLFLOW_TRACKING_URI or WANDB_MODE=offline. Examples:

        gd-ray log results && tensorboard --logdir results/tensorboard
        gd-ray log results --to mlflow --project forgetting

    Args:
        results: The folder or address that 'gd-ray run --results' writes to.
        to: tensorboard, mlflow or wandb.
        project: Experiment of MLflow, or project of W&B.
        out: Folder for TensorBoard; tensorboard in the results folder without it (here, for an address).
    """
    from trials.trackers import log_results

    new, number = log_results(results, to, project, out)
    print(f"{to}: {new} of {number} finished trials logged, the others were there before.")


def convert(
    old: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OLD")],
    new: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NEW")],
) -> None:
    """Convert results of version 0.1 (folders experiment=...) into a new results folder; OLD is not changed.

    Args:
        old: Results of version 0.1.
        new: The folder for the converted results; it must not have results yet.
    """
    from gd_ray.naming import counted
    from trials.convert import convert_results

    number, unfinished = convert_results(old, new)
    what = f"{counted(number, 'trial')} converted and packed"
    print(f"{new}: {what}; former ids are in the column old_trial_id of trials.")
    if unfinished:
        print(f"{counted(unfinished, 'unfinished trial')} left out; 'gd-ray run' computes what is missing.")
