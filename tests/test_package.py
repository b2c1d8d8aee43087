"""The wheel and the source distribution hold every file, and the wheel works in an environment of its own."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.helpers.made import made_spec, write_made

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [Requirement(line) for line in (ROOT / "requirements.lock").read_text().splitlines()]
PACKAGES = ("gd_ray", "trials", "analysis")


def output_of(*command: str | Path, folder: Path) -> str:
    """Run a command with nothing of the repository on the path."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build from `source` with the backend alone, so that nothing is downloaded."""
    code = f"import sys; from hatchling.build import build_{kind}; print(build_{kind}(sys.argv[1]))"
    return folder / output_of(sys.executable, "-c", code, folder, folder=source).split()[-1]


def tracked_files() -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("git lists the files to compare with")
    return {path for path in output_of("git", "ls-files", folder=ROOT).splitlines() if (ROOT / path).exists()}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> Path:
    """A wheel made from the unpacked source distribution: what that one lacks, the wheel lacks."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return build("wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel alone; its dependencies are those of the present one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    # A path in a .pth file is searched, but the .pth files in it are not read: the editable install stays outside.
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--disable-pip-version-check"]
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--ignore-installed"]
    subprocess.run([*pip, "install", *options, wheel], check=True)
    return folder


def test_the_source_distribution_holds_every_tracked_file(sdist):
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked_files() - held == set()


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel):
    expected = {path for path in tracked_files() if path.startswith(tuple(f"{name}/" for name in PACKAGES))}
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert expected - held == set()
    assert {f"{name}/py.typed" for name in PACKAGES} <= held
    assert {path.partition("/")[0] for path in held} == {*PACKAGES, f"gd_ray-{PROJECT['version']}.dist-info"}


def test_the_wheel_runs_outside_the_repository(installed, tmp_path):
    code = (
        "import analysis, gd_ray, trials; print(gd_ray.__version__, *(p.__file__ for p in (analysis, gd_ray, trials)))"
    )
    version, *files = output_of(installed / "bin" / "python", "-c", code, folder=tmp_path).split()
    assert version == PROJECT["version"]
    assert all(Path(file).is_relative_to(installed) for file in files)
    command = installed / "bin" / "gd-ray"
    assert "demo" in output_of(command, "--help", folder=tmp_path)
    assert "gd+ext" in output_of(command, "list", folder=tmp_path)
    write_made(str(tmp_path / "results"), "mine", made_spec("gd"), lambda stage, task: 90)
    output_of(command, "report", "results", "--out", "report.html", folder=tmp_path)
    assert "<table" in (tmp_path / "report.html").read_text()


def test_every_dependency_has_a_lower_and_an_upper_bound():
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    for requirement in map(Requirement, PROJECT["dependencies"] + extras):
        assert {bound.operator for bound in requirement.specifier} == {">=", "<"}, requirement


def test_pins_are_exact_and_within_the_bounds():
    versions = {}
    for pin in PINS:
        assert pin.url is None
        assert [bound.operator for bound in pin.specifier] == ["=="], pin
        versions[pin.name] = next(iter(pin.specifier)).version
    assert len(versions) == len(PINS), "one version of each package for every Python"
    for requirement in map(Requirement, PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]):
        assert requirement.specifier.contains(versions[requirement.name.lower()]), requirement


def test_the_release_has_its_version_in_the_changelog_and_the_citation():
    assert f"\n## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
