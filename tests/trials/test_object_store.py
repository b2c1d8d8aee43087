"""Results, streams and storage in an object store, against a real S3 protocol server on loopback."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress

import numpy as np
import pandas as pd
import pytest

from gd_ray import filesystems
from gd_ray.checkpoint import Checkpoint
from gd_ray.errors import Unreachable, UserError
from gd_ray.heartbeat import progress_file, read_progress, read_running
from gd_ray.storage import (
    check_writable,
    create_file,
    delete_file,
    exists,
    file_names,
    filesystem_of,
    join,
    list_files,
    open_atomic,
    read_file,
    without_credentials,
    write_atomic,
)
from gd_ray.store import read_failures, read_selections, trial_states, write_failure
from gd_ray.trial import run_trial
from gd_ray.wild.shuffle import prepare_stream
from gd_ray.wild.stream import WildStream
from tests.helpers.runs import alone, frame, tiny
from tests.helpers.s3 import DENIED, THROTTLED, UNKNOWN_KEY, s3_server
from trials import claim
from trials.claim import acquire, beat, heartbeat, owns, release
from trials.registry import DataLocations

OWN_REQUESTS, ALL_REQUESTS = 50, 150
"""Most requests of a trial of three stages that is killed and resumed: for its own files (four tables and a checkpoint
a stage, the same once more for what was repeated, its row, model and first model), and with its shares of the stream,
of two drivers and of listings. Heartbeats apart, which are three requests in twelve seconds."""


@pytest.fixture(scope="module")
def s3():
    with pytest.MonkeyPatch.context() as environment, s3_server() as server:
        environment.setenv("AWS_ACCESS_KEY_ID", "key")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        server.make_bucket("bucket")
        yield server


@pytest.fixture
def folder(s3, request):
    """An address of the test's own."""
    return s3.address(f"bucket/{request.node.name}")


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(filesystems, "ATTEMPTS", 2)


def test_files_of_a_store_are_written_listed_read_created_and_deleted(s3, folder):
    address = join(folder, "a/b.json")
    assert not exists(address)
    assert file_names(folder, "a") == []
    before = len(s3.requests)
    write_atomic(address, b"one")
    assert [method for method, _ in s3.requests[before:]] == ["PUT"]
    assert exists(address)
    assert (file_names(folder, "a"), read_file(address)) == (["b.json"], b"one")
    assert not create_file(address, b"two")
    delete_file(address)
    delete_file(address)
    assert create_file(address, b"two")
    assert read_file(address) == b"two"


def write_half(address):
    with suppress(KeyboardInterrupt), open_atomic(address) as stream:
        stream.write(b"half")
        raise KeyboardInterrupt


def test_a_file_that_is_not_written_to_its_end_never_appears(folder):
    address = join(folder, "half")
    write_half(address)
    assert list_files(folder) == []
    write_atomic(address, b"whole")
    write_half(address)
    assert read_file(address) == b"whole"


def test_of_two_processes_that_create_an_object_at_once_the_last_one_has_it(folder, monkeypatch):
    address, write = join(folder, "claim"), write_atomic

    def another_is_faster(to, content):
        write(to, content)
        write(to, b"other")

    monkeypatch.setattr("gd_ray.storage.write_atomic", another_is_faster)
    assert not create_file(address, b"ours")


def test_throttled_requests_are_repeated_and_end_in_a_sentence_when_that_lasts(s3, folder, impatient):
    address = join(folder, "file")
    with s3.refusing(THROTTLED, "PUT", "HEAD", times=1) as refused:
        write_atomic(address, b"content")
    with s3.refusing(THROTTLED, "GET", times=1):
        assert read_file(address) == b"content"
    assert len(refused) == 1
    with (
        s3.refusing(THROTTLED, "PUT") as refused,
        pytest.raises(Unreachable, match=r"^failures/one.json of .*SLOW_DOWN.*network\.$") as error,
    ):
        write_failure(folder, "one", "why", "log")
    assert len(refused) == 2
    assert "\n" not in str(error.value)
    assert read_file(address) == b"content"


