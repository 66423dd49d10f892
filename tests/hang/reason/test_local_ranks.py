"""A local rank is a rank only where nothing shows a second host."""

from __future__ import annotations

from pathlib import Path

from diag.hang.api import triage
from tests.hang.reason.builders import ranks

NO_INTERFACE = (
    "[default{0}]:node3:70{0}:90{0} [{0}] NCCL INFO NCCL_SOCKET_IFNAME set by environment to enp12s0\n"
    "\n"
    "[default{0}]:node3:70{0}:90{0} [{0}] transport/net_socket.cc:46 NCCL WARN NET/Socket : no interface found\n"
)
OF_ANOTHER = "[default{0}]:node1:50{0}:60{0} [{0}] NCCL INFO Bootstrap : Using bond0:10.0.0.1<0>\n"


def test_local_ranks_are_ranks_of_the_only_host(tmp_path: Path) -> None:
    (tmp_path / "node3.log").write_text("".join(map(NO_INTERFACE.format, range(4))))
    assert ranks(triage([str(tmp_path)])) == [0, 1, 2, 3]


def test_a_line_of_a_second_host_leaves_the_host(tmp_path: Path) -> None:
    (tmp_path / "node1.log").write_text("".join(map(OF_ANOTHER.format, range(4))))
    (tmp_path / "node3.log").write_text("".join(map(NO_INTERFACE.format, range(4))))
    answer = triage([str(tmp_path)])
    assert set(ranks(answer)) == {None}
    assert {culprit.host for culprit in answer.culprits} == {"node3"}
