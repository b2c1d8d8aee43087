"""The files that Tune writes while it runs, of which only logs of failures and events of TensorBoard are kept."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gd_ray.storage import is_remote, storage_errors
from gd_ray.temporary import remove_abandoned, remove_temporary_folders, temporary_folder, use_folder


@contextmanager
def tune_folder(storage: str, name: str, *, events: bool) -> Iterator[Path]:
    """Make the folder where Tune keeps its state, and delete that state at the end; nothing resumes from it.

    It is a temporary one, so that a run outlives storage that goes away; with events of TensorBoard, it is in the
    storage.
    """
    if not events:
        with temporary_folder("tune") as folder:
            yield folder / name
        return
    folder = Path(storage, "tune", name)
    with storage_errors(f"folder {str(folder)!r} cannot be written"):
        lock = use_folder(folder)
    with lock:
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
