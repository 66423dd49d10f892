"""What happens to others because of a fault, and what only looks like one: never a cause."""

from __future__ import annotations

from diag.hang.model import Role
from diag.hang.signatures.base import NAMES_AN_EFFECT, FaultClass, Signature


def _cascade(name: str, anchors: tuple[str, ...], pattern: str, source: str, says: str) -> Signature:
    return Signature(name, anchors, pattern, "all", source, says, Role.CASCADE, NAMES_AN_EFFECT)


def _harmless(name: str, anchors: tuple[str, ...], pattern: str, source: str, says: str) -> Signature:
    return Signature(name, anchors, pattern, "all", source, says, Role.HARMLESS, NAMES_AN_EFFECT)


CASCADE = FaultClass(
    id="cascade",
    title="what happens because something else failed",
    priority=7,
    next_steps=(),
    rule="Never an answer.",
    signatures=(
        _cascade(
            "sigterm",
            ("closing signal SIG",),
            r"Sending process (?P<pid>\d+) closing signal SIG\w+",
            "torch/distributed/elastic/multiprocessing/api.py",
            "The launcher ends process {pid} because another one failed.",
        ),
        _cascade(
            "sigkill-after-sigterm",
            ("forcefully exiting via",),
            r"Unable to shutdown process (?P<pid>\d+) via \S+, forcefully exiting via",
            "torch/distributed/elastic/multiprocessing/api.py",
            "The launcher kills process {pid}, which did not stop when it was told to.",
        ),
        _cascade(
            "exit-told",
            ("exitcode: -15)", "exitcode: -6)", "Signal 6 (", "Signal 15 ("),
            r"failed \(exitcode: -(?:15|6)\)|Signal (?:6|15) \(\w+\) received by PID",
            "torch/distributed/elastic/multiprocessing/api.py",
            "The process was told to stop, or its watchdog ended it.",
        ),
        _cascade(
            "proxy-poll",
            ("Socket recv failed while polling for opId",),
            r"Socket recv failed while polling for opId",
            "proxy.cc",
            "The proxy thread of this process is gone.",
        ),
        _cascade(
            "proxy-retcode",
            ("[Proxy Service",),
            r"\[Proxy Service[^\]]*\].*(?:retcode|Failed)",
            "proxy.cc",
            "The proxy thread passes an error on.",
        ),
        _cascade(
            "remote-exited",
            ("remote process exited or there was a network error",),
            r"remote process exited or there was a network error",
            "nccl.h (ncclRemoteError)",
            "NCCL's words for an error of somebody else.",
        ),
        _cascade(
            "watchdog-terminated",
            ("watchdog thread terminated",),
            r"watchdog thread terminated",
            "ProcessGroupNCCL.cpp",
            "The watchdog ends its process.",
        ),
        _cascade(
            "avoid-inconsistency",
            ("To avoid data inconsistency",),
            r"To avoid data inconsistency",
            "ProcessGroupNCCL.cpp",
            "The watchdog ends its process.",
        ),
        _cascade(
            "dump-signal",
            ("Received a dump signal due to", "Observed flight recorder dump signal", "preparing to dump debug info"),
            r"Received a dump signal due to|Observed flight recorder dump signal|preparing to dump debug info",
            "ProcessGroupNCCL.cpp",
            "A rank saw that another one timed out.",
        ),
        _cascade(
            "remote-error",
            ("remote error detected from rank:",),
            r"remote error detected from rank:? ?(?P<rank>\d+)",
            "ProcessGroupNCCL.cpp",
            "Rank {rank} told the others about an error.",
        ),
        _cascade(
            "barrier-victim",
            ("successfully reached monitoredBarrier, but received errors",),
            r"Rank (?P<rank>\d+) successfully reached monitoredBarrier, but received errors",
            "ProcessGroupGloo.cpp",
            "Rank {rank} was there; rank 0's log names who was not.",
        ),
        _cascade(
            "gloo-peer",
            ("Connection closed by peer", "Connection reset by peer", "Application timeout caused pair closure"),
            r"Connection closed by peer|Connection reset by peer|Application timeout caused pair closure",
            "gloo/transport/tcp/pair.cc",
            "The peer of a gloo connection is gone.",
        ),
    ),
)

HARMLESS = FaultClass(
    id="harmless",
    title="looks alarming in healthy runs",
    priority=9,
    next_steps=(),
    rule="Never an answer.",
    signatures=(
        _harmless(
            "no-libibverbs",
            ("Failed to open libibverbs",),
            r"Failed to open libibverbs",
            "misc/ibvwrap.cc",
            "No InfiniBand here: NCCL takes sockets.",
        ),
        _harmless(
            "simple-order",
            ("falling back to simple order",),
            r"Could not find a path for pattern \d+, falling back to simple order",
            "graph/search.cc:960 (v2.18.3)",
            "A search for a topology ended without a good path.",
        ),
        _harmless(
            "barrier-device",
            ("to perform barrier",),
            r"using GPU \d+ to perform barrier",
            "ProcessGroupNCCL.cpp",
            "Advice about device_ids.",
        ),
        _harmless(
            "no-net-plugin",
            ("NET/Plugin: Could not find", "NET/Plugin : No plugin found"),
            r"NET/Plugin ?: (?:Could not find|No plugin found)",
            "plugin/plugin_open.cc:108",
            "No plugin is installed, none is needed.",
        ),
        _harmless(
            "p2p-not-there",
            ("P2P is disabled between connected GPUs",),
            r"P2P is disabled between connected GPUs",
            "graph/paths.cc",
            "These GPUs have no direct path: NCCL takes another.",
        ),
        _harmless(
            "no-nvls",
            ("Proceeding without NVLS",),
            r"Proceeding without NVLS support",
            "transport/nvls.cc",
            "NVLink SHARP is not to be had: NCCL goes on without it.",
        ),
        _harmless(
            "ras-port",
            ("ras/client_support.cc", "RAS failed to establish"),
            r"ras/client_support\.cc:\d+.*bind failed|RAS failed to establish a client listening socket",
            "ras/client_support.cc",
            "Another job of this host has the port of NCCL's RAS: only its reports are not to be had.",
        ),
        _harmless(
            "hostname-of-client",
            ("hostname of the client socket cannot be retrieved",),
            r"hostname of the client socket cannot be retrieved",
            "socket.cpp",
            "The name of a peer is not known to the resolver: its address is used.",
        ),
        _harmless(
            "unused-not-found",
            ("did not find any unused parameters",),
            r"did not find any unused parameters",
            "reducer.cpp",
            "DDP looked for unused parameters and found none.",
        ),
        _harmless(
            "no-destroy",
            ("destroy_process_group() was not called", "process group has NOT been destroyed"),
            r"destroy_process_group\(\) was not called|process group has NOT been destroyed",
            "ProcessGroupNCCL.cpp",
            "The program ended without tidying up.",
        ),
    ),
)
