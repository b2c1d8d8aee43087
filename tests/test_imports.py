"""Data flows one way: gd_ray, then trials, then analysis, which needs neither torch nor Ray; and no package cycles."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("gd_ray", "trials", "analysis")
FORBIDDEN = {"gd_ray": {"trials", "analysis"}, "trials": {"analysis"}, "analysis": {"torch", "ray", "trials"}}
ALLOWED = {Path("trials/cli.py"): {"analysis"}}  # the command line joins the parts


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


@pytest.mark.parametrize("package", FORBIDDEN)
def test_packages_import_only_what_lies_before_them(package):
    for path in (ROOT / package).rglob("*.py"):
        wrong = {name.split(".")[0] for name in imports(path)} & FORBIDDEN[package]
        wrong -= ALLOWED.get(path.relative_to(ROOT), set())
        assert not wrong, f"{path} imports {wrong}"


def test_nothing_private_of_ray_is_used():
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        used = {name for name in imports(path) if name.split(".")[0] == "ray"}
        used |= {text for node in ast.walk(ast.parse(path.read_text())) if (text := _of_ray(node))}
        private = {name for name in used if any(part.startswith("_") for part in name.split("."))}
        assert not private, f"{path} uses {private}"


def _of_ray(node: ast.AST) -> str | None:
    """Return the text of an attribute of the module `ray`, such as ray.data.range."""
    text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
    return text if re.fullmatch(r"ray(\.\w+)+", text) else None


def test_the_packages_inside_gd_ray_have_no_cycle():
    rooms = {path.parent.name for path in (ROOT / "gd_ray").glob("*/__init__.py")}
    needs = {
        room: {
            name.split(".")[1]
            for path in (ROOT / "gd_ray" / room).rglob("*.py")
            for name in imports(path)
            if name.startswith("gd_ray.") and name.split(".")[1] in rooms - {room}
        }
        for room in rooms
    }
    list(TopologicalSorter(needs).static_order())  # raises CycleError
    assert needs["wordnet"] == set()
    assert needs["sources"] == {"wordnet"}
    assert needs["data"] <= {"sources", "wordnet"}


def test_no_two_modules_have_one_name():
    paths = defaultdict(list)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            paths[path.stem].append(str(path.relative_to(ROOT)))
    twice = {stem: found for stem, found in paths.items() if len(found) > 1 and stem != "__init__"}
    assert not twice


@pytest.mark.parametrize(
    "module",
    [
        *(
            "gd_ray.spec",
            "gd_ray.methods",
            "gd_ray.data",
            "gd_ray.sources",
            "gd_ray.wild.shuffle",
            "gd_ray.wild.stream",
        ),
        *("trials.cli", "trials.prepare", "trials.registry", "analysis"),
    ],
)
def test_light_modules_load_neither_torch_nor_ray(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'ray') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
