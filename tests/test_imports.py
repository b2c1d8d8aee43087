"""Data flows one way: gd_ray, then trials, then analysis, which needs neither torch nor Ray."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {"gd_ray": {"trials", "analysis"}, "trials": {"analysis"}, "analysis": {"torch", "ray", "trials"}}
ALLOWED = {Path("trials/cli.py"): {"analysis"}}  # the command line joins the parts


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", FORBIDDEN)
def test_packages_import_only_what_lies_before_them(package):
    for path in (ROOT / package).rglob("*.py"):
        wrong = imports(path) & FORBIDDEN[package] - ALLOWED.get(path.relative_to(ROOT), set())
        assert not wrong, f"{path} imports {wrong}"


@pytest.mark.parametrize("module", ["gd_ray.spec", "gd_ray.methods", "gd_ray.wild.prepare", "trials.cli", "analysis"])
def test_light_modules_load_neither_torch_nor_ray(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'ray') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
