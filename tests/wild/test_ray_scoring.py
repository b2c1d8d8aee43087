"""The Ray Data pipeline gives the in-process twin's samples, whatever the pool, and survives what may happen."""

import ctypes
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from gd_ray.data.glyphs import STATISTICS
from gd_ray.errors import UserError
from gd_ray.failures import ExplainedError
from gd_ray.networks.classifier import new_classifier
from gd_ray.ray_utils import exit_without_destructors, map_in_process, map_with_ray
from gd_ray.seeding import Purpose, generator
from gd_ray.spec import TrialSpec
from gd_ray.storage import disk_full_errors
from gd_ray.wild.external import sample_external_set
from gd_ray.wild.ray_scoring import ScorerPool, ray_scorer
from gd_ray.wild.scoring import score_in_process
from gd_ray.wild.shuffle import prepare_stream
from gd_ray.wild.stream import WildStream


@pytest.fixture(scope="module")
def ray():
    import ray

    from gd_ray.ray_utils import start_ray

    start_ray(num_cpus=4)  # four scorers at once, also where there are fewer cores
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def stream(tmp_path_factory, ray):
    out = tmp_path_factory.mktemp("streams") / "glyphs"
    return prepare_stream("glyphs:6000", str(out), shard_rows=2000, group_rows=500).stream


@pytest.fixture(scope="module")
def previous():
    return new_classifier("wrn-10-1", 0.0, 8, generator(0, 1, Purpose.INITIALISATION)).eval()


def spec(method="gd+ext", convention="paper"):
    return TrialSpec(
        method=method,
        convention=convention,
        dataset="glyphs",
        stream="glyphs",
        num_classes=40,
        task_size=8,
        window=5700,
    )


def sampled(previous, stream, scorer, report=lambda *_: None, **options):
    labels = np.arange(32) % 16  # of eight previous and eight new classes
    labelled = (torch.from_numpy(stream.read(np.arange(32))), labels)
    found = sample_external_set(spec(**options), 2, 400, previous, STATISTICS, stream, scorer, report, labelled)
    sample = found.sample
    order = np.argsort(sample.positions)
    return sample.positions[order], sample.classes[order], sample.scores[order], found.images[order]


def same(a, b):
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def test_prepare_in_parallel_gives_the_bytes_of_one_process(stream, tmp_path):
    twin = prepare_stream(
        "glyphs:6000", str(tmp_path / "s"), shard_rows=2000, group_rows=500, mapper=map_in_process
    ).stream
    assert twin.manifest.shards == stream.manifest.shards
    for shard in stream.manifest.shards:
        assert Path(stream.address, shard.file).read_bytes() == Path(twin.address, shard.file).read_bytes()


@pytest.mark.parametrize("pool", [ScorerPool(scorers=1), ScorerPool(scorers=4, cpus=0.5, units=5)])
def test_every_pool_gives_the_samples_of_the_in_process_twin_and_counts_every_image(stream, previous, pool):
    told = []

    def report(stage, step, done, total):
        told.append((stage, step, done, total))

    assert same(sampled(previous, stream, score_in_process), sampled(previous, stream, ray_scorer(pool), report))
    assert told[-1] == (2, "score", 5420, 5420)  # all of the window but the 280 that are OOD unseen


@pytest.mark.parametrize(
    ("method", "convention"), [("sample-ood-pred", "paper"), ("gd+ext", "released"), ("sample-nearest-far", "paper")]
)
def test_other_rules_give_the_same_too(stream, previous, method, convention):
    options = {"method": method, "convention": convention}
    assert same(
        sampled(previous, stream, score_in_process, **options),
        sampled(previous, stream, ray_scorer(ScorerPool(scorers=2, units=1)), **options),
    )


def test_a_users_mistake_that_a_task_meets_is_told_as_it_was_said_there(ray):
    def refuse(item):
        raise UserError(f"item {item} is too much; take another.")

    with pytest.raises(UserError) as error, disk_full_errors("out", "out"):
        list(map_with_ray(refuse, [7]))
    assert str(error.value) == "item 7 is too much; take another."


def test_a_damaged_shard_that_a_scorer_meets_is_named(stream, previous, tmp_path):
    out = shutil.copytree(stream.address, tmp_path / "damaged")
    shard = sorted(out.glob("*.parquet"))[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError) as error:
        sampled(previous, WildStream.open(str(out)), ray_scorer(ScorerPool(scorers=1)))
    assert str(error.value).startswith(f"stream shard {shard} does not match its checksum in row group")


def disturbed(stream, seen, disturb):
    """A stream whose reads leave the number of their process and are then disturbed."""

    class Disturbed:  # within a function, so that it is sent to the scorers whole
        side = 32

        def __len__(self):
            return len(stream)

        def units(self, window, skip):
            return stream.units(window, skip)

        def load(self, unit):
            (seen / str(os.getpid())).touch()
            disturb()
            return stream.load(unit)

        def read(self, positions):
            return stream.read(positions)

    return Disturbed()


def test_a_killed_scorer_is_replaced_and_the_samples_stay(stream, previous, tmp_path):
    killed = []

    def kill_one():
        deadline = time.time() + 60
        while not killed and time.time() < deadline:
            time.sleep(0.05)
            for path in list(tmp_path.iterdir())[:1]:
                os.kill(int(path.name), signal.SIGKILL)
                killed.append(path.name)

    killer = threading.Thread(target=kill_one)
    killer.start()
    found = sampled(
        previous, disturbed(stream, tmp_path, lambda: time.sleep(0.4)), ray_scorer(ScorerPool(scorers=2, units=1))
    )
    killer.join()
    assert killed
    assert {*killed} < {path.name for path in tmp_path.iterdir()}  # others went on
    assert same(sampled(previous, stream, score_in_process), found)


@pytest.mark.parametrize(
    ("deadly", "restarts", "processes", "error"),
    [
        (
            lambda: os._exit(1),
            1,
            2,
            r"^2 scorers of the stream died on .+ \(processes \d+, \d+\): they exited without an error or a fatal",
        ),
        (
            lambda: signal.raise_signal(signal.SIGSEGV),
            0,
            1,
            r"^1 scorer of the stream died on .+ \(processes \d+\): Segmentation fault at .+test_ray_scoring.py:\d+;",
        ),
        (
            lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory")),
            1,
            1,
            "GPU ran out of memory for 256 images of the stream in a scorer with 0.5 of it; raise --gpus",
        ),
    ],
)
def test_a_scorer_that_always_fails_ends_the_stage(stream, previous, tmp_path, deadly, restarts, processes, error):
    pool = ScorerPool(scorers=1, restarts=restarts, trial_gpus=0.5)
    with pytest.raises(ExplainedError, match=error):
        sampled(previous, disturbed(stream, tmp_path, deadly), ray_scorer(pool))
    assert len(list(tmp_path.iterdir())) == processes


def test_a_scorer_ends_though_a_destructor_of_a_library_hangs(ray):
    class HangsAtExit:
        def __init__(self):
            exit_without_destructors()
            libc = ctypes.CDLL(None)
            libc["__cxa_atexit"](ctypes.cast(libc.pause, ctypes.c_void_p), None, None)

        def pid(self):
            return os.getpid()

    actor = ray.remote(num_cpus=0)(HangsAtExit).remote()
    pid = ray.get(actor.pid.remote())
    del actor
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
