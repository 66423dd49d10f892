"""What holds for every test."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from hypothesis import settings

from tests.alarm import (  # noqa: F401  hooks
    pytest_exception_interact,
    pytest_runtest_setup,
    pytest_sessionfinish,
)
from tests.slow import COSTS, is_slow

settings.register_profile(
    "diag", deadline=None, max_examples=40
)  # what an example takes is a matter of what else the machine does
settings.register_profile("thorough", deadline=None, max_examples=150)  # for `make test-all`
settings.register_profile("few", deadline=None, max_examples=8)  # for `make test-fast`
settings.load_profile("diag")  # --hypothesis-profile comes after it

# What a shell, a proxy, a scheduler, a hook of git or a container sets for other programs. Tests set what they need.
_OF_OTHERS = re.compile(
    r"(?i:(?:https?|ftp|all|no)_proxy)|COLUMNS|LINES|NO_COLOR|(?:FORCE|CLICOLOR)(?:_\w+)?|LANGUAGE|PIP_(?!CERT|CONFIG_FILE)\w+"
    r"|PYTHON(?!DONTWRITEBYTECODE|PYCACHEPREFIX|HASHSEED|FAULTHANDLER|PATH|HOME|.*USER)\w+|GIT_\w+|(?:LOCAL_|GROUP_|ROLE_)?RANK"
    r"|(?:LOCAL_|ROLE_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|(?:SLURM|OMPI|PMI|PMIX|PBS|NCCL|GLOO|TORCH|TORCHELASTIC|OTEL)_\w+"
    r"|DIAG_(?!CHROMIUM|FUZZ_|WRITE_GOLDEN|REPEATS|TUNE|HANG|CACHE)\w+"
)
for _name in filter(_OF_OTHERS.fullmatch, list(os.environ)):
    del os.environ[_name]
os.umask(0o022)  # tests that say which files others may read

_MAIN = sys.modules["__main__"]

# Folders whose tests wait for trainings, browsers or installations, the longest first, and files that compute for long.
WAITING = ("browser", "fuzz", "packaging", "attach", "run", "trainer", "crosscheck", "gpu", "watch", "collectors")
COMPUTING = ("traces", "grid", "tests", "hang", "flight", "app", "diagnoses", "tables")
# Folders whose files share what takes long to start, and how many workers share these files. One for all of the
# browser's would have more to do than each of the three others, and it waits for pages to settle.
TOGETHER = {"tests/browser/": 2}


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Reading the tests makes millions of objects that stay: to look for garbage among them again and again took a
    third of the time. Frozen, they are not looked through while tests run either."""
    gc.disable()
    try:
        _rewrite_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _rewrite_share(config: pytest.Config) -> None:
    """Rewrites the asserts of this worker's share of the test files, which pytest keeps beside them. In a fresh
    checkout each worker would rewrite those of all files; now it finds those of the others done."""
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if sys.dont_write_bytecode or not worker:
        return
    files = sorted(path for pattern in config.getini("python_files") for path in Path(__file__).parent.rglob(pattern))
    number = int(worker["workerid"].removeprefix("gw"))
    for path in files[number :: worker["workercount"]]:
        kept = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(path, kept) is None and rewrite.try_makedirs(kept.parent):
            source_hash, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, kept)


@pytest.hookimpl(tryfirst=True)  # before those that -m leaves out are
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow(item):
            item.add_marker("slow")
    items[:] = _mixed(items)


def _mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """In the order in which workers take them: those that wait between those that compute, so that a core is used while
    a training sleeps. What takes long comes first, so that no worker is left alone with it at the end."""
    computing = [item for item in items if item.path.parent.name not in WAITING]
    waiting = [item for item in items if item.path.parent.name in WAITING]
    for order, own in ((COMPUTING, computing), (WAITING, waiting)):
        place = {name: number for number, name in enumerate(order)}
        own.sort(key=lambda item: place.get(item.path.parent.name, len(place)))
    files = [_files(own) for own in (waiting, computing)]
    places = [(number / max(1, len(own)), file) for own in files for number, file in enumerate(own)]
    return [item for _, file in sorted(places, key=lambda place: place[0]) for item in file]


def _files(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        file = item.nodeid.partition("::")[0]
        by_file.setdefault(_together(file) or file, []).append(item)
    return list(by_file.values())


def _together(nodeid: str) -> str | None:
    """A name of the files that one worker takes with this one's; None where it takes each as it comes."""
    file = nodeid.partition("::")[0]
    folder = next((folder for folder in TOGETHER if file.startswith(folder)), None)
    return folder and f"{folder} {_shares(folder).get(file, 0)}"


@cache
def _shares(folder: str) -> dict[str, int]:
    """Of each file that was measured, which worker takes it: the dearest first, always the one that has least to do."""
    costs: dict[str, float] = {}
    for cost in COSTS:
        if cost.name.startswith(folder):
            file = cost.name.partition("::")[0]
            costs[file] = costs.get(file, 0.0) + cost.mean_s * cost.count
    busy, shares = [0.0] * TOGETHER[folder], {}
    for file in sorted(costs, key=costs.__getitem__, reverse=True):
        shares[file] = busy.index(min(busy))
        busy[shares[file]] += costs[file]
    return shares


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _together(nodeid) or super()._split_scope(nodeid)

    return Together(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def _main_stays_main() -> Iterator[None]:
    """AppTest leaves its script as ``__main__``, which every later multiprocessing child would then run."""
    yield
    sys.modules["__main__"] = _MAIN


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """This process as the only rank of a process group."""
    import torch.distributed as dist  # which most tests do without

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither read nor fill the cache of whoever runs them."""
    before = os.environ.get("DIAG_CACHE")
    os.environ["DIAG_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["DIAG_CACHE"]
    else:
        os.environ["DIAG_CACHE"] = before
