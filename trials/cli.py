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
            {"demo": demo, "list": list_methods},
            prog="gd-ray",
            description="Reproduce and extend 'Overcoming Catastrophic Forgetting with Unlabeled Data in the Wild'.",
        )
    except UserError as error:
        print(f"gd-ray: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("gd-ray: stopped.", file=sys.stderr)
        sys.exit(130)
