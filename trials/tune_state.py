"""The files that Tune writes while it runs, of which only logs of failures and events of TensorBoard are kept."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gd_ray.storage import is_remote, storage_errors
from gd_ray.temporary import remove_abandoned, remove_temporary_folders, temporary_folder, use_folder


@contextmanager
def tune_folder(storage: str, name: str) -> Iterator[Path]:
    """Make the folder where Tune keeps its state, and delete that state at the end; nothing resumes from it.

    For an object store it is a temporary folder.
    """
    with ExitStack() as stack:
        with storage_errors("the folder of Tune cannot be written"):
            parent = stack.enter_context(temporary_folder("tune")) if is_remote(storage) else Path(storage, "tune")
            folder = parent / name
            stack.enter_context(use_folder(folder))
        try:
            yield folder
        finally:
            remove_tune_state(folder)


def remove_abandoned_files(storage: str) -> None:
    """Delete what killed runs left in the storage, and what their processes left on this machine."""
    if not is_remote(storage):
        remove_abandoned(Path(storage, "tune").glob("*"), remove_tune_state)
    remove_temporary_folders()


def remove_tune_state(folder: Path) -> None:
    """Delete what Tune would resume from, which trials do not; keep logs of failures and events of TensorBoard."""
    with suppress(OSError):
        for path in (*folder.glob("*"), *folder.glob("*/error.pkl")):
            if path.is_file():
                path.unlink()
        for path in (*folder.iterdir(), folder):
            with suppress(OSError):  # not empty
                path.rmdir()
