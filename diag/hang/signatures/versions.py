"""Hosts that differ: in NCCL's version, in its environment, in its plugins."""

from __future__ import annotations

from diag.hang.model import Role
from diag.hang.signatures.base import NAMES_AN_EFFECT, SUGGESTS, FaultClass, Signature

CLASSES = (
    FaultClass(
        id="nccl_version_mismatch",
        title="the processes use different versions of NCCL",
        priority=2,
        next_steps=(
            "Align NCCL: on every host `python -c 'import torch; print(torch.__version__, "
            "torch.cuda.nccl.version())'`; "
            "look for another libnccl.so.2 in LD_LIBRARY_PATH and LD_PRELOAD.",
            "NCCL_DEBUG=VERSION prints the one that is loaded.",
        ),
        rule="The processes of one job print different NCCL versions; the minority is named.",
        rules_out={"env_mismatch": "the versions themselves differ"},
        signatures=(
            Signature(
                "mismatched-version",
                ("Mismatched NCCL version detected",),
                r"Mismatched NCCL version detected ?: ?rank (?P<group_rank>\d+) version (?P<version>\d+) rank "
                r"(?P<other_group_rank>\d+) version (?P<other_version>\d+)",
                "2.23+",
                "init.cc:966",
                "Rank {group_rank} has version {version}, rank {other_group_rank} has {other_version}.",
            ),
            Signature(
                "wrong-type",
                ("socketFinalizeAccept",),
                r"socketFinalizeAccept(?: from \S+)?: wrong (?:type|magic)",
                "2.12+",
                "misc/socket.cc:337",
                "Somebody connected who speaks another protocol.",
                Role.ROOT,
                SUGGESTS,
            ),
            Signature(
                "family-0",
                ("with family 0 is neither",),
                r"with family 0 is neither AF_INET",
                "2.12+",
                "misc/socket.cc:538",
                "The address that a peer sent is empty.",
                Role.ROOT,
                SUGGESTS,
            ),
            Signature(
                "bootstrap-truncated",
                ("Message truncated : received",),
                r"Message truncated : received [\d,]+ bytes instead of [\d,]+",
                "all",
                "bootstrap.cc:225",
                "A peer's bootstrap message has another size.",
                Role.ROOT,
                SUGGESTS,
            ),
            Signature(
                "version-line",
                ("NCCL version ",),
                r"NCCL version (?P<version>\d+(?:\.\d+)+)",
                "all",
                "init.cc",
                "NCCL {version}.",
                Role.HARMLESS,
            ),
        ),
    ),
    FaultClass(
        id="same_host_identity",
        title="two hosts look like one to NCCL",
        priority=2,
        next_steps=(
            "NCCL takes processes with one hostname and boot id for one host: give every host (or container) a name of "
            "its own, or set NCCL_HOSTID to a different value on each.",
            "Containers on one host that should be one: give them the same /dev/shm (--ipc=host) and PID namespace.",
        ),
        rule="NCCL reports a GPU that two ranks share, or a shared memory segment that is not there, and the lines "
        "show that the ranks are on different hosts.",
        rules_out={
            "duplicate_gpu": "the two ranks use different addresses: their GPUs have one PCI address on two hosts",
            "shm_exhausted": "the segment is not full but absent: another host or container made it",
            "cuda_failure": "the memory that CUDA cannot open is on another host",
        },
        signatures=(
            Signature(
                "segment-absent",
                ("Error while attaching to shared memory segment",),
                r"Error while attaching to shared memory segment(?: (?P<path>/?\S+))?(?: \(size (?P<size>\d+)\))?, "
                r"error: No "
                r"such file",
                "2.21+",
                "misc/shmutils.cc:132",
                "The shared memory[ {path}] that a peer made is not there: the peer ended and removed it, or it "
                "runs in "
                "another container or on another host with the same name.",
                confidence=SUGGESTS,
            ),
        ),
    ),
    FaultClass(
        id="env_mismatch",
        title="the hosts run with different settings",
        priority=2,
        next_steps=(
            "Align the NCCL_* variables and network plugins of all hosts: pass them through the launcher (mpirun -x, "
            "srun "
            "--export), and look at /etc/nccl.conf and ~/.nccl.conf of each host.",
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET prints what each process took.",
        ),
        rule="Variables or plugins that must be the same everywhere differ between hosts, and the job fails or hangs.",
        rules_out={"nccl_version_mismatch": "all processes that say so print one NCCL version"},
        signatures=(
            Signature(
                "rank-count",
                ("Bootstrap Root : mismatch in",),
                r"Bootstrap Root : mismatch in (?:rank count|info) from procs",
                "rank count <= 2.22, info 2.23+",
                "bootstrap.cc:346",
                "The processes disagree on how many they are.",
                Role.ROOT,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "rank-out-of-range",
                ("Invalid rank requested",),
                r"Invalid rank requested ?: ?(?P<rank>\d+)/(?P<size>\d+)",
                "all",
                "init.cc",
                "It wants to be rank {rank} of {size}: its RANK or the world size is wrong.",
            ),
            Signature(
                "checked-in",
                ("has already checked in",),
                r"Bootstrap Root : rank (?P<group_rank>\d+) of (?P<size>\d+) ranks has already checked in",
                "all",
                "bootstrap.cc:358",
                "Two processes claim to be rank {group_rank} of {size}.",
                Role.ROOT,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "plugin",
                ("Plugin Path", "Could not find: libnccl-net", "Loaded net plugin", "No plugin found", "Plugin load "),
                r"(?P<plugin>(?:P2P plugin|Plugin Path|NET/Plugin ?: (?:Could not find: libnccl-net|Loaded net "
                r"plugin|Plugin load (?:\(libnccl-net\.so\) )?returned 2|.*No plugin found)).*)",
                "all",
                "plugin/plugin_open.cc:108",
                "{plugin}",
                Role.HARMLESS,
            ),
        ),
    ),
)
