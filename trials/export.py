"""Export a kept model as a folder that works without gd_ray: weights, description, loader and model card."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

from jinja2 import Environment, PackageLoader, StrictUndefined

import gd_ray.networks
from gd_ray.errors import UserError
from gd_ray.kept_models import kept_stages, read_model
from gd_ray.spec import EXTERNAL_FIELDS
from gd_ray.store import finished, read_rows

_TEMPLATES = Environment(
    loader=PackageLoader("trials"), trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
)
_LAST_IMPORT = "from gd_ray.networks.dropout import DropoutRng, drop\n"


def export_model(results: str, trial: str, out: str, stage: int | None = None) -> dict[str, Any]:
    """Write the model of a trial's stage, by default its last kept one, to a new folder; return its description."""
    folder = Path(out)
    if "://" in out:
        raise UserError(f"out {out!r} is an address; give a folder of this machine.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"out {out!r} exists and is not an empty folder; give another one.")
    kept = kept_stages(results)
    trial_id = find_trial(trial, finished(results) | set(kept), results)
    content, config = read_model(results, trial_id, _stage(results, trial_id, kept.get(trial_id, []), stage))
    files = {"model.safetensors": content, **_texts(config, content, _accuracy(results, config))}
    temporary = folder.absolute().with_name(f".{folder.name}.{uuid4().hex}.tmp")
    try:
        temporary.mkdir(parents=True)
        for name, file_content in files.items():
            (temporary / name).write_bytes(file_content)
        os.rename(temporary, folder)  # replaces an empty folder
    except OSError as error:
        raise UserError(f"out {out!r} cannot be written ({error.strerror}); choose another folder.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return config


def find_trial(trial: str, known: set[str], results: str) -> str:
    """Return the id that a whole id or a unique beginning of one names."""
    named = [trial] if trial in known else sorted(name for name in known if trial and name.startswith(trial))
    if not named:
        raise UserError(f"trial {trial!r} is not in results {results!r}; 'gd-ray report' lists the ids of its trials.")
    if len(named) > 1:
        listed = ", ".join(named[:3]) + (", …" if len(named) > 3 else "")
        raise UserError(f"trial {trial!r} is the beginning of {len(named)} ids ({listed}); give more of it.")
    return named[0]


def _stage(results: str, trial_id: str, kept: list[int], stage: int | None) -> int:
    if not kept:
        raise UserError(
            f"no model of trial {trial_id} was kept in results {results!r}; run it again with --keep-models last (or "
            f"all) and another --results folder: the same spec gives the same model."
        )
    if stage is not None and stage not in kept:
        raise UserError(
            f"--stage {stage} of trial {trial_id} was not kept, only {', '.join(map(str, kept))}; to keep every stage, "
            f"run it again with --keep-models all and another --results folder."
        )
    return kept[-1] if stage is None else stage


def _accuracy(results: str, config: dict[str, Any]) -> dict[str, Any] | None:
    """Return test images, hits and the accuracy of each task in percent; None without stored results."""
    table, _ = read_rows(results, "stages", [config["trial_id"]], columns=["stage", "task", "hits", "total"])
    rows = sorted((row for row in table.to_pylist() if row["stage"] == config["stage"]), key=lambda row: row["task"])
    if not rows:
        return None
    hits, total = (sum(row[name] for row in rows) for name in ("hits", "total"))
    return {"hits": hits, "total": total, "tasks": [f"{100 * row['hits'] / row['total']:.1f}" for row in rows]}


def _texts(config: dict[str, Any], content: bytes, accuracy: dict[str, Any] | None) -> dict[str, bytes]:
    plugin = config["plugin"]
    config["plugin"] = "plugin.py" if plugin else None
    config["digests"]["weights"] = hashlib.sha256(content).hexdigest()
    config["accuracy"] = accuracy
    unused = () if config["spec"]["method_external"] else EXTERNAL_FIELDS
    shown = {
        name: value
        for name, value in config["spec"].items()
        if not name.startswith("method_") and name not in unused and value not in (None, "")
    }
    network, build = ("", "") if plugin else _network(config["network"])
    loader = _TEMPLATES.get_template("load_model.py.j2").render(config, network=network, build=build)
    texts = {
        "config.json": json.dumps(config, indent=1, ensure_ascii=False) + "\n",
        "README.md": _TEMPLATES.get_template("model_card.md.j2").render(config, trained_with=shown) + "\n",
        "load_model.py": re.sub(r"\n{3,}", "\n\n\n", loader) + "\n",
        **({"plugin.py": plugin} if plugin else {}),
    }
    return {name: text.encode() for name, text in texts.items()}


def _network(name: str) -> tuple[str, str]:
    """Return the classes of a network, as gd_ray has them, and the expression that builds it."""
    wide = re.fullmatch(r"wrn-(\d+)-(\d+)", name)
    source = Path(gd_ray.networks.__path__[0], "wide_resnet.py" if wide else "resnet.py").read_text(encoding="utf-8")
    build = f"WideResNet({wide[1]}, {wide[2]}, dropout=0.0)" if wide else f"{name.replace('-', '_')}(dropout=0.0)"
    return source.partition(_LAST_IMPORT)[2].strip(), build
