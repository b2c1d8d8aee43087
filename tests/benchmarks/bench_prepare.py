"""Preparing 60,000 JPEGs on two cores against Pillow's own decode and resize in a bare loop on one.

Everything is measured in this one run. Ray lowers its workers' priority to nice 15, so the bare loop runs at nice 15
too, before and after; its encoded pictures are in memory already. The only argument is a folder of Hugging Face-style
Parquet with JPEGs; without one, random 64x64 JPEGs are written first.
"""

import io
import multiprocessing
import os
import shutil
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from gd_ray.ray_utils import start_ray
from gd_ray.wild.shuffle import prepare_stream

NICENESS = 15
IMAGES = 60_000
COMPARED = 15_000
NEEDED = 1.8


def jpegs(folder: Path) -> list[bytes]:
    """The first encoded pictures of a folder."""
    found: list[bytes] = []
    for file in sorted(folder.glob("*.parquet")):
        column = next(name for name in ("image", "img") if name in pq.read_schema(file).names)
        found += pq.read_table(file, columns=[column])[column].combine_chunks().field("bytes").to_pylist()
        if len(found) >= COMPARED:
            break
    return found[:COMPARED]


def bare_loop(folder: Path, rate: "multiprocessing.Queue") -> None:
    """Pillow alone, one picture after the other."""
    os.nice(NICENESS)
    contents = jpegs(folder)
    started = perf_counter()
    for content in contents:
        Image.open(io.BytesIO(content)).convert("RGB").resize((32, 32), Image.Resampling.BOX)
    rate.put(len(contents) / (perf_counter() - started))


def bare_rate(folder: Path) -> float:
    context = multiprocessing.get_context("spawn")
    rate = context.Queue()
    process = context.Process(target=bare_loop, args=(folder, rate))
    process.start()
    found = rate.get()
    process.join()
    return found


def write_jpegs(folder: Path) -> None:
    """Smooth random pictures: about the size of Tiny-ImageNet's files."""
    folder.mkdir()
    for part in range(4):
        rows = []
        for k in range(IMAGES // 4):
            coarse = np.random.default_rng((part, k)).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(coarse).resize((64, 64), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=75)
            rows.append({"bytes": buffer.getvalue(), "path": None})
        pq.write_table(pa.table({"image": rows}), folder / f"{part}.parquet", row_group_size=2000)


def prepared(folder: Path, out: Path) -> tuple[float, int]:
    """Seconds to prepare the folder as a stream, and its images."""
    started = perf_counter()
    images = len(prepare_stream(str(folder), str(out)).stream)
    seconds = perf_counter() - started
    shutil.rmtree(out)
    return seconds, images


def main() -> None:
    scratch = Path(tempfile.mkdtemp())
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else scratch / "jpegs"
    if not folder.exists():
        write_jpegs(folder)
    before = bare_rate(folder)
    started = perf_counter()
    start_ray(num_cpus=2)
    starting = perf_counter() - started
    first, images = prepared(folder, scratch / "first")
    again, _ = prepared(folder, scratch / "again")
    bare = (before + bare_rate(folder)) / 2  # before and after: the machine's own speed drifts
    print(f"{images} JPEGs, two cores, nice {NICENESS}, load {os.getloadavg()[0]:.1f}:")
    print(f"  Pillow in a bare loop, one core        {bare:8.0f} images/s   ({1e6 / bare:.0f} us an image)")
    rows = {
        "prepare": again,
        "prepare, the first of a Ray": first,
        "prepare with the start of Ray": first + starting,
    }
    for name, seconds in rows.items():
        print(
            f"  {name:38s} {images / seconds:8.0f} images/s   ratio {images / seconds / bare:.2f}   ({seconds:.1f} s)"
        )
    print(f"  needed for 'prepare': {NEEDED}")
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
