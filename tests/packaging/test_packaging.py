"""What people install: the wheel, the sdist and the pinned set of packages."""

from __future__ import annotations

import email
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from diag.collectors import version as versions
from diag.errors import DiagError
from diag.watch import launch
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
RELEASE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
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
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tree)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("diag", *LINKED, "sample_traces", "docs"):
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
    assert len(samples) > 11 * 6
    assert sorted(name for name in names if name.startswith("diag/sample_traces/")) == sorted(samples)
    # What `diag help` shows.
    pages = [path.relative_to(ROOT / "diag").as_posix() for path in (ROOT / "diag").glob("*.md")]
    folders = (ROOT / "docs/guides", ROOT / "docs/concepts")
    pages += [path.relative_to(ROOT / "docs").as_posix() for folder in folders for path in folder.glob("*.md")]
    assert len(pages) > 20
    assert "glossary.md" in pages
    assert {f"diag/{page}" for page in pages} == {name for name in names if name.endswith(".md")} - {
        "diag/sample_traces/README.md"
    }
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


def built_version(tree: Path) -> str:
    run(sys.executable, "setup.py", "-q", "egg_info", cwd=tree)
    return email.message_from_string(next(tree.glob("*.egg-info/PKG-INFO")).read_text())["Version"]


def test_builds_of_different_code_have_different_versions(tmp_path: Path) -> None:
    """Else pip takes a new build for the one that is installed. A later commit is a higher version."""
    tree = tmp_path / "tree"
    tree.mkdir()
    shutil.copy2(ROOT / "setup.py", tree)
    (tree / ".gitignore").write_text("*.egg-info\n")
    (tree / "pyproject.toml").write_text(
        '[project]\nname = "diag"\nversion = "1.2.3"\n[tool.setuptools]\npackages = []\n'
    )
    as_user = ("-c", "user.name=a", "-c", "user.email=a@example.org")

    def commit(second: int) -> str:
        at = f"2026-11-28T05:00:{second:02}Z"
        run("git", "add", "-A", cwd=tree)
        run("git", *as_user, "commit", "-qm", "x", "--allow-empty", cwd=tree, GIT_COMMITTER_DATE=at, GIT_AUTHOR_DATE=at)
        return run("git", "rev-parse", "--short=12", "HEAD", cwd=tree).strip()

    assert built_version(tree) == "1.2.3"  # no checkout
    run("git", "init", "-q", cwd=tmp_path)
    assert built_version(tree) == "1.2.3"  # somebody else's checkout
    run("git", "init", "-q", cwd=tree)
    first = commit(0)
    found = [built_version(tree)]
    assert found == [f"1.2.3+20261128050000.g{first}"]
    for text in ("changed", "changed again"):
        (tree / "README.md").write_text(text)
        run("git", "add", "-A", cwd=tree)
        found.append(built_version(tree))
    (tree / "new.py").touch()  # not yet known to git
    found.append(built_version(tree))
    second = commit(1)
    found.append(built_version(tree))
    assert found[-1] == f"1.2.3+20261128050001.g{second}"
    assert len(set(found)) == 5
    assert max(map(Version, found)) == Version(found[-1]) > Version(found[0]) > Version("1.2.3")
    run("git", "tag", "v1.2.3", cwd=tree)
    assert built_version(tree) == "1.2.3"  # the release


