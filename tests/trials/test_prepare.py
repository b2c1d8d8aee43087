"""The sub-commands of `gd-ray prepare`."""

import subprocess
import sys

import numpy as np
import pytest

from gd_ray.wild.stream import WildStream
from tests.helpers.nouns import wnid, write_wordnet
from tests.helpers.pictures import picture
from trials import cli
from trials.registry import DataLocations

CLASSES = {"poodle": 5, "collie": 6, "cat": 7, "tabby": 5}


@pytest.fixture
def source(tmp_path):
    for word, number in CLASSES.items():
        (tmp_path / "source" / wnid(word)).mkdir(parents=True)
        for k in range(number):
            picture(k).save(tmp_path / "source" / wnid(word) / f"{k}.png")
    return str(tmp_path / "source")


def test_a_set_a_stream_and_its_splits(source, tmp_path):
    """Four commands in one process, which share its Ray."""
    (tmp_path / "goals.txt").write_text(wnid("poodle"))
    wordnet = write_wordnet(tmp_path / "wordnet")
    (tmp_path / "source" / "a.heic").touch()
    commands = [
        ["dataset", source, "data/pets", "--side", "64", "--test-per-class", "2"],
        ["imagenet32", source, "data/imagenet32", "--train-per-class", "3", "--test-per-class", "2", "--set-size", "2"],
        ["stream", source, "wild", "--exclude", wnid("poodle")],
        ["distances", "wild", "wild", "--to", "goals.txt", "--least", "6", "--wordnet", wordnet],
    ]
    script = f"for words in {commands!r}:\n    sys.argv = ['gd-ray', 'prepare', *words]\n    main()\n"
    code = f"import sys\nfrom trials.cli import main\n{script}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "4 classes, 12 + 8 images of 32x32" in done.stdout
    assert "2 sets of 2 classes, one for each seed from 0" in done.stdout
    assert "wild-distance-1: distance 2, 1 class, 6 images." in done.stdout
    assert "wild-distance-2: distances 3 to 4, 2 classes, 12 images." in done.stdout
    assert "data/pets: 4 classes, 15 + 8 images of 64x64" in done.stdout
    assert done.stdout.count(f"Passed over 1: unknown format .heic ({source}/a.heic).") == 3
    data = DataLocations(base=str(tmp_path)).load_data("pets", None, None)
    assert (data.num_classes, len(data.train), len(data.test), data.side) == (4, 15, 8, 64)
    data = DataLocations(base=str(tmp_path)).load_data("imagenet32", None, None)
    assert (data.num_classes, len(data.train), len(data.test)) == (4, 12, 8)
    far = WildStream.open(str(tmp_path / "wild-distance-2"))
    assert set(far.class_names(np.arange(12))) == {wnid("cat"), wnid("tabby")}


def said(monkeypatch, capsys, *arguments):
    """What a command that is refused says, in its one sentence."""
    monkeypatch.setattr(sys, "argv", ["gd-ray", "prepare", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("gd-ray: ")
    assert error.count("\n") == 1
    return error


def test_mistakes_are_one_sentence(source, tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "out")
    few = said(monkeypatch, capsys, "imagenet32", source, out, "--set-size", "4")
    assert f"class '{wnid('poodle')}' of source {source!r} has 5 images, but 500 + 100 are needed (3 more" in few
    nowhere = str(tmp_path)
    assert "install Debian's package wordnet-base" in said(
        monkeypatch, capsys, "stream", source, out, "--exclude", "cifar100", "--wordnet", nowhere
    )
    assert "install Debian's package wordnet-base" in said(
        monkeypatch, capsys, "distances", nowhere, out, "--wordnet", nowhere
    )
    wordnet = write_wordnet(tmp_path / "wordnet")
    assert "list 'nothing.txt' cannot be read" in said(
        monkeypatch, capsys, "distances", nowhere, out, "--wordnet", wordnet, "--to", "nothing.txt"
    )
    assert "has no manifest.json" in said(monkeypatch, capsys, "distances", nowhere, out, "--wordnet", wordnet)
    assert "is not a tiny_images.bin" in said(monkeypatch, capsys, "stream", source, out, "--images", "5")
    assert "CIFAR-100's synset n" in said(
        monkeypatch, capsys, "stream", source, out, "--exclude", "cifar100", "--wordnet", wordnet
    )


def test_a_source_without_a_sub_command_and_folders_named_like_one(source, tmp_path, monkeypatch, capsys):
    told = said(monkeypatch, capsys, source, "out")
    assert f"prepare needs one of stream, dataset, imagenet32, cifar100, distances before {source!r}" in told
    assert f"write 'gd-ray prepare stream {source} out'" in told
    monkeypatch.chdir(tmp_path)
    assert "source 'cifar100' does not exist" in said(monkeypatch, capsys, "stream", "cifar100", "imagenet32")


@pytest.mark.parametrize("command", ["stream", "dataset", "imagenet32", "distances", "cifar100"])
def test_help(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gd-ray", "prepare", command, "--help"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 0
    assert f"gd-ray prepare {command}" in " ".join(capsys.readouterr().out.split())
