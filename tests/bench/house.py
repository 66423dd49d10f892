"""Figures of the product code: size, modules with one importer, depth of the import graph, largest functions, what
`diag analyze` reaches, by room, and what it really loads for each sample and for a run of records alone.

    python -m tests.bench.house [REPOSITORY]

REPOSITORY is another checkout, for figures before and after a change. Imports inside functions and under
`TYPE_CHECKING` count, because a reader has to follow them too; the depth without them is printed beside it. What a
registry names ("module:function") is not followed: it counts where it is loaded.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import networkx

from tests.simulate import Plan, simulate, write_run

SAMPLES = Path(__file__).parents[2] / "sample_traces"
PACKAGES = ("diag", "app", "collectors")
REACHED_FROM = "diag.cli.analyze"
# Which files are opened, the account of the steps, and the verdict: without what is printed next to it.
TO_THE_VERDICT = ("diag.rundir.run", "diag.account.attribute", "diag.account.blocks", "diag.diagnoses.verdict")


def main(root: Path) -> None:
    paths = _modules(root)
    trees = {name: ast.parse(path.read_text()) for name, path in paths.items()}
    lines = {name: path.read_text().count("\n") for name, path in paths.items()}
    every, at_import = networkx.DiGraph(), networkx.DiGraph()
    every.add_nodes_from(paths)
    at_import.add_nodes_from(paths)
    for name, tree in trees.items():
        package = name if paths[name].name == "__init__.py" else name.rpartition(".")[0]
        every.add_edges_from((name, other) for other in _imported(ast.walk(tree), package, paths) if other != name)
        at_import.add_edges_from(
            (name, other) for other in _imported(_run_at_import(tree), package, paths) if other != name
        )
    total = sum(lines.values())
    importers = defaultdict(set)
    for importer, imported in every.edges:
        importers[imported].add(importer)
    functions = [
        (node.end_lineno - node.lineno + 1, f"{name}.{node.name}")
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    circles = [sorted(circle) for circle in networkx.strongly_connected_components(at_import) if len(circle) > 1]
    numbers = numbers_outside_of_policy(root)
    print(f"files                    {len(paths)}")
    print(f"lines                    {total}")
    print(f"files per 1,000 lines    {1000 * len(paths) / total:.1f}")
    print(f"with one importer        {sum(len(found) == 1 for found in importers.values())}")
    print(f"of them under 60 lines   {sum(len(found) == 1 and lines[name] < 60 for name, found in importers.items())}")
    print(f"depth of the imports     {_depth(every)} (at import only: {_depth(at_import)})")
    print(f"module-level numbers     {len(numbers)} (outside of policy modules)")
    print(f"circles at import        {circles or 'none'}")
    print(f"folders with code        {len({path.parent for path in paths.values()})}")
    print(
        "largest functions        "
        + ", ".join(f"{function} {size}" for size, function in sorted(functions, reverse=True)[:5])
    )
    print(
        "largest modules          "
        + ", ".join(f"{name} {lines[name]}" for name in sorted(lines, key=lines.__getitem__)[:-6:-1])
    )
    reached = reached_from(REACHED_FROM, root)
    print(f"reached from {REACHED_FROM}: {sum(reached.values())} lines in {len(reached)} modules")
    judging = {*TO_THE_VERDICT}.union(*(networkx.descendants(every, name) for name in TO_THE_VERDICT))
    print(f"of them from files to a verdict: {sum(map(lines.__getitem__, judging))} lines in {len(judging)} modules")
    by_room: dict[str, int] = defaultdict(int)
    for name, count in reached.items():
        by_room[".".join(name.split(".")[:2])] += count
    for room, count in sorted(by_room.items(), key=lambda item: -item[1]):
        print(f"    {count:6} {room}")
    print("loaded by diag analyze:")
    with tempfile.TemporaryDirectory() as folder:
        for run in runs_to_load(Path(folder)):
            modules = loaded_for(run, root)
            print(f"    {sum(modules.values()):6} lines in {len(modules):3} modules  {run.name}")


def reached_from(module: str, root: Path) -> dict[str, int]:
    """The modules that can be reached from a module by its imports, itself included, each with its lines."""
    paths, graph = _modules(root), networkx.DiGraph()
    graph.add_nodes_from(paths)
    for name, path in paths.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        imported = _imported(ast.walk(ast.parse(path.read_text())), package, paths)
        graph.add_edges_from((name, other) for other in imported if other != name)
    return {name: paths[name].read_text().count("\n") for name in {module, *networkx.descendants(graph, module)}}


_ANALYZE = """
import atexit, json, os, sys
from diag.cli.main import main
def tell():
    files = [getattr(module, "__file__", None) or "" for name, module in sys.modules.items() if name.startswith("diag")]
    with os.fdopen(int(os.environ["TELLS"]), "w") as told:
        json.dump(files, told)
