import ctypes
import mmap
import os

import numpy as np
import pytest
from scipy.io import savemat

from gd_ray.errors import UserError
from gd_ray.ray_utils import map_in_process
from gd_ray.sources.base import TinyRequest
from gd_ray.wild.shuffle import prepare_stream
from gd_ray.wordnet.exclusions import Exclusions
from tests.helpers.nouns import noun_line

RECORDS = 100_000
WORDS = ("aardvark", "lion", "lioness", "quilt", "zebra")
COUNTS = (20_000, 30_000, 10_000, 15_000, 25_000)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Random images and their file in the true layout: each record a 32x32x3 array in column-major order."""
    file = tmp_path_factory.mktemp("tiny") / "tiny_images.bin"
    images = np.random.default_rng(0).integers(0, 256, (RECORDS, 32, 32, 3), dtype=np.uint8)
    with file.open("wb") as target:
        for start in range(0, RECORDS, 10_000):
            block = images[start : start + 10_000]
            target.write(np.ascontiguousarray(block.transpose(0, 3, 2, 1)).data)
    assert file.read_bytes()[3072:6144] == images[1].tobytes(order="F")
    return images, file


def word_of(record):
    return WORDS[np.searchsorted(np.cumsum(COUNTS), record, side="right")]


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    """tiny_metadata.bin: 768 bytes a record, the first 80 for the word, filled with spaces."""
    file = tmp_path_factory.mktemp("words") / "metadata.bin"
    rows = [word.encode().ljust(80) + b"\x01" * 688 for word in WORDS]
    file.write_bytes(b"".join(row * count for row, count in zip(rows, COUNTS, strict=True)))
    return str(file)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    file = tmp_path_factory.mktemp("index") / "tiny_index.mat"
    cells = np.empty((1, len(WORDS)), object)
    cells[0] = WORDS
    savemat(file, {"word": cells, "num_imgs": np.array([COUNTS])})
    return str(file)


def make(file, out, *, exclude=None, **request):
    return prepare_stream(
        str(file), str(out), exclude=exclude, tiny=TinyRequest(**request), mapper=map_in_process
    ).stream


def keys(images):
    """What tells images apart: the first pixels of random ones do."""
    return images.reshape(len(images), -1)[:, :8].copy().view(np.uint64).ravel()


def records_of(stream, images):
    """The record of each image of a stream, all its pixels compared."""
    known = keys(images)
    order = np.argsort(known)
    assert len(np.unique(known)) == len(known)
    read = stream.read(np.arange(len(stream)))
    records = order[np.searchsorted(known[order], keys(read))]
    assert (images[records] == read).all()
    return records


def test_all_records_pixel_for_pixel(tiny, tmp_path):
    images, file = tiny
    records = records_of(make(file, tmp_path / "out"), images)
    assert (np.sort(records) == np.arange(RECORDS)).all()
    assert (records != np.arange(RECORDS)).mean() > 0.99  # shuffled


def test_the_index_file_leaves_out_exactly_its_records(tiny, tmp_path):
    images, file = tiny
    listed = np.random.default_rng(1).choice(RECORDS, 700, replace=False)
    listed[:2] = 0, RECORDS - 1
    (tmp_path / "indexes").write_text("\n".join(str(record + 1) for record in listed) + "\n0\n0\n")  # 0: unknown
    stream = make(file, tmp_path / "out", indexes=str(tmp_path / "indexes"))
    assert (np.sort(records_of(stream, images)) == np.setdiff1d(np.arange(RECORDS), listed)).all()
    assert sum(stream.manifest.excluded.values()) == 700


@pytest.mark.parametrize("form", ["metadata", "index"])
def test_words_of_listed_images_and_excluded_words(tiny, tmp_path, form, request):
    """A record of the index file takes all images of its word with it; names go too."""
    _, file = tiny
    (tmp_path / "indexes").write_text("60001\n25000\n")  # a quilt (the first) and a lion
    stream = make(
        file,
        tmp_path / "out",
        words=request.getfixturevalue(form),
        indexes=str(tmp_path / "indexes"),
        exclude=Exclusions(frozenset({"Zebra"})),
        images=1500,
    )
    names = stream.class_names(np.arange(len(stream)))
    assert set(names) == {"aardvark", "lioness"}
    assert len(names) == 1500
    assert 900 < names.count("aardvark") < 1100  # two thirds


def test_a_sample_is_uniform_without_repeats_and_fixed_by_the_seed(tiny, metadata, tmp_path):
    images, file = tiny
    stream = make(file, tmp_path / "a", images=5000, words=metadata)
    records = records_of(stream, images)
    assert len(np.unique(records)) == 5000
    tenths = np.bincount(records // (RECORDS // 10))
    assert (np.abs(tenths - 500) < 5 * np.sqrt(500 * 0.9)).all()
    assert stream.class_names(np.arange(9)) == [word_of(record) for record in records[:9]]
    again = make(file, tmp_path / "b", images=5000)
    assert (records_of(again, images) == records).all()


def resident(file):
    """Pages of a file that are in memory, and all its pages."""
    size = os.path.getsize(file)
    pages = -(-size // mmap.PAGESIZE)
    with open(file, "r+b") as source, mmap.mmap(source.fileno(), size) as mapped:
        state = (ctypes.c_ubyte * pages)()
        start = ctypes.c_char.from_buffer(mapped)
        code = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), state)
        del start
    assert code == 0
    return int((np.frombuffer(state, np.uint8) & 1).sum()), pages


def test_a_small_request_reads_little_of_the_file(tiny, tmp_path):
    _, file = tiny
    with open(file, "rb") as source:
        os.fsync(source.fileno())
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before, pages = resident(file)
    if before > 0.001 * pages:
        pytest.skip("this file system keeps its files in memory, so reading cannot be seen")
    make(file, tmp_path / "out", images=2000)
    read = resident(file)[0] - before
    print(f"a request of 2000 images read {read} of {pages} pages, {read / pages:.2%}")
    assert 2000 * 3072 / mmap.PAGESIZE * 0.9 < read < 0.05 * pages


def small(tmp_path, records=10):
    file = tmp_path / "tiny_images.bin"
    file.write_bytes(bytes(3072 * records))
    return file


@pytest.mark.parametrize(
    ("indexes", "says"),
    [("11\n", "'11' as its entry 1; entries are numbers from 0 to 10"), ("3\n-4\n", "'-4' as its entry 2")],
)
def test_bad_indexes(tmp_path, indexes, says):
    (tmp_path / "indexes").write_text(indexes)
    with pytest.raises(UserError, match=says):
        make(small(tmp_path), tmp_path / "out", indexes=str(tmp_path / "indexes"))


def test_bad_files_and_requests(tmp_path):
    file = small(tmp_path)
    with pytest.raises(UserError, match="images 11 is more than the 10 of 10 that are not excluded"):
        make(file, tmp_path / "out", images=11)
    with pytest.raises(UserError, match="images 0 must be at least 1"):
        make(file, tmp_path / "out", images=0)
    with pytest.raises(UserError, match="has images of 32x32, which cannot become 64x64; use --side 32"):
        prepare_stream(str(file), str(tmp_path / "out"), side=64, mapper=map_in_process)
    with pytest.raises(UserError, match="exclude needs the words of tiny_images.bin"):
        make(file, tmp_path / "out", exclude=Exclusions(frozenset({"lion"})))
    (tmp_path / "indexes").write_text("3\n")
    with pytest.raises(UserError, match="exclude needs the words of tiny_images.bin"):
        make(file, tmp_path / "out", exclude=Exclusions(frozenset({"lion"})), indexes=str(tmp_path / "indexes"))
    with pytest.raises(UserError, match="indexes 'nowhere' cannot be read"):
        make(file, tmp_path / "out", indexes="nowhere")
    (tmp_path / "tiny_metadata.bin").write_bytes(bytes(768 * 9))
    with pytest.raises(UserError, match="has 9 records, but tiny_images.bin has 10"):
        make(file, tmp_path / "out")
    (tmp_path / "other.mat").write_text("no matrix")
    with pytest.raises(UserError, match="cannot be read"):
        make(file, tmp_path / "out", words=str(tmp_path / "other.mat"))
    (tmp_path / "tiny_metadata.bin").unlink()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match="not whole records of 3072"):
        make(file, tmp_path / "out")
    with pytest.raises(UserError, match=r"is not a tiny_images.bin; remove --images"):
        make("glyphs:10", tmp_path / "out", images=5)


def test_indexes_without_words_are_told_to_leave_out_little(tmp_path):
    file = small(tmp_path)
    (tmp_path / "indexes").write_text("3\n")
    request = TinyRequest(indexes=str(tmp_path / "indexes"))
    prepared = prepare_stream(str(file), str(tmp_path / "out"), tiny=request, mapper=map_in_process)
    assert len(prepared.stream) == 9
    assert "only the listed images are excluded, not all images of their words" in prepared.warnings[0]


def test_words_that_match_cifar100(tiny, index, tmp_path):
    """The words of WordNet's synsets below CIFAR-100's stay out."""
    from gd_ray.wordnet.exclusions import read_exclusions

    (tmp_path / "data.noun").write_text("".join(_all_of_cifar100()))
    _, file = tiny
    stream = make(file, tmp_path / "out", words=index, images=900, exclude=read_exclusions(["cifar100"], str(tmp_path)))
    assert set(stream.class_names(np.arange(900))) == {"aardvark", "quilt", "zebra"}


def _all_of_cifar100():
    from gd_ray.wordnet.cifar100_synsets import SYNSETS

    synsets = {synset: name for name, synsets in SYNSETS.items() for synset in synsets}
    yield from (noun_line(synset[1:], [name], []) for synset, name in sorted(synsets.items()))
    yield noun_line("99999999", ["lioness"], [SYNSETS["lion"][0][1:]])
