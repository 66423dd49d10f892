"""``python -m tests.bench.failures [--set NAME] [--only NAME] [--tool NAME=COMMAND] [--wrong]``: one table a set.

Says on standard error which tool of ``tools.toml`` is not installed here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

if __package__ in (None, ""):  # make bench starts the file itself
    sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.bench.failures.cases import SETS
from tests.bench.failures.score import ToolError, answers_of, first_words, judged, table, tool_of, tools_of


def main() -> int:
    """2 where a tool breaks the protocol."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.failures")
    parser.add_argument("--set", action="append", choices=tuple(SETS), help="only these cases (default: all sets)")
    parser.add_argument("--only", action="append", help="only these tools of tools.toml")
    parser.add_argument("--tool", action="append", default=[], metavar="NAME=COMMAND", help="another tool")
    parser.add_argument("--wrong", action="store_true", help="print each wrong answer as well")
    arguments = parser.parse_args()
    known = tools_of()
    unknown = sorted(set(arguments.only or ()) - set(known))
    if unknown:
        parser.error(f"no tool {', '.join(unknown)}: there are {', '.join(known)}")
    tools = [known[name] for name in arguments.only or (known if not arguments.tool else ())]
    failed = False
    for name in arguments.set or SETS:
        cases = list(SETS[name]())
        print(f"\n{name}: {len(cases)} cases\n")
        with tempfile.TemporaryDirectory() as base:
            folders = [Path(base) / f"{index:04}" for index in range(len(cases))]
            for case, folder in zip(cases, folders, strict=True):
                folder.mkdir()
                case.fill(folder)
            rows = []
            for tool in (*tools, *map(tool_of, arguments.tool)):
                if not tool.command:
                    print(f"{tool.name}: not run: {tool.needs} names no interpreter that has it", file=sys.stderr)
                    continue
                try:
                    row = judged(tool, [case.case for case in cases], *answers_of(tool, folders))
                except (ToolError, OSError) as error:
                    print(f"{tool.name}: {error}", file=sys.stderr)
                    failed = True
                    continue
                rows.append(row)
                if arguments.wrong:
                    print(*row.wrong, "", sep="\n")
        if name == "blind":
            print(f"`diag triage` at the first run of each set: {first_words()}\n")
        print(table(rows))
    return 2 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