@pytest.mark.parametrize(
    ("answer", "bucket", "says"),
    [
        (DENIED, "bucket", r"ACCESS_DENIED.*; check the credentials \(AWS_ACCESS_KEY_ID .* right to write and delete"),
        (UNKNOWN_KEY, "bucket", r"INVALID_ACCESS_KEY_ID.*; check the credentials \(AWS_ACCESS_KEY_ID"),
        (None, "nobody-made-this", r"NO_SUCH_BUCKET.*; create the bucket or choose another address\.$"),
    ],
)
def test_a_store_that_cannot_be_written_is_told_before_any_trial(s3, answer, bucket, says):
    """The store of a read-only user answers to what reads."""
    address = s3.address(f"{bucket}/storage", user="key:hidden@")
    refusing = s3.refusing(answer, "PUT", "DELETE") if answer else nullcontext()
    with refusing, pytest.raises(UserError, match=says) as error:
        check_writable("storage", address)
    assert str(error.value).startswith(f"storage 's3://{bucket}/storage?scheme=http")
    assert "hidden" not in str(error.value)
    assert "\n" not in str(error.value)
    assert not isinstance(error.value, Unreachable)


def test_a_store_that_does_not_answer_or_has_no_name_is_told_in_a_sentence(impatient):
    with pytest.raises(Unreachable, match=r"^storage 's3://b.*NETWORK_CONNECTION.*; check the address and the network"):
        check_writable("storage", "s3://bucket/x?scheme=http&endpoint_override=127.0.0.1:9")
    with pytest.raises(UserError, match=r"^address 's3:///x' cannot be opened \(it names no bucket\)"):
        filesystem_of("s3:///x")
    with pytest.raises(UserError, match="Unexpected query parameter in S3 URI: 'shceme'"):
        filesystem_of("s3://bucket/x?shceme=http")


def test_secrets_of_an_address_are_in_nothing_that_is_stored(folder):
    with_key = folder.replace("s3://", "s3://key:secret@")
    assert without_credentials(f"gd-ray run x --storage {with_key} --results a@b") == (
        f"gd-ray run x --storage {folder} --results a@b"
    )
    write_failure(folder, "one", f"{with_key} failed", join(with_key, "log"))
    assert read_failures(folder) == {"one": f"{folder} failed ({join(folder, 'log')})"}


COST = [claim.StepCost(1, "teacher", 100, 3.0)]


def test_a_claim_in_a_store_is_held_renewed_taken_over_and_released(folder, monkeypatch):
    monkeypatch.setattr(claim, "STORE_HEARTBEAT_S", 0.05)
    monkeypatch.setattr(claim, "_STORE_LOOK_S", 0.05)
    monkeypatch.setattr(claim, "TAKE_OVER_ELSEWHERE_AFTER_S", 0.5)
    path = progress_file(folder, "one")
    assert acquire(path, "first")
    acquired = threading.Event()
    second = threading.Thread(target=lambda: (acquire(path, "second"), acquired.set()))
    with heartbeat(path, "first", COST) as report:
        second.start()
        report(1, "teacher", 50, 100)
        assert not acquired.wait(1.0)  # longer than the time after which a silent one is taken over
        assert read_running(folder)["one"].share == 0.5
    assert acquired.wait(10)
    assert read_progress(path).run == "second"
    beat(path, report.progress())
    release(path, "first")
    assert read_progress(path).run == "second"
    silent = {**json.loads(read_file(path)), "host": "elsewhere", "time": time.time() - 600}  # its clock is wrong
    write_atomic(path, json.dumps(silent).encode())
    started = time.monotonic()
    assert acquire(path, "third")
    assert time.monotonic() - started > 0.5
    assert owns(path, "third")


def test_a_run_that_sees_no_storage_still_shows_results(folder, impatient):
    from tests.helpers.made import made_spec, select

    unseen = "s3://bucket/x?scheme=http&endpoint_override=127.0.0.1:9"
    select(folder, "mine", [made_spec()], storage=unseen.replace("s3://", "s3://key:secret@"))
    (selection,) = read_selections(folder)
    assert selection.storage == unseen
    assert [state.state for state in trial_states(folder)] == ["waiting"]


