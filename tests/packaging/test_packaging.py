"""What people install: the wheel, the sdist and the pinned set of packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("collectors", "app")  # folders at the top, imported as diag.<name>


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source: Path, out: Path, *kinds: str) -> list[Path]:
    """What setuptools builds from a folder. Without isolation: the development tools include it, pinned."""
    run(sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", out, source, cwd=source)
    return sorted(out.iterdir())


def expected_modules() -> list[str]:
    """Every module of the working tree under the name it is imported by."""
    own = [p.relative_to(ROOT) for p in (ROOT / "diag").rglob("*.py")]
    own = [p for p in own if p.parts[1] not in LINKED]  # whether rglob follows links depends on the Python
    linked = [Path("diag") / p.relative_to(ROOT) for name in LINKED for p in (ROOT / name).rglob("*.py")]
    return sorted(p.as_posix() for p in [*own, *linked])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel and an sdist, built from a copy, so that no build folder is left in the working tree."""
    folder = tmp_path_factory.mktemp("packaging")
    tree = folder / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tree)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("diag", *LINKED, "sample_traces"):
        if (ROOT / name).is_dir():  # git keeps no empty folders
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=unwanted)
    files = build(tree, folder / "dist", "--wheel", "--sdist")
    return {"wheel" if path.suffix == ".whl" else "sdist": path for path in files}


def test_wheel_holds_every_module_once_under_diag(built: dict[str, Path]) -> None:
    names = zipfile.ZipFile(built["wheel"]).namelist()
    assert sorted(name for name in names if name.endswith(".py")) == expected_modules()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"diag"}
    assert "diag/py.typed" in names
    folders = (ROOT / "app/html_report", ROOT / "app/views")
    assets = [path for folder in folders for path in folder.iterdir() if path.suffix in (".html", ".css", ".js")]
    assert len(assets) >= 5
    assert {f"diag/{path.relative_to(ROOT).as_posix()}" for path in assets} <= set(names)
    # The script that records them, and what an analysis left beside them, stay behind.
    folder = ROOT / "sample_traces"
    recorded = [folder / "README.md", *folder.glob("*/manifest.json"), *folder.glob("*/ranks/*/*")]
    samples = [f"diag/{path.relative_to(ROOT).as_posix()}" for path in recorded]
    assert len(samples) > 9 * 6
    assert sorted(name for name in names if name.startswith("diag/sample_traces/")) == sorted(samples)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_every_folder_with_modules_is_a_package() -> None:
    """Setuptools leaves a folder without ``__init__.py`` out of the wheel."""
    folders = {(ROOT / module).parent for module in expected_modules()}
    assert [str(f.relative_to(ROOT)) for f in sorted(folders) if not (f / "__init__.py").is_file()] == []


def test_sdist_builds_the_same_wheel(built: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(built["sdist"]) as archive:
        archive.extractall(tmp_path / "sdist", filter="data")
    (source,) = (tmp_path / "sdist").iterdir()
    (wheel,) = build(source, tmp_path / "dist", "--wheel")
    first, second = zipfile.ZipFile(built["wheel"]), zipfile.ZipFile(wheel)
    assert {n: first.read(n) for n in first.namelist()} == {n: second.read(n) for n in second.namelist()}


def test_folders_of_the_user_named_collectors_and_app_do_not_shadow_ours(
    built: dict[str, Path], tmp_path: Path
) -> None:
    installed, theirs = tmp_path / "installed", tmp_path / "theirs"
    pip = (sys.executable, "-m", "pip", "install", "-qq", "--no-index", "--no-deps", "--target", installed)
    run(*pip, built["wheel"], cwd=tmp_path)
    for name in LINKED:
        (theirs / name).mkdir(parents=True)
        (theirs / name / "__init__.py").write_text("raise RuntimeError('the package of the user, not ours')\n")
    code = "import diag.collectors.layout, diag.app; print(diag.collectors.layout.__file__)"
    # PYTHONPATH comes before the editable install of the working tree.
    printed = run(sys.executable, "-c", code, cwd=theirs, PYTHONPATH=str(installed))
    assert Path(printed.strip()) == installed / "diag" / "collectors" / "layout.py"


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_constraints_pin_one_exact_public_version_a_line() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+", line)] == []
    assert pins()["torch"] == "2.13.0"
    assert "diag" not in pins()


def test_constraints_pin_all_that_an_installation_needs() -> None:
    """At the versions installed here. CUDA's packages are torch's own to pin."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["dev"]]
    seen: set[str] = set()
    wrong: dict[str, str] = {}
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or re.match(r"(nvidia-(?!ml-py)|cuda-|triton|pytorch-triton)", name):
            continue
        try:
            installed = Version(version(name)).public
        except PackageNotFoundError:  # another platform's, under a marker that evaluates differently
            continue
        seen.add(name)
        if pins().get(name) != installed:
            wrong[name] = f"installed {installed}, pinned {pins().get(name)}"
        for line in requires(name) or []:
            needed = Requirement(line)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                wanted.append(needed)
    assert wrong == {}
    assert {"torch", "polars", "streamlit", "setuptools", "pytest"} <= seen