atexit.register(tell)
main()
"""


def loaded_for(run: Path, root: Path) -> dict[str, int]:
    """The product modules that `diag analyze` has loaded when it ends, in a process of its own, each with its lines."""
    receiver, sender = os.pipe()
    with os.fdopen(receiver) as told:
        command = [sys.executable, "-c", _ANALYZE, "analyze", str(run)]
        environment = {**os.environ, "PYTHONPATH": str(root), "DIAG_CACHE": "off", "TELLS": str(sender)}
        subprocess.run(command, env=environment, cwd=root, pass_fds=[sender], stdout=subprocess.DEVNULL, check=True)
        os.close(sender)
        files = [Path(os.path.realpath(file)) for file in json.load(told) if file.endswith(".py")]
    return {_name(file.relative_to(root.resolve())): file.read_text().count("\n") for file in files}


def runs_to_load(folder: Path) -> Iterator[Path]:
    """Copies of the samples, since an analysis writes its answer into a run, and a run of records alone."""
    for sample in sorted(SAMPLES.iterdir()):
        if sample.is_dir():
            yield shutil.copytree(sample, folder / sample.name)
    yield records_alone(folder / "records alone")


def records_alone(folder: Path) -> Path:
    """A run of two ranks without a profiler window, of which nothing is slow."""
    return write_run(simulate(Plan(ranks=2, steps=40)), folder).root


def _modules(root: Path) -> dict[str, Path]:
    return {
        _name(path.relative_to(root)): path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))
    }


def numbers_outside_of_policy(root: Path) -> list[str]:
    """Numbers that modules give a name to, as "file:line NAME", also those computed from other such numbers; without
    the policy modules. A name for each element of a tuple counts."""
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    return [
        f"{path.relative_to(root)}:{line} {name}"
        for path in paths
        if path.name != "policy.py"
        for line, name in _numbers(ast.parse(path.read_text()))
    ]


def _numbers(module: ast.Module) -> Iterator[tuple[int, str]]:
    names = set[str]()
    for statement in module.body:
        if isinstance(statement, ast.Assign):
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for each, its in pairs:
            if isinstance(each, ast.Name) and _is_number(its, names):
                names.add(each.id)
                yield statement.lineno, each.id


def _is_number(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand, names)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left, names) and _is_number(node.right, names)
    return isinstance(node, ast.Name) and node.id in names


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: not those in functions or under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _run_at_import(child)


def _imported(nodes: Iterator[ast.AST], package: str, modules: dict[str, Path]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (_folder(alias.name) for alias in node.names if _folder(alias.name) in modules)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            base = _folder(base)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                if whole in modules or base in modules:
                    yield whole if whole in modules else base


def _folder(name: str) -> str:
    """A module by the folder that it lies in: ``diag.collectors`` and ``diag.app`` are links to folders at the top."""
    return name.removeprefix("diag.") if name.startswith(("diag.collectors", "diag.app")) else name


def _depth(graph: networkx.DiGraph) -> int:
    """Modules on the longest chain of imports; a circle counts as one module."""
    return int(networkx.dag_longest_path_length(networkx.condensation(graph))) + 1


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2])
