"""Results as Parquet: written by each trial to files of its own, a temporary name first and then renamed."""

from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gd_ray.results import StageResult
from gd_ray.wild.manifest import filesystem_of


def write_atomically(table: pa.Table, address: str) -> None:
    """Writes a Parquet file that is whole or absent."""
    filesystem, path = filesystem_of(address)
    folder, name = path.rsplit("/", 1)
    filesystem.create_dir(folder, recursive=True)
    temporary = f"{folder}/.{name}.{uuid4().hex}.tmp"
    with filesystem.open_output_stream(temporary) as target:
        pq.write_table(table, target)
    filesystem.move(temporary, path)


def samples_table(stages: tuple[StageResult, ...]) -> pa.Table:
    """What Algorithm 2 chose: stage, position in the stream, class, confidence, source ('previous' or 'ood')."""
    samples = [stage.samples for stage in stages]
    sources = np.concatenate([np.where(part.is_ood, "ood", "previous") for part in samples])
    return pa.table(
        {
            "stage": np.repeat([stage.stage for stage in stages], [len(part.positions) for part in samples]),
            "position": np.concatenate([part.positions for part in samples]),
            "class": np.concatenate([part.classes for part in samples]),
            "confidence": np.concatenate([part.confidences for part in samples]),
            "source": pa.array(sources.astype(str)).dictionary_encode(),
        }
    )


def write_samples(results: str, experiment: str, trial_id: str, stages: tuple[StageResult, ...]) -> None:
    """samples/experiment=…/<trial id>.parquet under the results folder."""
    write_atomically(samples_table(stages), f"{results}/samples/experiment={experiment}/{trial_id}.parquet")
