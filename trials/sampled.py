"""`gd-ray sampled`: the stream images that a trial sampled, and where they come from. Imports pyarrow late."""

import re
from pathlib import Path
from typing import Annotated

import tyro

from gd_ray.errors import UserError, unknown_name
from trials.registry import DataLocations
from trials.resources import parse_folders

OOD = "ood"
"""Name of the class -1, of images that were sampled for no class."""


def sampled(
    results: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RESULTS")],
    trial: str,
    class_name: Annotated[str | None, tyro.conf.arg(name="class")] = None,
    stage: int | None = None,
    stream: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    copy: str | None = None,
) -> None:
    """List the stream images that a finished trial sampled: stage, class, score, position, and the original's path.

        gd-ray sampled results --trial 0f3a... --class orange --stream wild=streams/wild --copy oranges

    Args:
        results: The folder or address that 'gd-ray run --results' writes to.
        trial: A value of the column trial_id of the trials.
        class_name: Only images that were sampled for this class, by its name or number; 'ood' for no class.
        stage: Only images of this stage.
        stream: Folder of the trial's stream, as name=folder, unless it is streams/NAME.
        copy: Write the images to this folder, as PNG files of the stream's size.
    """
    import numpy as np
    from PIL import Image

    from gd_ray.naming import counted
    from gd_ray.storage import check_writable
    from gd_ray.store import read_class_names, read_rows

    trials, _ = read_rows(results, "trials", [trial], columns=["dataset", "stream", "stream_digest"])
    if not len(trials):
        raise UserError(f"results {results!r} have no finished trial {trial!r}; take a trial_id of {results}/trials.")
    (fields,) = trials.to_pylist()
    names = read_class_names(results).get(fields["dataset"], ())
    samples = read_rows(results, "samples", [trial])[0].to_pandas()
    if class_name is not None:
        samples = samples[samples["class"] == _label(class_name, names)]
    if stage is not None:
        samples = samples[samples["stage"] == stage]
    if samples.empty:
        raise UserError(f"trial {trial!r} sampled no such image; leave out --class or --stage to see all.")
    folders = parse_folders(stream, "--stream")
    for other in sorted(folders.keys() - {fields["stream"]}):
        raise UserError(f"--stream {other}={folders[other]} is not the trial's stream, which is {fields['stream']!r}.")
    opened = DataLocations(streams=folders).open_stream(fields["stream"], make=False)
    if fields["stream_digest"] not in (None, opened.digest):
        raise UserError(f"stream {opened.address!r} has other images than the trial learned from; give the one it had.")
    samples = samples.sort_values(["stage", "class", "score", "position"], ascending=[True, True, False, True])
    positions = samples["position"].to_numpy(np.int64)
    samples["class"] = samples["class"].map(dict(enumerate(names)) | {-1: OOD}).fillna(samples["class"])
    samples["path"] = [path or "(the stream was prepared without paths)" for path in opened.paths(positions)]
    columns = ["stage", "class", "score", "position", "path"]
    print(samples.to_string(columns=columns, index=False, float_format="%.4f", na_rep=""))
    if copy is not None:
        check_writable("--copy", copy)
        for number, image in enumerate(opened.read(positions)):
            row = samples.iloc[number]
            name = f"{number:05d}-stage-{row['stage']}-{row['class']}-position-{row['position']}"
            Image.fromarray(image).save(Path(copy, re.sub(r"[^\w-]", "_", name) + ".png"))
        print(f"{copy}: {counted(len(positions), 'image')}.")


def _label(text: str, names: tuple[str, ...]) -> int:
    """Return the number of a class by its name, or else by its number."""
    if text in names or text == OOD:
        return -1 if text == OOD else names.index(text)
    if not text.isdecimal():
        raise unknown_name("class", text, [*names, OOD])
    return int(text)
