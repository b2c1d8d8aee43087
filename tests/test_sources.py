"""Data sets by name: read once by a process, however many trials it runs."""

import pytest

from gd_ray.data import glyphs
from gd_ray.errors import UserError
from trials.sources import Places


def test_a_process_reads_a_data_set_once(monkeypatch):
    drawn = []
    load = glyphs.load_glyphs
    monkeypatch.setattr(glyphs, "load_glyphs", lambda *sizes: drawn.append(sizes) or load(*sizes))
    first = Places().load_data("glyphs", 3, 2)
    assert Places(storage="elsewhere").load_data("glyphs", 3, 2) is first
    assert Places().load_data("glyphs", 4, 2).train.images.shape[0] == 400
    assert drawn == [(3, 2), (4, 2)]


def test_mistakes_are_sentences(tmp_path):
    with pytest.raises(UserError, match="If it lies elsewhere, name its folder with --data cifar100=FOLDER"):
        Places(base=str(tmp_path)).load_data("cifar100", None, None)
    with pytest.raises(UserError, match=r"dataset 'cifar10' does not exist; did you mean 'cifar100'\?$"):
        Places().load_data("cifar10", None, None)
