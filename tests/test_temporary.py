"""Temporary folders: deleted at the end, or by another process once all that used them were killed."""

import subprocess
import sys

import pytest

from gd_ray.temporary import remove_temporary_folders, temporary_folder, use_folder

USE = """
import sys, time
from pathlib import Path
from gd_ray.temporary import use_folder
lock = use_folder(Path(sys.argv[1]))
print("in use", flush=True)
time.sleep(60)
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A process that uses a folder of this machine's temporary ones."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", USE, tmp_path / "gd-ray-x-1"], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "in use\n"
    yield process
    process.kill()
    process.wait()


def test_a_folder_goes_once_all_its_processes_were_killed(user, tmp_path):
    folder, others = tmp_path / "gd-ray-x-1", [tmp_path / "gd-ray-never-locked", tmp_path / "another-program"]
    for path in others:
        path.mkdir()
    with use_folder(folder):
        user.kill()
        user.wait()
        remove_temporary_folders()
        assert folder.exists()  # this process uses it too
    remove_temporary_folders()
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_a_folder_in_use_stays_and_names_its_process(user, tmp_path):
    remove_temporary_folders()
    assert (tmp_path / "gd-ray-x-1" / "in-use").read_text().endswith(f", process {user.pid}\n")


def test_a_temporary_folder_ends_with_its_block(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary_folder("x") as folder:
        (folder / "file").touch()
    assert not list(tmp_path.iterdir())
