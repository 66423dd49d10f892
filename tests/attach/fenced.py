"""Trainings in which each function of the recorder fails in turn, and what becomes of them.

    python fenced.py FOLDER SCENARIO [PART PARTS]
    python fenced.py FOLDER SCENARIO 0 1 all

Functions that the scenario "ddp" calls fail in it alone, unless "all" is given. One process imports torch and the
recorder; each training is a fork of it, which ends as a Python process does. Prints a JSON object: the number of
trainings, and for each that was not as the bare one what was different.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
import torch._dynamo  # by the first step of any optimizer
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

ROOT = Path(__file__).parents[2] / "collectors"
PACKAGE = "_diag_collectors"
TIMEOUT_S = 60
BARE = "bare"
_CPP = "record_function.cpp"  # torch's own line of a profiler whose start has failed
ERRORS = ("RuntimeError", "OSError", "MemoryError", "AttributeError", "RecursionError", "StopIteration", "TypeError")
# They stand in for functions of the training, and hold the fence themselves.
FENCES = {"prepare_for_backward", "register_comm_hook", "timed_bucket", "exec_module", "excepthook"}
# ``record`` and its methods hold the fence within them, and nothing but ``discard`` can stop the profiler.
HELD = (f"{PACKAGE}.recording.record", f"{PACKAGE}.recording.Recording", f"{PACKAGE}.window.TraceWindows.discard")
SETTINGS = {"trace_skip": 1, "trace_warmup": 1, "trace_active": 1, "interval_s": 0.02}
IN_A_WINDOW = {"plain"}  # the training ends in a window of the profiler

# -- trainings ---------------------------------------------------------------------------------------------------------


def steps(model: torch.nn.Module, number: int, each: Callable[[torch.Tensor], object] = lambda _loss: None) -> None:
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for batch in DataLoader(torch.arange(4.0 * number).reshape(number, 4)):
        loss = model(batch).square().mean()
        loss.backward()
        scaler.step(sgd)
        sgd.zero_grad()
        each(loss.detach())
        print("loss", loss.item().hex(), flush=True)


def evaluate(model: torch.nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        print("evaluated", sum(model(batch).sum().item() for batch in DataLoader(torch.ones(2, 4))).hex())
    model.train()


def join(folder: Path, rank: int = 0, ranks: int = 1) -> None:
    store = dist.FileStore(str(folder / f"store{time.monotonic_ns() if ranks == 1 else 0}"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)


def ddp(folder: Path) -> None:
    """A process group of one rank, which is destroyed and made again."""
    for _ in range(2):
        join(folder)
        model = DistributedDataParallel(torch.nn.Linear(4, 2))

        def reduce(loss: torch.Tensor) -> None:
            dist.all_reduce(loss)
            work = dist.all_reduce(loss, async_op=True)
            assert work is not None
            work.wait()
            gathered = functional_collectives.all_gather_tensor(loss.reshape(1), 0, dist.group.WORLD)
            print("gathered", gathered.sum().item().hex())

        steps(model, 4, reduce)
        evaluate(model)
        gc.collect()
        torch.save(model.state_dict(), folder / "model.pt")
        dist.destroy_process_group()


def print_to(*names: str) -> None:
    """Sends standard output and standard error to files in the current folder."""
    for number, name in enumerate(names, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)


def pair(folder: Path) -> None:
    """Two ranks that send to each other."""
    faulthandler.cancel_dump_traceback_later()  # a fork of its thread's process would wait for that thread when it ends
    rank = 0 if (child := os.fork()) else 1
    faulthandler.dump_traceback_later(TIMEOUT_S - 5)
    if rank:
        print_to("out1", "err1")
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    join(folder, rank, 2)
    model = torch.nn.Linear(4, 2)

    def exchange(loss: torch.Tensor) -> None:
        if rank == 0:
            dist.send(loss, 1)
            dist.recv(loss, 1)
        else:
            dist.recv(loss, 0)
            dist.send(loss * 2, 0)

    steps(model, 4, exchange)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        os.waitpid(child, 0)


def left(folder: Path) -> None:
    """Raises while an asynchronous collective is under way, which ends when Python does: the other rank goes away."""
    faulthandler.cancel_dump_traceback_later()
    told, tells = os.pipe()
    if os.fork() == 0:
        print_to("out1", "err1")
        os.close(tells)
        join(folder, 1, 2)
        os.read(told, 1)  # until the first one is about to end
        time.sleep(1)
        os._exit(0)
    join(folder, 0, 2)
    steps(torch.nn.Linear(4, 2), 2)
    dist.all_reduce(torch.ones(4), async_op=True)
    os.write(tells, b"1")
    raise ValueError("the training's own")


def plain(folder: Path) -> None:
    """No process group, a thread and a child beside it, and an exception at the end."""
    model = torch.nn.Linear(4, 2)
    thread = threading.Thread(target=lambda: torch.ones(3, requires_grad=True).sum().backward())
    thread.start()
    thread.join()
    steps(model, 4)
    evaluate(model)
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(0.05)  # for the recorder's thread
    torch.save(model.state_dict(), folder / "model.pt")
    raise ValueError("the training's own")


def marked(folder: Path) -> None:
    """A script that records itself."""
    from _diag_collectors.recording import record

    model, w = torch.nn.Linear(4, 2), torch.ones(4, requires_grad=True)
    with record(folder / "run") as recording:
        for batch in recording.steps([torch.ones(1, 4) * number for number in range(4)]):
            loss = (model(batch).sum() + (w * batch).sum()).square()
            loss.backward()
            recording.note(tokens=1, loss=loss.item())
            print("loss", loss.item().hex())
        recording.told_steps()
        recording.end_step()


SCENARIOS: dict[str, Callable[[Path], None]] = {
    "ddp": ddp,
    "plain": plain,
    "pair": pair,
    "marked": marked,
    "left": left,
}


def load() -> list[ModuleType]:
    """All modules that run in a training, under the name that they have there."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(PACKAGE, str(ROOT / "__init__.py"), submodule_search_locations=[str(ROOT)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[PACKAGE] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])
    files = [path.relative_to(ROOT) for path in (*ROOT.glob("*.py"), *ROOT.glob("attach/*.py"))]
    names = sorted(".".join(path.with_suffix("").parts) for path in files if path.name != "__init__.py")
    return [importlib.import_module(f"{PACKAGE}.{name}") for name in names]


