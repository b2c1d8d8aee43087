"""Published results, and what README.md and REPRODUCTION.md have of them."""

from pathlib import Path

from gd_ray.store import finished

FOLDER = Path(__file__).parent


def result_folders(folder: Path) -> list[Path]:
    """Return the folders of results of an experiment: one for each kind of CPU that ran it, or the folder itself.

    The same trial has one id on every kind of CPU, so results of two kinds cannot be in one folder.
    """
    kinds = (
        sorted(path for path in folder.iterdir() if path.is_dir() and finished(str(path))) if folder.is_dir() else []
    )
    return kinds or ([folder] if finished(str(folder)) else [])
