"""What commands cost before they do anything: CPU time, and the part of it in which modules are imported.

    python tests/bench/start.py [--times 5] [OTHER CHECKOUT]

Commands on a small run of two ranks without traces, the sample as it is, and `--help`. OTHER CHECKOUT (with a virtual
environment in .venv) is measured in turns with this one. CPU times are medians; import times come from Python's
-X importtime and are the least of as many runs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench._measure import measured

_HERE = Path(__file__).resolve().parents[2]
_SAMPLE = _HERE / "sample_traces" / "ddp-healthy"
_QUIET = {"DIAG_CACHE": "off", "OPENBLAS_NUM_THREADS": "1"}
_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--times", type=int, default=5)
    options.add_argument("other", nargs="?", type=Path)
    asked = options.parse_args()
    interpreters = {"here": Path(sys.executable)}
    if asked.other is not None:
        interpreters["other"] = asked.other / ".venv" / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        small, traced = (shutil.copytree(_SAMPLE, Path(folder, name)) for name in ("small", "traced"))
        for trace in small.glob("ranks/*/trace-*"):
            trace.unlink()
        commands = [
            ["--help"],
            ["triage", small],
            ["analyze", small],
            ["analyze", "--json", small],
            ["analyze", traced],
        ]
        print("| command | checkout | CPU s | imports ms | of which diag | numpy | polars | modules |")
        print("|---|---|---|---|---|---|---|---|")
        for command in commands:
            for path in interpreters.values():
                _modules([path, "-P", "-m", "diag", *command])  # Python keeps what it compiled
            cpu = Counter[tuple[str, int]]()
            for at in range(asked.times):
                for name, path in interpreters.items():
                    cpu[name, at] = measured([path, "-P", "-m", "diag", *command], _QUIET).cpu_s
            for name, path in interpreters.items():
                of_name = median(cpu[name, at] for at in range(asked.times))
                runs = [_modules([path, "-P", "-m", "diag", *command]) for _ in range(asked.times)]
                least = min(runs, key=lambda run: sum(run.values()))
                packages = Counter[str]()
                for module, us in least.items():
                    packages[module.partition(".")[0]] += us
                shown = " | ".join(f"{packages[package] / 1000:.0f}" for package in ("diag", "numpy", "polars"))
                words = " ".join(Path(part).name if isinstance(part, Path) else part for part in command)
                total = sum(least.values()) / 1000
                print(f"| {words} | {name} | {of_name:.2f} | {total:.0f} | {shown} | {len(least)} |", flush=True)


def _modules(command: list[Path | str]) -> dict[str, int]:
    """The microseconds that each imported module takes by itself."""
    interpreter, *rest = map(str, command)
    environment = {**os.environ, **_QUIET}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ended = subprocess.run(
        [interpreter, "-X", "importtime", *rest], capture_output=True, text=True, check=True, env=environment, cwd="/"
    )
    return {match[2]: int(match[1]) for match in _LINE.finditer(ended.stderr)}


if __name__ == "__main__":
    main()
