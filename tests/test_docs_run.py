"""The code blocks of README.md and docs/ run, each page's in its order, and print what the page shows.

What starts ranks is stood in for by a recorded run: trainings are what ``tests/run`` and ``tests/attach`` start.
Programs of a cluster are stood in for by one that starts the Python in its command.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.errors import ExitCode
from diag.export.formats import serving as _serving
from diag.tune import history as tuning
from diag.words import sentences
from diag.words.sentences import Sentence
from tests import allocator, pieces
from tests.command import diag
from tests.inspector import files as inspector_files
from tests.pages import REASONS, ROOT, SHELL, Block, blocks, committed, shape
from tests.patience import PATIENCE_S

SAMPLES = ROOT / "sample_traces"
CAPTURED = ROOT / "tests/hang/captured"
LOADER = SAMPLES / "fsdp2-slow-loader-rank1"

# -- the folder in which blocks run ------------------------------------------------------------------------------------

# What the pages call the reader's own runs and files.
_RUNS = {
    **dict.fromkeys(("R", "RUN", "run", "runs/last", "runs/a", "runs/x", "shared/run", "T/00-baseline"), LOADER),
    "runs/demo/slow-loader-on-rank-1": LOADER,
    **dict.fromkeys(("before", "R0", "runs/before"), SAMPLES / "fsdp2-not-overlapped"),
    **dict.fromkeys(("after", "runs/after"), SAMPLES / "fsdp2-slow-wire"),
}
_TRACES = {
    "TRACES": "ddp-healthy",
    "JOBS/NAME": "ddp-healthy",
    "JOBS/A": "fsdp2-not-overlapped",
    "JOBS/B": "fsdp2-slow-wire",
}
_LINTED = """\
{
  "train_batch_size": 256,
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4,
  "bf16": {"enabled": true},
  "fp16": {"enabled": true},
  "zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": 5}
}
"""
_FILES = {
    "train.py": 'import os, sys\n\nsys.exit(3 * ("DIAG_RUN_DIR" not in os.environ))  # it would not be recorded\n',
    "hosts": "localhost slots=2\n",
    "config.json": '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, '
    '"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192}',
    "ds_config.json": '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}',
    "ds.json": _LINTED,
    "accelerate.yaml": "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n",
    "pretrain.sh": "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --bf16 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --tensor-model-parallel-size 2 "
    "--micro-batch-size 1 --global-batch-size 64\n",
    "addresses.txt": "json://localhost/\n",
    "page-me.sh": "#!/bin/sh\n",
}
_PROGRAMS = {
    "diag": f'#!/bin/sh\nexec "{sys.executable}" -m diag "$@"\n',
    "python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
    "kubectl": "#!/bin/sh\ncat logs/launcher.txt\n",
    **dict.fromkeys(
        ("srun", "mpirun", "torchrun", "deepspeed"),
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do\n"
        'case "$1" in python) break;; *.py) set -- python "$@"; break;; esac; shift\ndone\nexec "$@"\n',
    ),
}


def lay_out(folder: Path) -> None:
    for name, run in _RUNS.items():
        shutil.copytree(run, folder / name, dirs_exist_ok=True)
    for name, run in _TRACES.items():
        for trace in (SAMPLES / run).glob("ranks/*/trace-*"):
            copied = folder / name / trace.parent.name / trace.name
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(trace, copied)
            if name == "TRACES":
                shutil.copy(trace, folder / f"rank{int(trace.parent.name)}.json.gz")
    for name, text in _FILES.items():
        (folder / name).write_text(text)
    (folder / "bin").mkdir()
    for name, text in _PROGRAMS.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    shutil.copytree(SAMPLES, folder / "sample_traces")
    shutil.copytree(CAPTURED / "sigkill-2-ranks", folder / "tests/hang/captured/sigkill-2-ranks")
    shutil.copytree(CAPTURED / "sigkill-2-ranks", folder / "logs")
    shutil.copytree(CAPTURED / "hang-loader-4-ranks/dumps", folder / "dumps")
    shutil.copytree(ROOT / "examples", folder / "examples")
    tuning.save(tuning.History(("--strategy", "fsdp2"), stopped="all advice was tried"), folder / "T")
    allocator.train().write(folder / "snapshot.pickle")
    inspector_files.write_job(folder / "INSPECTOR", {"a": (0, 1)}, lambda *_: 1000.0)
    run = pieces.recorded(folder / "whole", ranks=2, job="job")
    for place, piece in enumerate(pieces.split(run, folder / "nodes", [[0], [1]])):
        shutil.copytree(piece.root, folder / f"node{place}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reader")
    lay_out(made)
    return made


# -- running -----------------------------------------------------------------------------------------------------------

_ABSOLUTE = {"/shared/": "shared/", "/path/of/the/trainings/python": sys.executable}
_PLAIN = re.compile(r"(?:[A-Z_]+=\S+ )*diag ")
_OF_A_SHELL = re.compile(r"[|;&<`]|\$\(|\$[A-Z]")


def without_comment(line: str) -> str:
    """A comment begins after two spaces, as in all of our blocks."""
    return re.sub(r"\s{2,}#.*$", "", line).strip()


def is_plain(line: str) -> bool:
    """Whether the line is one command of diag, which runs in this process."""
    return line.startswith("diag ") and not _OF_A_SHELL.search(line)


def pieces_of(lines: Sequence[str]) -> Iterator[list[str]]:
    """Each plain command by itself; what lies between two of them as one script."""
    script: list[str] = []
    for line in lines:
        if is_plain(line):
            if script:
                yield script
            script = []
            yield [line]
        else:
            script.append(line)
    if script:
        yield script


def _recorded(layout: RunLayout) -> None:
    shutil.copytree(LOADER / "ranks", layout.ranks_folder, dirs_exist_ok=True)
    update_manifest(layout, world_size=2)


def _instead_of_ranks(layout: RunLayout, launch: Any, *_: Any, **__: Any) -> Any:
    from diag.watch.launch import Outcome, close

    _recorded(layout)
    return close(layout, launch, Outcome(ExitCode.OK))


def _instead_of_a_launcher(layout: RunLayout, launch: Any, _settings: Any, command: Sequence[str]) -> Any:
    """The command runs: a stand-in, which starts the script, which needs the recorder's variables. The examples are
    run by another test."""
    if not any(word.startswith("examples/") for word in command):
        environment = {**os.environ, **launch.environment}
        subprocess.run(command, env=environment, check=True, timeout=PATIENCE_S)
    return _instead_of_ranks(layout, launch)


def _instead_of_a_demo(out: Path, _steps: int, _faults: list[str]) -> int:
    shutil.copytree(LOADER, out)
    return 0


@contextmanager
def _served_once(followed: Any, host: str, _: int, **options: Any) -> Iterator[Any]:
    """The server answers, and is not waited for."""
    with _serving(followed, host, 0, **options) as (port, _):
        yield port, SimpleNamespace(join=lambda: None)


def stand_ins() -> ExitStack:
    """While it is open, nothing trains, serves or opens a browser."""
    stack = ExitStack()
    for name, instead in {
        "diag.watch.launch.torchrun": _instead_of_ranks,
        "diag.watch.launch.run_command": _instead_of_a_launcher,
        "diag.cli.demo._train": _instead_of_a_demo,
        "diag.serve.server.serve_dashboard": lambda *_, **__: None,
        "diag.export.formats.serving": _served_once,
        "diag.perfetto.show": lambda *_, **__: None,
    }.items():
        stack.enter_context(patch(name, instead))
    return stack


def run_line(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(line)
    target = None
    if ">" in words:
        *words, _, target = words
    if "--out" in words and words[1] in ("run", "attach", "tune", "demo"):
        out = folder / words[words.index("--out") + 1]
        if "--resume" not in words:
            shutil.rmtree(out, ignore_errors=True)
    with stand_ins():
        ended = diag(*words[1:])
    if target is not None:
        (folder / target).write_text(ended.stdout)
    return ended


def run_script(lines: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    made = re.findall(r"--out (\S+?)[)\"\s]", " ".join(lines))
    for out in made:
        shutil.rmtree(folder / out, ignore_errors=True)
    ended = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", "\n".join(lines)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    for out in filter(Path.is_dir, (folder / out for out in made)):  # as if the ranks had been torch's
        _recorded(RunLayout(out))
    return ended


def of_page(path: Path) -> list[Block]:
    return list(blocks(committed()[path]))


# Packages of extras, without which a line only says how to install them.
_EXTRAS = {"--notify": "apprise", "--cross-check": "hta"}
_LACKING = [option for option, package in _EXTRAS.items() if importlib.util.find_spec(package) is None]


def lines_to_run(block: Block) -> list[str]:
    if block.language not in SHELL:
        return []
    lines = [without_comment(line) for line in block.commands()]
    for there, here in _ABSOLUTE.items():
        lines = [line if "--format k8s" in line else line.replace(there, here) for line in lines]
    runs = (line for line, whole in zip(lines, block.commands(), strict=True) if line and not block.why_not(whole))
    return [line for line in runs if not any(option in line for option in _LACKING)]


def written_files(page: Path) -> dict[str, str]:
    """The files that blocks of the page show, by the name in their first line: ``# budget.toml``."""
    named = ((re.match(r"# (\w+\.\w+)$", block.lines[0]), block) for block in of_page(page) if block.lines)
    return {found[1]: "\n".join(block.lines) for found, block in named if found and block.language in ("toml", "json")}


