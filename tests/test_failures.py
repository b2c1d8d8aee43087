"""The one line that a user sees of a failure."""

import pytest
import torch

from gd_ray.errors import Unreachable, UserError
from gd_ray.failures import ExplainedError, explain, innermost, is_users, last_line


def wrapped(error):
    """As Ray Data wraps what a scorer raised."""
    from ray.data.exceptions import UserCodeException
    from ray.exceptions import RayTaskError

    outer = UserCodeException("UDF failed to process a data block.")
    outer.__cause__ = error
    return RayTaskError("map", "long\ntraceback", outer)


MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (KeyError(), "KeyError"),
        (wrapped(ValueError("first")), "ValueError: first"),
        (UserError("task_size 3 is odd; give 2."), "task_size 3 is odd; give 2."),
        (wrapped(ExplainedError("2 scorers died")), "2 scorers died"),
    ],
)
def test_the_innermost_cause_is_the_line(error, line):
    assert explain(error) == line


@pytest.mark.parametrize(
    "error", [MEMORY, wrapped(MEMORY), RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
              RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be")]
)  # fmt: skip
def test_memory_of_a_gpu_names_share_batch_and_change(error):
    assert explain(error, gpus=0.25, batch="batches of 128 images in a trial") == (
        "the GPU ran out of memory for batches of 128 images in a trial with 0.25 of it; raise --gpus, so that fewer "
        "trials share one, or lower batch_size."
    )
    assert "end other programs on it" in explain(error, gpus=1)


def test_only_what_another_attempt_would_meet_again_is_the_users():
    assert is_users(innermost(wrapped(UserError("a"))))
    from ray.exceptions import RayTaskError

    alike = RayTaskError("map", "long\ntraceback", UserError("task_size 3 is odd.")).as_instanceof_cause()
    assert isinstance(alike, UserError)
    assert explain(alike) == "task_size 3 is odd."
    assert not is_users(Unreachable("storage does not answer"))
    assert not is_users(innermost(wrapped(MEMORY)))


def test_the_last_line_of_a_traceback_is_the_explanation():
    assert last_line("Traceback\n  x\ngd_ray.failures.ExplainedError: 2 scorers died\n") == "2 scorers died"
    assert last_line("Traceback\nray.exceptions.ActorDiedError: it died") == "ray.exceptions.ActorDiedError: it died"
    assert last_line("") == ""