def functions(modules: list[ModuleType]) -> dict[str, FunctionType]:
    """Every function and method of the recorder, but for the fence's own, by name."""
    found: dict[str, FunctionType] = {}

    def add(name: str, value: Any) -> None:
        for plain in (value, getattr(value, "__func__", None), getattr(value, "fget", None)):
            while hasattr(plain, "__wrapped__"):
                plain = plain.__wrapped__
            if isinstance(plain, FunctionType) and plain.__code__.co_filename.startswith(str(ROOT)):
                found.setdefault(name, plain)

    for module in modules:
        if module.__name__ == f"{PACKAGE}.fence":
            continue
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__:
                add(f"{module.__name__}.{name}", value)
                for attribute, method in vars(value).items() if isinstance(value, type) else ():
                    add(f"{module.__name__}.{name}.{attribute}", method)
    return found


def codes(code: CodeType, name: str = "") -> Iterator[tuple[str, CodeType]]:
    """The code of a function, and of the functions within it, by the path of names to them."""
    yield name, code
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and not inner.co_name.startswith("<"):
            yield from codes(inner, f"{name}.{inner.co_name}")


def broken(code: CodeType, path: str, error: str) -> CodeType:
    """The code, in which the function at this path raises instead."""
    if not path:
        scope: dict[str, Any] = {}
        exec(f"def raises(*_args, **_named): raise {error}('planted')", scope)
        raising: CodeType = scope["raises"].__code__
        return raising.replace(co_freevars=code.co_freevars, co_filename=code.co_filename, co_name=code.co_name)
    head, _, rest = path.removeprefix(".").partition(".")
    consts = [
        broken(inner, f".{rest}" if rest else "", error)
        if isinstance(inner, CodeType) and inner.co_name == head
        else inner
        for inner in code.co_consts
    ]
    return code.replace(co_consts=tuple(consts))


class Run:
    """The trainings of one scenario."""

    def __init__(self, folder: Path, scenario: str) -> None:
        self.folder, self.train, self.attached = folder, SCENARIOS[scenario], scenario != "marked"
        self.settings = SETTINGS | ({"trace_active": 9} if scenario in IN_A_WINDOW else {})
        self.number = 0

    def start(self, prepare: Callable[[], object]) -> bool:
        """Forks a training. Returns False in the fork when it is over."""
        self.number += 1
        self.at = folder = self.folder / str(self.number)
        folder.mkdir()
        self.child = os.fork()
        if self.child:
            return True
        os.chdir(folder)
        print_to("out", "err")
        faulthandler.dump_traceback_later(TIMEOUT_S - 5)
        torch.manual_seed(0)
        prepare()
        if self.attached:
            os.environ.update(
                DIAG_ATTACH="1", DIAG_RUN_DIR=str(folder / "run"), DIAG_COLLECTOR=json.dumps(self.settings)
            )
            try:  # as sitecustomize does
                sys.modules[f"{PACKAGE}.attach.boot"].boot()
            except Exception as error:
                sys.stderr.write(f"diag: nothing is recorded: {error!r}\n")
        self.train(folder)
        return False

    def ended(self) -> Ended:
        until = time.monotonic() + TIMEOUT_S
        code = None
        while code is None:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                os.kill(self.child, signal.SIGKILL)
            time.sleep(0.002)
        texts = ("".join(path.read_text() for path in sorted(self.at.glob(f"{name}*"))) for name in ("out", "err"))
        return Ended(code, *texts)


