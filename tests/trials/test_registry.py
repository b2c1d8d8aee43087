"""Data sets by name: read once by a process, however many trials it runs."""

from dataclasses import replace

import pytest

from gd_ray.data import DATASETS, glyphs
from gd_ray.data.drawing import prepare_dataset
from gd_ray.errors import Unreachable, UserError
from gd_ray.ray_utils import map_in_process
from gd_ray.wild.shuffle import prepare_stream
from tests.helpers.made import made_spec
from tests.helpers.pictures import picture
from trials.registry import DataLocations, Sizes


def test_a_process_reads_a_data_set_once(monkeypatch):
    drawn = []
    load = glyphs.load_glyphs
    monkeypatch.setattr(glyphs, "load_glyphs", lambda *sizes: drawn.append(sizes) or load(*sizes))
    first = DataLocations().load_data("glyphs", 3, 2)
    assert DataLocations(storage="elsewhere").load_data("glyphs", 3, 2) is first
    assert DataLocations().load_data("glyphs", 4, 2).train.images.shape[0] == 400
    assert drawn == [(3, 2), (4, 2)]


@pytest.fixture
def flowers(tmp_path):
    for name in ("rose", "tulip"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for k in range(6):
            picture(k).save(tmp_path / "pictures" / name / f"{k}.png")
    prepare_dataset(str(tmp_path / "pictures"), str(tmp_path / "data" / "flowers"), mapper=map_in_process)
    return tmp_path


def test_a_prepared_folder_is_a_data_set_under_any_name(flowers):
    usual = DataLocations(base=str(flowers))
    usual.check_dataset("flowers")
    data = usual.load_data("flowers", None, None)
    assert (data.name, data.class_names, len(data.train), len(data.test)) == ("flowers", ("rose", "tulip"), 10, 2)
    named = DataLocations({"blossoms": str(flowers / "data" / "flowers")}, base="/elsewhere")
    named.check_dataset("blossoms")
    assert named.load_data("blossoms", None, None).name == "blossoms"
    assert named.load_data("blossoms", None, None).digest == data.digest


def test_names_of_prepared_folders_are_suggested(flowers):
    with pytest.raises(UserError, match=r"data set 'flower' does not exist; did you mean 'flowers'\?$"):
        DataLocations(base=str(flowers)).check_dataset("flower")
    with pytest.raises(UserError, match=r"data set 'blossom' does not exist; did you mean 'blossoms'\?$"):
        DataLocations({"blossoms": "x"}, base=str(flowers)).load_data("blossom", None, None)
    with pytest.raises(UserError, match=r"has no dataset.json; make it with 'gd-ray prepare dataset SOURCE FOLDER'"):
        DataLocations({"blossoms": str(flowers)}).load_data("blossoms", None, None)


def test_sizes_come_from_the_folders_where_they_are_known(flowers):
    prepare_stream("glyphs:40", str(flowers / "streams" / "wild"), mapper=map_in_process)
    here = DataLocations(base=str(flowers))
    spec = made_spec("gd+ext", dataset="flowers", stream="wild", num_classes=2, task_size=1)
    assert here.sizes(spec) == Sizes(5, 1, 40)
    assert here.sizes(replace(spec, dataset="cifar100", stream="glyphs:700")) == Sizes(stream=700)
    assert here.sizes(replace(spec, dataset="cifar100", stream="absent")) == Sizes()
    assert here.sizes(replace(spec, dataset="cifar100", method="gd")) == Sizes()
    named = DataLocations(streams={"far": str(flowers / "streams" / "wild")}, base="/elsewhere")
    assert named.stream_images("far") == 40


def test_a_folder_for_a_name_that_no_trial_has_is_a_mistake(flowers):
    specs = [made_spec(dataset="flowers", stream="wild"), made_spec("gd", dataset="flowers", stream="wild2")]
    DataLocations({"flowers": "x"}, {"wild": "a", "wild2": "b"}).check_names(specs)
    with pytest.raises(UserError, match=r"--stream wlid=a: no trial here has 'wlid'; did you mean 'wild'\?$"):
        DataLocations({"flowers": "x"}, {"wlid": "a"}).check_names(specs)
    with pytest.raises(UserError, match="--data mine=x: no trial here has 'mine'; choose one of: flowers.$"):
        DataLocations({"flowers": "x", "mine": "x"}).check_names(specs)


def test_a_registered_loader_gets_the_folder_and_the_numbers(monkeypatch, tmp_path, tiny_data):
    calls = []
    monkeypatch.setitem(DATASETS, "mine", lambda *arguments: calls.append(arguments) or tiny_data)
    locations = DataLocations({"mine": "here"}, base=str(tmp_path))
    locations.check_dataset("mine")
    assert locations.load_data("mine", 3, None) is tiny_data
    assert calls == [(str(tmp_path / "here"), 3, None)]


def test_mistakes_are_sentences(tmp_path):
    with pytest.raises(UserError, match="If it is elsewhere, give its folder with --data cifar100=FOLDER"):
        DataLocations(base=str(tmp_path)).load_data("cifar100", None, None)
    with pytest.raises(UserError, match=r"data set 'cifar10' does not exist; did you mean 'cifar100'\?$"):
        DataLocations().load_data("cifar10", None, None)


def test_storage_that_does_not_answer_stays_a_reason_to_try_again(monkeypatch):
    def unreachable(address):
        raise Unreachable(f"address {address!r} cannot be opened.")

    monkeypatch.setattr("gd_ray.wild.stream.read_manifest", unreachable)
    with pytest.raises(Unreachable, match=r"cannot be opened. If it is elsewhere, give its folder with --stream far="):
        DataLocations().open_stream("far")


def test_a_half_drawn_stream_of_a_killed_run_goes_when_it_is_drawn_again(tmp_path):
    left = tmp_path / "streams" / "glyphs-40-0123"
    (left / "stream").mkdir(parents=True)
    (left / "in-use").touch()
    assert len(DataLocations(storage=str(tmp_path)).open_stream("glyphs:40")) == 40
    assert [path.name for path in (tmp_path / "streams").iterdir()] == ["glyphs-40"]
