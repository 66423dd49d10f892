"""InfiniBand and RoCE: completions with errors, paths that cannot be had."""

from __future__ import annotations

from diag.hang.model import Role
from diag.hang.signatures.base import NAMES_AN_EFFECT, FaultClass, Signature

_COMPLETION = (
    r"Got completion (?:from peer (?P<peer>[^\s<>]+<\d+>) )?with (?:error (?P<error>{0})\b|"
    r"status=(?:\w+\((?P<named_status>{0})\)|(?P<status>{0})\b))"
)
_REST = (
    r"(?:.*?vendor[_ ]err[= ](?P<vendor>\d+))?(?:.*?localGid (?P<local_gid>\S+))?(?:.*?remoteGids? ?(?P<remote_gid>"
    r"[0-9a-fA-F:.]+))?(?:.*? hca (?P<hca>\w+))?"
)
_WHERE = "net_ib/p2p.cc:651; transport/net_ib.cc:1295 (v2.18.3)"
_VERSIONS = '"error N" <= 2.19, "status=N" 2.20 to 2.27, "status=NAME(N)" 2.28+'

CLASSES = (
    FaultClass(
        id="ib_completion_error",
        title="an InfiniBand or RoCE path loses packets",
        priority=2,
        next_steps=(
            "At the start of a job: wrong GID or RoCE set-up: NCCL_IB_GID_INDEX (often 3), NCCL_IB_TC, `show_gids`, "
            "`ib_write_bw` between the two hosts.",
            "In the middle: a link: `ibqueryerrors`, `mlxlink -d DEVICE -m` and the switch port of {where}; "
            "NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7 ride out short flaps. NCCL_IB_HCA leaves an adapter out.",
        ),
        rules_out={"net_connection_lost": "sockets close because the InfiniBand error ends the process"},
        signatures=(
            Signature(
                "completion-with-error",
                ("Got completion ",),
                _COMPLETION.format(r"(?!5\b|4\b)\d+") + _REST,
                _VERSIONS,
                _WHERE,
                "A transfer[ with {peer}] failed.",
                Role.ROOT,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "completion-flushed",
                ("Got completion ",),
                _COMPLETION.format("5") + _REST,
                _VERSIONS,
                _WHERE,
                "Status 5 (flushed): what is left of a connection that failed before.",
                Role.CASCADE,
                NAMES_AN_EFFECT,
            ),
        ),
    ),
    FaultClass(
        id="gdr_acs",
        title="GPUDirect RDMA is blocked",
        priority=2,
        next_steps=(
            "Confirm with NCCL_NET_GDR_LEVEL=0 (no GPUDirect RDMA); if that runs, disable ACS on the PCI bridges "
            "(`setpci -s BRIDGE ECAP_ACS+0x6.w=0000`, BIOS), in a virtual machine turn ATS on.",
        ),
        rules_out={"ib_completion_error": "status 4 is a fault of access to local memory, not of the link"},
        signatures=(
            Signature(
                "local-protection",
                ("Got completion ",),
                _COMPLETION.format("4") + _REST,
                _VERSIONS,
                _WHERE,
                "Status 4: the adapter[ {hca}] may not access the local memory[ (peer {peer})].",
            ),
        ),
    ),
    FaultClass(
        id="ib_unreachable_rail",
        title="an adapter cannot reach its peer",
        priority=2,
        next_steps=(
            "Check route and subnet of each rail (`ip route get PEER`, `show_gids`) between the hosts named; "
            "NCCL_CROSS_NIC=0 keeps traffic on one rail; NCCL_IB_GID_INDEX chooses the right GID; NCCL_IB_HCA leaves "
            "an "
            "adapter out.",
        ),
        rules_out={"ib_completion_error": "the connection was never established"},
        signatures=(
            Signature(
                "modify-qp",
                ("Call to ibv_modify_qp failed",),
                r"Call to ibv_modify_qp failed with (?:error )?(?P<error>(?:110 )?Connection timed out|(?:101 "
                r")?Network is "
                r"unreachable|(?:113 )?No route to host|110\b|\d+ [A-Z][\w ]+|[A-Z][\w ]+?)(?: errno \d+)?(?:,|$|\s*$)"
                r"(?:.*?on dev (?P<hca>[^\s:,]+))?(?:.*?local GID (?:index \d+, local GID "
                r")?(?P<local_gid>[0-9a-fA-F:.]+))?"
                r"(?:.*?remote GID (?P<remote_gid>[0-9a-fA-F:.]+))?",
                "all; with device and GIDs from 2.24",
                "misc/ibvwrap.cc:309",
                "A queue pair[ of {hca}][ with local GID {local_gid}] could not be connected[ to {remote_gid}]: "
                "{error}.",
            ),
        ),
    ),
)