def test_a_stream_made_in_a_store_equals_one_in_a_folder(s3, folder, tmp_path):
    prepare_stream("glyphs:600", str(tmp_path / "stream"), mapper=map)
    local = WildStream.open(str(tmp_path / "stream"))
    locations = DataLocations(storage=folder)
    made = locations.open_stream("glyphs:600")
    assert made.address == join(folder, "streams/glyphs-600")
    positions = np.arange(0, 600, 7)
    assert made.digest == local.digest
    assert np.array_equal(made.read(positions), local.read(positions))
    assert sorted(info.base_name for info in list_files(folder, "streams")) == ["glyphs-600"]
    before = len(s3.requests)
    locations.open_stream("glyphs:600")
    assert not {"PUT", "POST"} & {method for method, _ in s3.requests[before:]}


def test_a_checkpoint_in_a_store_continues_a_trial_to_the_same_bytes(folder, tiny_data, tmp_path):
    spec, saved = tiny("gd", num_classes=4), []
    whole = run_trial(spec, tiny_data, on_stage=lambda _, checkpoint: saved.append(checkpoint))
    address = join(folder, "checkpoints/one.pt")
    saved[0].save(address)
    saved[0].save(tmp_path / "one.pt")
    assert read_file(address) == (tmp_path / "one.pt").read_bytes()
    resumed = run_trial(spec, tiny_data, resume=Checkpoint.load(address))
    assert [stage.hits for stage in resumed.stages] == [stage.hits for stage in whole.stages]
    write_atomic(address, read_file(address)[:-9])
    with pytest.raises(UserError, match="cannot be read \\(ValueError\\); delete it"):
        Checkpoint.load(address)


GRID = "\n".join(
    f"{key}: {value}"
    for key, value in {**tiny("gd+ext", epoch_factor=0.05).flat(), "method": "[gd, gd+ext]"}.items()
    if not key.startswith("method_") and key != "plugin"
)


def command(folder, *words):
    return [sys.executable, "-P", "-c", "from trials.cli import main; main()", *words]


def test_a_run_with_everything_in_a_store_is_killed_resumed_and_read(s3, folder, tmp_path, request):
    """The rows of a run in one process; requests are counted."""
    before = len(s3.requests)
    results, storage = join(folder, "results"), join(folder, "storage")
    (tmp_path / "grid.yaml").write_text(GRID)
    words = command(tmp_path, "run", "grid.yaml", "--results", results, "--storage", storage)
    options = {"cwd": tmp_path, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    killed = subprocess.Popen(words, start_new_session=True, **options)
    deadline = time.monotonic() + 600
    saved = f"/bucket/{request.node.name}/storage/checkpoints/"
    while not any(path.startswith(saved) for method, path in s3.requests[before:] if method == "PUT"):
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert file_names(storage, "checkpoints")
    done = subprocess.run(words, **options)
    assert done.returncode == 0, done.stderr
    requests = [path for _, path in s3.requests if path.startswith(f"/bucket/{request.node.name}")]
    listed = [method for method, path in s3.requests[before:] if path.rstrip("/") == "/bucket"]
    heartbeats = [path for path in requests if "/progress/" in path]
    assert "ACC" in done.stdout
    specs = [tiny(method, epoch_factor=0.05) for method in ("gd", "gd+ext")]
    pd.testing.assert_frame_equal(
        frame(results, "stages"), alone(specs, tmp_path / "storage")[list(frame(results, "stages"))], check_exact=True
    )
    own = [path for path in requests if any(spec.trial_id in path for spec in specs) and path not in heartbeats]
    print(
        f"{len(requests)} requests: {len(own)} for files of trials, {len(heartbeats)} heartbeats; {len(listed)} lists"
    )
    assert len(own) / len(specs) <= OWN_REQUESTS
    assert (len(requests) + len(listed) - len(heartbeats)) / len(specs) <= ALL_REQUESTS
    assert file_names(storage, "checkpoints") == file_names(storage, "progress") == []
    assert sorted(os.listdir(tmp_path)) == ["grid.yaml", "storage"]  # of the run in this process
    for name, says in (("status", "2 "), ("plan", "2 trials"), ("report", "Report of 2 finished trials")):
        place = ["grid.yaml", "--results", results] if name == "plan" else [results]
        shown = subprocess.run(command(tmp_path, name, *place), **options)
        assert shown.returncode == 0, shown.stderr
        assert says in shown.stdout
    assert (tmp_path / "report.html").stat().st_size > 10_000