def test_a_working_tree_does_not_say_which_build_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code may have changed since it was installed."""

    class Installed:
        version = "1.2.3+20261128050000.gabc"

        def __init__(self, address: str | None) -> None:
            self.address = address

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return self.address

    for address, said in [
        ('{"dir_info": {"editable": true}, "url": "file:///src"}', "1.2.3+editable"),
        ('{"dir_info": {}, "url": "file:///src"}', Installed.version),
        ('{"archive_info": {}, "url": "file:///diag.whl"}', Installed.version),
        ("no JSON", Installed.version),
        (None, Installed.version),
    ]:
        monkeypatch.setattr(versions, "distribution", lambda _, address=address: Installed(address))
        assert versions.version() == said


def test_a_folder_that_is_not_installed_knows_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(versions, "distribution", absent)
    assert versions.version() == f"{versions.RELEASE}+folder"
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == versions.RELEASE


def needed(wheel: Path, *extras: str) -> set[str]:
    """The installed distributions that the wheel needs with these extras, and those that they need."""
    (metadata,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    own = email.message_from_bytes(zipfile.ZipFile(wheel).read(metadata)).get_all("Requires-Dist", [])
    wanted = [("diag", extra, own) for extra in ("", *extras)]
    seen: set[tuple[str, str]] = set()
    while wanted:
        name, chosen, lines = wanted.pop()
        if (name, chosen) in seen:
            continue
        seen.add((name, chosen))
        for one in map(Requirement, lines):
            if one.marker is None or one.marker.evaluate({"extra": chosen}):
                its = own if one.name == "diag" else requires(one.name) or []
                wanted += [(canonicalize_name(one.name), extra, its) for extra in ("", *one.extras)]
    return {name for name, _ in seen} - {"diag"}


class Clean(NamedTuple):
    """An environment with the wheel and what it declares, and nothing else: no checkout, no development tools."""

    bin: Path
    work: Path  # an empty folder to work in

    def diag(self, *arguments: str | Path, expect: int = 0) -> str:
        """What ``diag`` prints on both outputs; the exit code must be as expected."""
        return self.run(self.bin / "diag", *arguments, expect=expect)

    def run(self, *command: str | Path, expect: int = 0) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            command,
            cwd=self.work,
            env=environment,
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == expect, f"{command}\n{done.stdout}"
        return done.stdout

    def samples(self) -> Path:
        """The samples of the wheel, copied to where an analysis may write."""
        there = self.work / "samples"
        if not there.exists():
            (source,) = self.bin.parent.glob("lib/python*/site-packages/diag/sample_traces")
            shutil.copytree(source, there)
        return there


def clean(folder: Path, wheel: Path, *extras: str) -> Clean:
    """Made of links to what is installed here, so that it takes a second and no network: exactly the distributions that
    the wheel's metadata asks for."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    for one in needed(wheel, *extras):
        for top in {file.parts[0] for file in distribution(one).files or []} - {"..", "__pycache__"}:
            link = packages / top
            if not link.is_symlink():
                link.symlink_to(distribution(one).locate_file(top))
    python = folder / "venv/bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--no-index", "--no-deps", wheel, cwd=folder)
    (work := folder / "work").mkdir()
    return Clean(python.parent, work)