PAGES = [path for path in committed() if any(lines_to_run(block) for block in of_page(path))]


@pytest.fixture
def reader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, as the current one of a reader whose terminal is as wide as the pages."""
    monkeypatch.chdir(folder)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environment = {"PATH": path, "SLURM_JOB_ID": "7", "DIAG_CACHE": "off", "OPENBLAS_NUM_THREADS": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return folder


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_run(page: Path, reader: Path) -> None:
    for name, text in written_files(page).items():
        (reader / name).write_text(text)
    for block in of_page(page):
        printed = []
        for piece in pieces_of(lines_to_run(block)):
            ended = run_line(*piece, reader) if is_plain(piece[0]) else run_script(piece, reader)
            where = f"{page.name}:{block.line}: {piece}"
            found = re.search(r"diag (check|plan) ", piece[0])  # whose code says what they found
            expected = {ExitCode.OK, *((ExitCode.GATE_EXCEEDED,) if found else ())}
            assert ended.returncode in expected, f"{where}: exit code {ended.returncode}\n{ended.stderr}{ended.stdout}"
            assert "Traceback" not in ended.stderr, f"{where}\n{ended.stderr}"
            assert "NOT RECORDED" not in ended.stderr, f"{where}\n{ended.stderr}"
            printed.append(ended.stdout)
        if block.compared:
            assert differs(block, "".join(printed)) == "", f"{page.name}:{block.line}"


# -- what is shown -----------------------------------------------------------------------------------------------------


def differs(block: Block, printed: str) -> str:
    """The first words of the block's output that are not printed so; "" where all are. A line "..." leaves some out."""
    if block.compared == "sentences":
        return differs_from_sentences(" ".join(block.lines))
    words = (lambda text: text.split()) if block.compared == "exactly" else shape
    shown = [line for line in block.lines if not line.startswith("$ ")]
    left, parts = words(printed), "\n".join(shown).split("\n...\n")
    for number, part in enumerate(map(words, parts)):
        starts = range(len(left) - len(part) + 1) if number else range(1)
        place = next((start for start in starts if left[start : start + len(part)] == part), None)
        if place is None:
            same = next((at for at, pair in enumerate(zip(left, part, strict=False)) if pair[0] != pair[1]), len(left))
            return f"shown: {' '.join(part[same : same + 12])}; printed: {' '.join(left[same : same + 12])}"
        left = left[place + len(part) :]
    return ""


