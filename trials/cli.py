"""The command line, `gd-ray`. Torch and Ray are imported only by the commands that need them."""

import sys
from typing import Annotated

import tyro

from gd_ray.errors import UserError


def demo(seeds: Annotated[int, tyro.conf.arg(help="Trials of each method.")] = 1) -> None:
    """Compare five methods on the embedded glyphs data: a few minutes on two cores, nothing to download.

    Nine drawn characters are learned in three tasks. Oracle keeps all data, Baseline only a coreset; E2E and GD
    distil the previous model; GD+ext also samples unlabeled characters from a stream. The table shows the average
    incremental accuracy (ACC, higher is better) and the average forgetting (FGT, lower is better).
    """
    if seeds < 1:
        raise UserError(f"seeds {seeds} must be at least 1.")
    from trials.demo import run_demo

    run_demo(seeds)


def prepare(
    source: tyro.conf.Positional[str],
    out: tyro.conf.Positional[str],
    exclude: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    seed: int = 0,
) -> None:
    """Turn any source of images into a wild stream: 32x32, shuffled once, in Parquet shards with a manifest.

    SOURCE is a folder of images (a class per folder, or flat), Hugging Face-style Parquet, WebDataset tars,
    downsampled-ImageNet batches, a tiny_images.bin, or glyphs:N for N drawn characters. OUT is a folder or an address
    such as s3://bucket/stream. Corrupt images are counted and listed in OUT/manifest.json. Example:

        gd-ray prepare /data/imagenet21k /streams/wild --exclude ilsvrc.txt --exclude "aquarium fish"

    Args:
        source: Where the images are.
        out: Where the stream goes.
        exclude: A class to leave out, by its name or WordNet id, or a file with one on each line; may be repeated.
        seed: Of the shuffle.
    """
    from trials.prepare import run_prepare

    run_prepare(source, out, exclude, seed)


def list_methods() -> None:
    """List every method and ablation of the paper, and the tables they stand in."""
    from rich.console import Console
    from rich.table import Table

    from gd_ray.methods import METHODS, TABLES

    table = Table(box=None)
    for column in ("name", "title", "previous model", "teacher", "Q", "balancing", "fine-tuned", "external", "tables"):
        table.add_column(column)
    for method in METHODS.values():
        external = f"{method.previous_sampling} + {method.ood_sampling}" if method.external else "-"
        places = ", ".join(str(number) for number, rows in TABLES.items() if method.name in rows)
        table.add_row(
            method.name,
            method.title,
            method.previous,
            method.teacher,
            "yes" if method.ensemble else "-",
            method.balancing,
            method.fine_tuned,
            external,
            places,
        )
    Console(width=160).print(table)


def main() -> None:
    """Class-incremental learning with unlabeled data in the wild (ICCV 2019), as seeded trials."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            {"demo": demo, "list": list_methods, "prepare": prepare},
            prog="gd-ray",
            description="Reproduce and extend 'Overcoming Catastrophic Forgetting with Unlabeled Data in the Wild'.",
        )
    except UserError as error:
        print(f"gd-ray: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("gd-ray: stopped.", file=sys.stderr)
        sys.exit(130)
