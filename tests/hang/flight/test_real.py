"""Real dumps: of NCCL runs with known culprits, where they lie beside this project, and of gloo here and now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diag.hang.flight import clues_of, read_dumps
from tests.forked import run_forked
from tests.hang.flight.boards import culprits
from tests.patience import PATIENCE_S

_SHARED = Path(__file__).parents[4] / "shared" / "flight_recorder"


@pytest.mark.parametrize(("name", "truth"), [("gpu_error_1st", [12, 14]), ("lock_gil_1st", [9, 14])])
def test_culprits_of_real_nccl_dumps(name: str, truth: list[int]) -> None:
    if not (_SHARED / name).is_dir():
        pytest.skip(f"the dumps of {name} are not on this machine")
    found = clues_of(read_dumps([_SHARED / name]))
    assert culprits(found) == truth
    assert len(found.clues) == 1
    assert found.clues[0].victims == tuple(sorted(set(range(16)) - set(truth)))
    assert [stack.rank for stack in found.stacks[:2]] == truth  # these recorders kept no frames
    assert found.stacks[2].what.startswith("a typical victim")
    assert found.gaps == ()


_SCRIPT = """
import datetime, os, sys, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
rank, folder = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=3))
held = torch.ones(8)
dist.all_gather_into_tensor(torch.ones(16), held)
dist.barrier()
def evaluate_alone():
    dist.broadcast(held, 0)
if rank == 1:
    evaluate_alone()
    time.sleep(5)
else:
    dist.broadcast(held, 0)
    try:
        dist.all_reduce(held)
    except Exception:
        pass
write = lambda end, data: open(f"{folder}/dumps{end}/comm_lib_trace_rank_{rank}", "wb").write(data)
write("", _dump_fr_trace())
text = _dump_fr_trace_json()
write("_json", text if isinstance(text, bytes) else text.encode())
os._exit(0)
"""


def test_gloo_dumps_of_this_torch(tmp_path: Path) -> None:
    """Rank 1 sleeps; rank 0 times out in the all_reduce that it never called."""
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps_json").mkdir()
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    ended = run_forked(
        [str(script), str(tmp_path)], [os.environ | {"RANK": rank} for rank in ("0", "1")], timeout=PATIENCE_S
    )
    assert ended.exit_codes == (0, 0), ended.stderr
    for folder in ("dumps", "dumps_json"):
        found = clues_of(read_dumps([tmp_path / folder]))
        assert culprits(found) == [1]
        assert found.clues[0].victims == (0,)
        stacks = [" ".join(stack.frames) for stack in found.stacks]
        if folder == "dumps":
            assert "evaluate_alone" in stacks[0]
            assert "all_reduce" in stacks[1]