def calls_into(path: Path) -> None:
    """Writes the code of ours that this process calls, when it ends."""
    seen: set[tuple[str, int, str]] = set()

    def look(frame: Any, event: str, _arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)):
            seen.add((code.co_filename, code.co_firstlineno, code.co_name))

    atexit.register(lambda: path.write_text(json.dumps(sorted(seen))))
    threading.setprofile(look)
    sys.setprofile(look)


Job = tuple[str, Callable[[], object]]


def calls_of(file: Path) -> set[tuple[object, ...]]:
    return {tuple(entry) for entry in json.loads(file.read_text())}


def jobs(
    folder: Path, scenario: str, part: int, parts: int, modules: list[ModuleType], elsewhere: set[tuple[object, ...]]
) -> Iterator[Job]:
    """The bare training, one in which nothing fails, and those in which something does: a name, and what is done to the
    recorder before it. ``elsewhere``: the code that fails in another scenario."""
    yield BARE, lambda: os.environ.update(DIAG_COLLECT="off")
    yield "nothing", lambda: calls_into(folder / "called.json")
    called = calls_of(folder / "called.json") - elsewhere
    places = [
        (f"{name}{path}", path, function)
        for name, function in functions(modules).items()
        for path, code in codes(function.__code__)
        if (code.co_filename, code.co_firstlineno, code.co_name) in called
        if code.co_name not in FENCES and not f"{name}{path}".startswith(HELD)
    ]
    for number, (name, path, function) in enumerate(places[part::parts]):
        error = ERRORS[(part + number) % len(ERRORS)]
        yield f"{error} in {name}", functools.partial(plant, function, path, error)
    for module in modules[part::parts] if scenario == "plain" else ():
        yield f"import of {module.__name__}", functools.partial(unimportable, module)


def plant(function: FunctionType, path: str, error: str) -> None:
    function.__code__ = broken(function.__code__, path, error)


def main() -> None:
    folder, scenario = Path(sys.argv[1]).resolve(), sys.argv[2]
    part, parts = (int(word) for word in sys.argv[3:5]) if len(sys.argv) > 3 else (0, 1)
    modules = load()
    elsewhere: set[tuple[object, ...]] = set()
    torch.set_num_threads(1)
    steps(torch.nn.Linear(4, 2), 1)  # what the first step of a process takes
    sys.stdout.flush()
    gc.collect()
    gc.freeze()
    if scenario != "ddp" and "all" not in sys.argv:
        (folder / "ddp").mkdir()
        other = Run(folder / "ddp", "ddp")
        if not other.start(lambda: calls_into(folder / "ddp" / "called.json")):
            return
        other.ended()
        elsewhere = calls_of(folder / "ddp" / "called.json")
    run, bare = Run(folder, scenario), Ended(0, "", "")
    number, different = 0, {}
    for name, prepare in jobs(folder, scenario, part, parts, modules, elsewhere):
        if not run.start(prepare):
            return  # the training: it ends as its process does
        ended = run.ended()
        if name == BARE:
            bare = ended
            continue
        number += 1
        if ended.code == -signal.SIGKILL:  # 3 of 1,000 on a busy host, with different functions: it has to repeat
            if not run.start(prepare):
                return
            ended = run.ended()
        if why := difference(bare, ended):
            different[name] = why
    print(json.dumps({"trainings": number, "exit code": bare.code, "different": different}))


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def difference(bare: Ended, ended: Ended) -> str:
    """What a training did otherwise than the bare one; the recorder may print a line for each thing that it gives up,
    and one that it gives up everything."""
    known = bare.err.splitlines()
    more = [line for line in ended.err.splitlines() if line not in known and _CPP not in line]
    over = [line.partition(": nothing")[0] for line in more if ": nothing" in line]  # by rank
    if (ended.code, ended.out) != (bare.code, bare.out):
        return f"exit code {ended.code}, {ended.out[-200:]} {more[-5:]}"
    if len(over) > len(set(over)) or not all(line.startswith("diag: ") for line in more):
        return f"{more[-5:]}"
    return ""


def unimportable(module: ModuleType) -> None:
    """From here on the import of this module fails, and those of other modules of the recorder begin anew."""
    boot = f"{PACKAGE}.attach.boot"
    for name in [name for name in sys.modules if name.startswith(f"{PACKAGE}.") and name != boot]:
        del sys.modules[name]
    sys.modules[module.__name__] = None  # type: ignore[assignment]


if __name__ == "__main__":
    main()
