"""`gd-ray prepare`: makes a wild stream and tells how it went."""

from time import perf_counter

from rich.console import Console

from gd_ray.wild.prepare import prepare, read_exclusions
from trials.view import progress_bar

_STEPS = {"read": "reading the source", "write": "writing shards"}


def run_prepare(source: str, out: str, exclude: tuple[str, ...], seed: int) -> None:
    console = Console(soft_wrap=True)
    started = perf_counter()
    names = read_exclusions(exclude)
    with progress_bar(console) as progress:
        bar = progress.add_task("listing the source", total=2.0)

        def on_progress(step: str, done: int, total: int) -> None:
            # Reading decodes, writing copies: the first is most of the work.
            share = 1.8 * done / total if step == "read" else 1.8 + 0.2 * done / total
            progress.update(bar, completed=share, description=f"{_STEPS[step]}: {done} of {total} parts")

        prepared = prepare(source, out, exclude=names, seed=seed, on_progress=on_progress)
    manifest, seconds = prepared.stream.manifest, perf_counter() - started
    size = sum(shard.bytes for shard in manifest.shards) / 1e6
    console.print(
        f"{out}: {manifest.images} images in {len(manifest.shards)} shards, {size:.0f} MB, "
        f"{seconds:.0f} s ({manifest.images / seconds:.0f} images/s)."
    )
    if manifest.excluded:
        left_out = sum(manifest.excluded.values())
        console.print(f"Left out {left_out} images of {len(manifest.excluded)} excluded classes.")
    if manifest.unreadable:
        console.print(f"{manifest.unreadable} could not be read; manifest.json lists them, the first: ", end="")
        console.print(manifest.unreadable_examples[0], markup=False)
    for warning in prepared.warnings:
        console.print(f"Warning: {warning}", markup=False)
