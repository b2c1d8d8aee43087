"""Scoring the wild stream: Ray Data against the bare forward pass, against a DataLoader, and its growth with length.

Everything is measured in this one run, on two one-thread scorers. Ray lowers its workers' priority to nice 15, so all
comparisons run at nice 15 too. A stream of a million glyphs is prepared first (3 GB, kept in the folder given as the
only argument, or removed at the end).
"""

import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from gd_ray.conventions import CONVENTIONS
from gd_ray.data.augmentation import normalize
from gd_ray.data.glyphs import STATISTICS, wild_glyphs
from gd_ray.evaluation import BATCH
from gd_ray.malloc import keep_freed_memory
from gd_ray.methods import METHODS
from gd_ray.networks.classifier import Classifier, new_classifier
from gd_ray.ray_utils import start_ray
from gd_ray.seeding import Purpose, generator
from gd_ray.wild.ray_scoring import ScorerPool, ray_scorer
from gd_ray.wild.sampling import plan_sampling
from gd_ray.wild.scoring import ScoringJob
from gd_ray.wild.shuffle import prepare_stream
from gd_ray.wild.stream import WildStream, Window

NICENESS = 15
CLASSES = 50
LENGTHS = (125_000, 250_000, 500_000, 1_000_000)
COMPARED = 200_000
SKIPPED = 4_900  # the out-of-distribution share of 7,000 images is never scored


def network() -> Classifier:
    return new_classifier("wrn-10-1", 0.0, CLASSES, generator(0, 1, Purpose.INITIALISATION)).eval()


def forward_only(images: int, start: "multiprocessing.synchronize.Barrier", seconds: "multiprocessing.Queue") -> None:
    """A bare process: nothing but forward passes over normalize images that are in memory already."""
    os.nice(NICENESS)
    keep_freed_memory()  # as the scorers do; without it a third of the time is lost
    torch.set_num_threads(1)
    model = network()
    batches = [normalize(torch.from_numpy(wild_glyphs(BATCH, BATCH * k)), STATISTICS) for k in range(4)]
    with torch.inference_mode():
        model(batches[0])
        start.wait()
        started = perf_counter()
        for k in range(images // BATCH):
            model(batches[k % len(batches)])
        seconds.put(perf_counter() - started)


def bare_rate(images: int) -> float:
    """Images per second of two bare processes together."""
    context = multiprocessing.get_context("spawn")
    barrier, seconds = context.Barrier(2), context.Queue()
    processes = [context.Process(target=forward_only, args=(images // 2, barrier, seconds)) for _ in range(2)]
    for process in processes:
        process.start()
    times = [seconds.get() for _ in processes]
    for process in processes:
        process.join()
    return 2 * (images // 2 // BATCH * BATCH) / max(times)


class Pictures(Dataset):
    """The usual way: one image at a time through PIL transforms."""

    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(STATISTICS.mean, STATISTICS.std)])

    def __init__(self, images: np.ndarray) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(Image.fromarray(self.images[index]))


def dataloader_rate(images: np.ndarray, niced: "multiprocessing.Queue") -> None:
    """One model fed by a DataLoader with two workers, the model on both cores."""
    os.nice(NICENESS)
    torch.set_num_threads(2)
    model = network()
    loader = DataLoader(Pictures(images), batch_size=BATCH, num_workers=2)
    started = perf_counter()
    with torch.inference_mode():
        for batch in loader:
            torch.softmax(model(batch), dim=1).max(dim=1)
    niced.put(len(images) / (perf_counter() - started))


class Memory:
    """The highest resident memory of this process plus the object store's, while it is open."""

    def __enter__(self) -> "Memory":
        self.peak, self.open = 0, True
        self.before = shutil.disk_usage("/dev/shm").used
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while self.open:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * page
            self.peak = max(self.peak, resident + max(0, shutil.disk_usage("/dev/shm").used - self.before))
            sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self.open = False
        self.thread.join()


def score(stream: WildStream, length: int) -> tuple[float, float]:
    """Seconds to score a window of that length with two scorers, and the peak memory in GB."""
    plan = plan_sampling(METHODS["gd+ext"], CONVENTIONS["paper"], size=7000, ood_ratio=0.7, num_classes=CLASSES)
    window = Window(0, length, len(stream))
    with Memory() as memory:
        started = perf_counter()
        job = ScoringJob(network(), STATISTICS, stream, window, plan)
        ray_scorer(ScorerPool(scorers=2))(job, lambda _: None)
        seconds = perf_counter() - started
    return seconds, memory.peak / 1e9


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    out = folder / "glyphs-1M"
    start_ray(num_cpus=2)
    if not (out / "manifest.json").exists():
        started = perf_counter()
        prepare_stream(f"glyphs:{LENGTHS[-1]}", str(out))
        size = sum(file.stat().st_size for file in out.iterdir()) / 1e9
        print(f"prepare glyphs:{LENGTHS[-1]}: {perf_counter() - started:.0f} s, {size:.2f} GB")
    stream = WildStream.open(str(out))

    score(stream, 16_384)  # the first pipeline of a Ray starts slower than all others
    small = score(stream, 16_384)[0]
    bare = bare_rate(COMPARED // 4)
    seconds = score(stream, COMPARED)[0]
    bare = (bare + bare_rate(COMPARED // 4)) / 2  # before and after: the machine's own speed drifts
    rate = (COMPARED - 16_384) / (seconds - small)
    startup = small - 16_384 / rate
    print(f"two scorers, WRN-10-1, batch {BATCH}, {COMPARED} images, nice {NICENESS}:")
    print(f"  bare forward passes in two processes   {bare:8.0f} images/s")
    print(f"  Ray Data pipeline                      {rate:8.0f} images/s   ratio {rate / bare:.2f}")
    print(f"  start-up of its pool, apart            {startup:8.1f} s", flush=True)

    context = multiprocessing.get_context("spawn")
    result = context.Queue()
    process = context.Process(target=dataloader_rate, args=(stream.read(np.arange(30_000)), result))
    process.start()
    usual = result.get()
    process.join()
    print(f"  DataLoader of per-image transforms     {usual:8.0f} images/s   ratio {rate / usual:.2f}")

    print("length of the window, seconds, images/s after start-up, the same over bare forward passes just before,")
    print("peak GB of driver and object store:")
    ratios = []
    for length in LENGTHS:
        bare = bare_rate(COMPARED // 8)
        seconds, memory = score(stream, length)
        rate = (length - SKIPPED) / (seconds - startup)
        ratios.append(rate / bare)
        print(f"  {length:9d}  {seconds:7.1f}  {rate:8.0f}  {ratios[-1]:5.2f}  {memory:5.2f}", flush=True)
    print(f"  least over greatest ratio: {min(ratios) / max(ratios):.2f}")
    if len(sys.argv) == 1:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
