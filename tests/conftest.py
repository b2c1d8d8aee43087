import pytest
import torch
from hypothesis import settings

pytest.register_assert_rewrite("tests.helpers")  # so that asserts there, too, show what they compared
settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_data():
    from gd_ray.data.glyphs import load_glyphs

    return load_glyphs(train_per_class=8, test_per_class=4)


@pytest.fixture(scope="session")
def tiny_stream():
    from gd_ray.data.glyphs import wild_glyphs
    from gd_ray.wild.stream import MemoryStream

    return MemoryStream(wild_glyphs(200), block=64)


@pytest.fixture(scope="session")
def tiny_result(tiny_data, tiny_stream):
    from gd_ray.trial import run_trial
    from tests.helpers.tiny import tiny_spec

    return run_trial(tiny_spec(method="gd+ext"), tiny_data, tiny_stream)


@pytest.fixture
def small_inference(monkeypatch):
    """Batches of 16 where nothing learns: of the usual 256, a tiny trial would fill most with padding."""
    monkeypatch.setattr("gd_ray.evaluation.BATCH", 16)


@pytest.fixture
def pictures(tmp_path):
    """A folder with two classes of five pictures."""
    from tests.helpers.pictures import picture

    for k in range(10):
        path = tmp_path / "pictures" / ("cat" if k % 2 else "dog") / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(k).save(path)
    return tmp_path / "pictures"