@pytest.fixture(scope="module")
def light(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """``pip install diag``, without extras."""
    made = clean(tmp_path_factory.mktemp("light"), built["wheel"])
    made.run(made.bin / "python", "-c", "import polars, plotly")
    for absent in ("torch", "streamlit", "pandas", "pytest"):
        made.run(made.bin / "python", "-c", f"import {absent}", expect=1)
    return made


def test_without_torch_traces_logs_and_plans_are_read(light: Clean) -> None:
    samples = light.samples()
    slow = samples / "fsdp2-slow-loader-rank1"
    assert "the data loader of rank 1 is slow" in light.diag("analyze", slow)
    assert "communication" in light.diag("compare", samples / "fsdp2-not-overlapped", samples / "fsdp2-slow-wire")
    light.diag("check", slow, "--max-data-wait", "5%", expect=3)
    light.diag("report", slow, "-o", "r.html")
    assert b"plotly" in (light.work / "r.html").read_bytes()
    assert "SIGKILL" in light.diag("triage", ROOT / "tests/hang/captured/sigkill-2-ranks")
    assert "H100" in light.diag("plan", "llama-3-8b", "--gpus", "8", "--gpu", "H100")
    (light.work / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    assert "train_micro_batch_size_per_gpu" in light.diag("plan", "ds.json", expect=3)
    assert "diag_steps_total" in light.diag("export", slow, "--format", "prometheus")
    assert json.loads(light.diag("metrics", "--grafana"))["panels"]
    assert "Hangs and crashes" in light.diag("help", "hangs")
    assert light.diag("--version").strip() == f"diag {RELEASE}"
    code = f"import diag; print(diag.open_run({str(slow)!r}).verdict.culprit_ranks)"
    assert "1" in light.run(light.bin / "python", "-c", code)


def test_what_an_extra_is_missing_for_says_how_to_install_it(light: Clean) -> None:
    (light.work / "train.py").write_text("import torch\n")
    pip = f"{light.bin / 'python'} -m pip install"
    record = f"torch, which a training needs, is not installed\n      {pip} 'torch>=2.6'"
    for command in (
        ("run", "--strategy", "ddp", "--out", "new"),
        ("tune", "--strategy", "ddp", "--out", "new"),
        ("demo", "--out", "new"),
    ):
        assert light.diag(*command, expect=1) == f"diag: {record}\n"
    own = light.diag("run", "--out", "new", "train.py", expect=1)  # which another environment may train
    assert own == f"diag: {record}, or start it with the Python that trains: diag run -- .../bin/torchrun train.py\n"
    assert not (light.work / "new").exists()
    printed = light.diag("dashboard", "--no-browser", expect=1)
    assert printed.startswith(f"diag: streamlit, which the dashboard needs, is not installed\n      {pip} ")
    assert "streamlit" in printed.partition(pip)[2]
    assert "pip install tensorboard" in light.diag(
        "export", light.samples() / "ddp-healthy", "--format", "tensorboard", expect=1
    )


def test_the_advice_installs_the_extra_of_what_is_installed(light: Clean) -> None:
    """``pip install 'diag[record]'`` asks for torch because the distribution of that name, as installed, says so."""
    code = """
import json
from importlib import metadata
print(json.dumps([metadata.requires("diag"), metadata.packages_distributions()["diag"]]))
"""
    required, names = json.loads(light.run(light.bin / "python", "-c", code))
    asked = [one for one in map(Requirement, required) if one.marker and one.marker.evaluate({"extra": "record"})]
    assert [(one.name, str(one.specifier)) for one in asked] == [("torch", ">=2.6")]
    assert names == ["diag"]


def test_torch_s_oldest_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["record"] == [f"torch>={'.'.join(map(str, launch.OLDEST_TORCH))}"]
    assert not [line for line in project["dependencies"] if line.startswith(("torch", "streamlit"))]


@pytest.mark.parametrize(("installed", "refused"), [("2.5.1+cu124", True), ("2.6.0a0+git1", False), ("2.13.0", False)])
def test_a_torch_that_is_too_old_is_refused(installed: str, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "version", lambda _: installed)
    with pytest.raises(DiagError, match=r"torch 2\.5\.1.* 2\.6 or newer") if refused else nullcontext():
        launch.require_torch()


@pytest.fixture(scope="module")
def full(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """``pip install 'diag[record,dashboard]'``."""
    return clean(tmp_path_factory.mktemp("full"), built["wheel"], "record", "dashboard")


def serves(made: Clean, *arguments: str | Path) -> None:
    """Starts the dashboard in the environment and opens the address that it prints."""
    command = [made.bin / "diag", *arguments, "--port", "0"]
    server = subprocess.Popen(command, cwd=made.work, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        address = next(found[0] for line in lines if (found := re.search(r"http://\S+token=\S+", line)))
        browser = build_opener(HTTPCookieProcessor())
        with browser.open(address, timeout=PATIENCE_S) as answer:
            assert "<title>" in answer.read().decode()
    finally:
        server.terminate()
        server.wait(60)


def test_the_dashboard_of_the_wheel_shows_its_samples(full: Clean) -> None:
    serves(full, "dashboard", "--no-browser")


@pytest.mark.matrix
def test_the_demo_of_the_wheel(full: Clean) -> None:
    printed = full.diag("demo", "--out", "demo")
    assert "rank 1" in printed
    assert "diag dashboard demo" in printed
    assert json.loads(full.diag("analyze", "demo/slow-loader-on-rank-1", "--json"))["verdict"]["culprit"]["ranks"] == [
        1
    ]


# -- the container -----------------------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """A stage of the Dockerfile: what it copies from the checkout, what it runs and starts."""

    copied: list[str]
    run: list[str]
    started: list[str]


def stages() -> list[Stage]:
    made: list[Stage] = []
    for line in (ROOT / "examples/dashboard.Dockerfile").read_text("utf-8").splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            made.append(Stage([], [], []))
        elif instruction == "COPY" and not rest.startswith("--from"):
            made[-1].copied.extend(rest.split()[:-1])
        elif instruction == "RUN":
            made[-1].run.append(rest)
        elif instruction in ("ENTRYPOINT", "CMD"):
            made[-1].started.extend(json.loads(rest))
        else:
            assert line.startswith("#") or instruction in ("", "COPY", "WORKDIR", "USER", "EXPOSE"), line
    return made


def test_the_container_s_files_build_the_wheel(built: dict[str, Path], tmp_path: Path) -> None:
    """Its first stage, by its own command, in a folder with nothing but what it copies."""
    first, second = stages()
    (context := tmp_path / "src").mkdir()
    for name in first.copied:
        source, target = ROOT / name, context / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    (command,) = first.run
    wheels = tmp_path / "wheels"
    here = command.replace("python ", f"{sys.executable} ").replace("/wheels", str(wheels))
    run("sh", "-c", f"{here} --no-build-isolation -q", cwd=context)
    (wheel,) = wheels.glob("*.whl")
    ours, theirs = zipfile.ZipFile(built["wheel"]), zipfile.ZipFile(wheel)
    assert {name: ours.read(name) for name in ours.namelist()} == {n: theirs.read(n) for n in theirs.namelist()}
    assert all((ROOT / name).is_file() for name in second.copied)


def test_the_container_serves_what_is_mounted(full: Clean) -> None:
    _, second = stages()
    name, *arguments = second.started
    assert name == "diag"
    runs = str(full.samples())
    serves(full, *(runs if argument == "/runs" else argument for argument in arguments))


@pytest.mark.matrix
def test_pip_installs_the_wheel_as_the_container_does(built: dict[str, Path], tmp_path: Path) -> None:
    """Its second stage, by its own command, at the pinned versions, where a package index can be reached."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    made = Clean(tmp_path / "venv/bin", tmp_path / "work")
    made.work.mkdir()
    (wheels := tmp_path / "wheels").mkdir()
    for file in (built["wheel"], ROOT / "constraints.txt"):
        shutil.copy2(file, wheels)
    try:
        made.run(
            made.bin / "python", "-m", "pip", "download", "-q", "--no-deps", "-c", wheels / "constraints.txt", "typer"
        )
    except AssertionError:
        pytest.skip("no package index can be reached")
    install = stages()[1].run[0]
    here = install.replace("python ", f"{made.bin}/python ").replace("/wheels", str(wheels))
    made.run("sh", "-c", f"PIP_COMPILE=0 {here}")  # most of it is never imported here
    # An older pip adds that a newer one exists, to the same output.
    listed = made.run(made.bin / "python", "-m", "pip", "--disable-pip-version-check", "list", "--format", "json")
    installed = {one["name"] for one in json.loads(listed)}
    assert {"diag", "streamlit"} <= installed
    assert "torch" not in installed
    assert "rank 1 is slow" in made.diag("analyze", made.samples() / "fsdp2-slow-loader-rank1")
    serves(made, "dashboard", "--no-browser")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_constraints_pin_one_exact_public_version_a_line() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9a-z.!]+", line)] == []
    assert pins()["torch"] == "2.13.0"
    assert "diag" not in pins()


def test_constraints_pin_all_that_an_installation_needs() -> None:
    """At the versions installed here. CUDA's packages are torch's own to pin."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(line) for line in [*project["dependencies"], *chain(*extras.values())]]
    wanted = [one for one in wanted if one.name != "diag"]  # an extra of several others
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
            chosen = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in chosen):
                wanted.append(needed)
    assert wrong == {}
    assert {"torch", "polars", "streamlit", "setuptools", "pytest"} <= seen


# -- what errors and `make` tell people to install ---------------------------------------------------------------------


def test_the_hint_for_an_extra_names_its_packages_and_not_diag() -> None:
    """diag is on no index. The same in a checkout and in an installed wheel."""
    from diag.errors import not_installed

    hint = not_installed("streamlit", "dashboard").hint
    said = shlex.split(hint.partition("pip install ")[2])
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert said == extras["dashboard"]
    unknown = not_installed("x", "newer").hint  # of a checkout that is newer than what was installed from it
    assert "pip install" not in unknown
    assert "pyproject.toml" in unknown


def test_no_text_names_a_package_that_is_on_no_index() -> None:
    code = [path for folder in ("diag", *LINKED) for path in (ROOT / folder).rglob("*.py")]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").iterdir()]
    named = [str(path) for path in (*code, *pages) if re.search(r"pip install ['\"]?diag\b(?!.* @ )", path.read_text())]
    assert named == []


def test_the_demo_installs_what_trains_and_no_development_tools(tmp_path: Path) -> None:
    """`make -n` prints what it would run in a fresh checkout."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path)
    printed = run("make", "-n", "demo", cwd=tmp_path)
    assert "-e '.[record]'" in printed
    assert "[dev]" not in printed


@pytest.mark.matrix
def test_a_wheelhouse_installs_without_a_network(tmp_path: Path) -> None:
    """Of this Python's own version."""
    try:
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", tmp_path, "typer", cwd=tmp_path)
    except AssertionError:
        pytest.skip("no package index can be reached")
    house = tmp_path / "house"
    run("make", "wheelhouse", f"OUT={house}", cwd=ROOT)
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(house)}
    run(python, "-m", "pip", "install", "-q", "--no-compile", "diag", cwd=tmp_path, **offline)
    sample = ROOT / "sample_traces/fsdp2-slow-loader-rank1"
    assert "rank 1 is slow" in run(tmp_path / "venv/bin/diag", "analyze", sample, cwd=tmp_path)