_TEMPLATES = [
    value
    for value in vars(sentences).values()
    if isinstance(value, Sentence) and len(re.sub(r"\{\w+\}|\W", "", value)) >= 10  # the others match any sentence
]
_OF_STUCK = re.compile(r"diag: step [\d,]+: The training is stuck: no step since .+")


def differs_from_sentences(text: str) -> str:
    """The rest of the text that no sentence of ours begins."""
    while text := text.strip():
        ends = [found.end() for found in re.finditer(r"\.(?= |$)", text)]
        end = next(
            (end for end in reversed(ends) if any(one.pattern.fullmatch(text[:end]) for one in _TEMPLATES)), None
        )
        if end is None:
            return "" if _OF_STUCK.fullmatch(text) else text
        text = text[end:]
    return ""


def test_a_difference_is_seen() -> None:
    block = Block("console", ["$ diag x", "step 298 ms", "...", "rank 1"], 1, ("compared",))
    exactly = block._replace(marks=("compared: exactly",))
    assert differs(block, "step 12 ms\nmore\nrank 3\n") == ""
    assert "298" in differs(exactly, "step 12 ms\nmore\nrank 1")
    assert differs(exactly, "step 298 ms\nmore\nrank 1") == ""
    assert "rank" in differs(block, "step 12 ms\nmore")
    assert differs_from_sentences("Goodput and so on.") != ""


def of_python(page: Path) -> list[Block]:
    return [block for block in of_page(page) if block.language == "python" and not block.not_run]


@pytest.fixture
def names(reader: Path, group_of_one: None) -> Iterator[dict[str, Any]]:
    """What the pages' reader has already."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import diag as package

    class Model(torch.nn.Linear):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return super().forward(batch).mean()

    model = DistributedDataParallel(Model(4, 1))

    class Batches:
        """An iterator that begins again."""

        left = 6

        def __iter__(self) -> Batches:
            return self

        def __next__(self) -> torch.Tensor:
            self.left = (self.left - 1) % 6
            if self.left:
                return torch.zeros(2, 4)
            raise StopIteration

    yield {
        "diag": package,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "loader": [torch.zeros(2, 4)] * 6,
        "batches": Batches(),
        "steps": 2,
        "result": package.open_run("R"),
    }
    shutil.rmtree("R", ignore_errors=True)
    shutil.copytree(LOADER, "R")


@pytest.mark.parametrize("page", [page for page in committed() if of_python(page)], ids=name_of)
def test_the_python_of_a_page_runs(page: Path, names: dict[str, Any]) -> None:
    for block in of_python(page):
        code = "\n".join(block.lines)
        if '"R")' in code.replace('open_run("R")', ""):  # it records there
            shutil.rmtree("R", ignore_errors=True)
        exec(compile(code, f"{page}:{block.line}", "exec"), names)


# -- marks -------------------------------------------------------------------------------------------------------------


def test_a_mark_is_one_that_is_known() -> None:
    wrong = []
    for path in committed():
        for block in of_page(path):
            known = [*block.not_run.values(), *filter(None, [block.compared])]
            reasons = set(block.not_run.values()) - REASONS
            if reasons or (len(known) == 0 and block.marks):
                wrong.append((path.name, block.line, block.marks))
            # A text that is in no line any more, and a mark that hides a line that would run.
            wrong += [(path.name, block.line, text) for text in block.not_run if text not in "\n".join(block.lines)]
    assert wrong == []
    used = {why for path in committed() for block in of_page(path) for why in block.not_run.values()}
    assert used == REASONS


def test_every_block_is_run_or_shown_or_marked() -> None:
    """A block in a language that nothing here knows would be neither."""
    seen, wrong = Counter[str](), []
    for path in committed():
        for block in of_page(path):
            where = f"{path.name}:{block.line}"
            seen["compared"] += bool(block.compared)
            file = block.language in ("toml", "json") and names_a_file(block)
            runs = bool(lines_to_run(block) or block.compared or file or block.language == "python")
            marked = bool(block.not_run) or any(option in "\n".join(block.lines) for option in _LACKING)
            seen["run"] += runs and "" not in block.not_run
            seen.update({f"not run: {why}": 1 for why in block.not_run.values()})
            wrong += [] if runs or marked else [where]
    assert wrong == []
    assert seen["run"] > 40
    assert seen["compared"] > 8
    for name in ("SECURITY.md", "CHANGELOG.md", "sample_traces/README.md"):
        assert list(blocks((ROOT / name).read_text("utf-8"))) == []


def names_a_file(block: Block) -> bool:
    return re.match(r"# \w+\.\w+$", block.lines[0]) is not None
