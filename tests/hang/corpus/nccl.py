"""Lines of NCCL, in the grammar of the job's version. Texts and file:line from its source, tags v2.10.3 to v2.29.7."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import random

from .job import Job, Rank

DATATYPES = {"int8": 0, "int64": 4, "fp16": 6, "fp32": 7, "bf16": 9}
_REMOTE = "remote process exited or there was a network error"


def _named(job: Job, peer: str) -> dict[str, str]:
    """The other end of a connection, by its address and by its host's full and short names."""
    address, _, port = peer.partition("<")
    name = next((host.name for host in job.hosts if host.address == address), address)
    return {"peer": peer, "peer_name": f"{name}.cluster.local<{port}", "peer_host": f"{name}<{port}"}


def thread(rank: Rank, which: int = 1) -> int:
    return rank.pid + 60 + which * 7


def info(job: Job, rank: Rank, text: str, which: int = 1, device: int | None = None) -> str:
    shown = rank.local if device is None else device
    return f"{rank.host.name}:{rank.pid}:{thread(rank, which)} [{shown}] NCCL INFO {text}"


def warn(job: Job, rank: Rank, t: float, code: str, text: str, which: int = 1, device: int | None = None) -> str:
    """With the blank line that NCCL writes first, and from 2.26 on with a time."""
    shown = rank.local if device is None else device
    stamp = f"[{job.clock(rank.host, t):%Y-%m-%d %H:%M:%S}] " if job.nccl >= (2, 26, 0) else ""
    return f"\n{stamp}{rank.host.name}:{rank.pid}:{thread(rank, which)} [{shown}] {code} NCCL WARN {text}"


def trace(job: Job, rank: Rank, codes: list[str], result: int, suffix: str = "") -> str:
    return "\n".join(info(job, rank, f"{code} -> {result}{suffix}") for code in codes)


def version_line(job: Job) -> str:
    cuda = (
        "10.2"
        if job.nccl < (2, 9, 0)
        else "11.6"
        if job.nccl < (2, 14, 0)
        else "11.8"
        if job.nccl < (2, 18, 0)
        else "12.4"
    )
    return f"NCCL version {'.'.join(map(str, job.nccl))}+cuda{cuda}"


def version_said(job: Job, rank: Rank) -> str:
    """How a rank prints it, by itself or as a line of NCCL."""
    found = job.words.find("version", job)
    version = ".".join(map(str, job.nccl))
    return info(job, rank, found.template.format(nccl=version), which=-8) if found else version_line(job)


def bootstrap(job: Job, rank: Rank, address: str = "", interface: str = "") -> str:
    colon = "Bootstrap: Using" if job.nccl >= (2, 24, 0) else "Bootstrap : Using"
    shown, at = interface or rank.host.interface, address or rank.host.address
    text = job.words.text("bootstrap", job, f"{colon} {shown}:{at}<0>", interface=shown, address=at)
    return info(job, rank, text, which=-8)


def no_plugin(job: Job, rank: Rank) -> str:
    if job.nccl < (2, 18, 0):
        text = "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation"
    elif job.nccl < (2, 19, 0):
        text = "NET/Plugin : No plugin found, using internal implementation"
    elif job.nccl < (2, 21, 0):
        text = (
            "NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory "
            "No plugin found (libnccl-net.so), using internal implementation"
        )
    elif job.nccl < (2, 26, 0):
        text = "NET/Plugin: No plugin found (libnccl-net.so)"
    else:
        text = "NET/Plugin: Could not find: libnccl-net.so"
    return info(job, rank, job.words.text("no plugin", job, text))


def init_line(job: Job, rank: Rank, what: str, comm_id: int | None = None) -> str:
    """``what``: START (only versions that print it) or COMPLETE."""
    shown_id = f" commId 0x{job.comm_id if comm_id is None else comm_id:x}" if job.nccl >= (2, 16, 0) else ""
    nvml = f" nvmlDev {rank.local}" if job.nccl >= (2, 18, 0) else ""
    name = "ncclCommInitRank " if job.nccl >= (2, 21, 0) else ""
    name = "ncclCommInitRankConfig " if job.nccl >= (2, 26, 0) else name
    first = f"[Rank {rank.rank}] " if job.nccl >= (2, 29, 0) and what == "START" else ""
    return info(
        job,
        rank,
        f"{first}{name}comm 0x{rank.comm:x} rank {rank.rank} nranks {job.world} cudaDev {rank.local}{nvml} "
        f"busId {rank.bus:x}{shown_id} - Init {what}",
    )


def prints_start(job: Job) -> bool:
    return job.nccl >= (2, 18, 0)


def channel(job: Job, rank: Rank, via: str = "") -> str:
    peer = job.ranks[(rank.rank + 1) % job.world]
    inside = peer.host is rank.host
    index = (lambda r: f"{r.rank}[{r.bus:x}]") if job.nccl < (2, 18, 0) else (lambda r: f"{r.rank}[{r.local}]")
    arrow = f"{index(rank)} -> {index(peer)}"
    if inside:
        shown = via or ("P2P/CUMEM" if job.nccl >= (2, 20, 0) and rank.local % 2 else "P2P/IPC")
        return info(job, rank, f"Channel 00/0 : {arrow} via {shown}")
    return info(job, rank, f"Channel 00/0 : {arrow} [send] via NET/{via or 'IB'}/{rank.local // 2}")


def coll(job: Job, rank: Rank, op: str, count: int, elements: int, datatype: str = "fp32", root: int = 0) -> str:
    """A line of NCCL_DEBUG_SUBSYS=COLL; opCount is printed in hexadecimal."""
    return info(
        job,
        rank,
        f"{op}: opCount {count:x} sendbuff 0x7f{rank.local}c{count:06x}00 recvbuff 0x7f{rank.local}c{count:06x}00 "
        f"count {elements} datatype {DATATYPES[datatype]} op 0 root {root} comm 0x{rank.comm:x} [nranks={job.world}] "
        f"stream 0x{rank.comm + 0x4480:x}",
        which=-8,
    )


def recv_failed(job: Job, rank: Rank, t: float, peer: str, error: str = "Connection reset by peer") -> str:
    if job.nccl < (2, 16, 0):
        code, text = "misc/socket.cc:523", f"Net : Call to recv from {peer} failed : {error}"
    elif job.nccl < (2, 29, 0):
        code = "misc/socket.cc:46" if job.nccl >= (2, 26, 0) else "misc/socket.cc:29"
        text = f"socketProgressOpt: Call to recv from {peer} failed : {error}"
    else:
        code, text = "os/linux.cc:289", f"ncclOsSocketProgressOpt: Call to recv from {peer} failed : {error}"
    return warn(job, rank, t, *job.words.warning("recv failed", job, code, text, error=error, **_named(job, peer)), 3)


def closed(job: Job, rank: Rank, t: float, peer: str) -> str:
    name = "Net : " if job.nccl < (2, 16, 0) else "socketProgress: "
    own = f"{name}Connection closed by remote peer {peer}"
    return warn(job, rank, t, *job.words.warning("closed", job, "misc/socket.cc:50", own, **_named(job, peer)), 3)


def connect_refused(job: Job, rank: Rank, t: float, peer: str, error: str, attempts: int) -> list[str]:
    """What a failing connect leaves, in the versions that print the address (2.24 on) and those that do not."""
    if job.nccl >= (2, 24, 0):
        name = "ncclOsSocketStartConnect" if job.nccl >= (2, 29, 0) else "socketStartConnect"
        named = f"connect to {peer} returned {error}"
        if job.nccl < (2, 27, 0):
            named = f"connect returned {error}"  # 2.24 to 2.26 leave the address out
        lines = [
            info(
                job,
                rank,
                job.words.text(
                    "connect retry", job, f"{name}: {named}, retrying ({n}/34) after sleep for {n * 100} msec",
                    error=error, n=n, msec=n * 100,
                ),
                2,
            )
            for n in range(1, min(attempts, 4))
        ]  # fmt: skip
        after = "after 35 attempts" if job.nccl >= (2, 27, 0) else "(35)"
        code = "os/linux.cc:221" if job.nccl >= (2, 29, 0) else "misc/socket.cc:577"
        return [*lines, warn(job, rank, t, code, f"{name}: {named}, exceeded error retry count {after}", 2)]
    if job.nccl < (2, 16, 0):
        retry = [info(job, rank, f"Call to connect returned {error}, retrying", 2)] * (error == "Connection refused")
        own = f"Net : Connect to {peer} failed : {error}"
        said = job.words.warning("connect failed", job, "misc/socket.cc:456", own, error=error, **_named(job, peer))
        return [*retry, warn(job, rank, t, *said, 2)]
    if error == "Connection refused":
        lines = [info(job, rank, f"Call to connect returned {error}, retrying", 2)] * 3
        return [*lines, warn(job, rank, t, "misc/socket.cc:466", "socketStartConnect: exceeded retries (20000)", 2)]
    return [warn(job, rank, t, "misc/socket.cc:475", "socketPollConnect: exceeded timeouts (3)", 2)]


def names_peer(job: Job) -> bool:
    """Whether a failed connect prints the address: not from 2.16 to 2.26."""
    return job.nccl < (2, 16, 0) or job.nccl >= (2, 27, 0)


_STATUS = {4: ("LOC_PROT_ERR", "local protection error"), 5: ("WR_FLUSH_ERR", "Work Request Flushed Error"),
           12: ("RETRY_EXC_ERR", "transport retry counter exceeded")}  # fmt: skip


def ib_completion(
    rng: random.Random, job: Job, rank: Rank, t: float, peer: Rank, status: int, vendor: int, hca: str
) -> str:
    address = f"{peer.host.address}<{rng.randrange(30000, 60000)}>"
    fields = {
        "status": status, "vendor": vendor, "hca": hca, "status_name": f"IBV_WC_{_STATUS[status][0]}",
        "local_gid": rank.host.address, "remote_gid": peer.host.address, **_named(job, address),
    }  # fmt: skip

    def said(code: str, text: str) -> str:
        return warn(job, rank, t, *job.words.warning("completion", job, code, text, **fields), 4, 0)

    gids = f" localGid ::ffff:{rank.host.address} remoteGids::ffff:{peer.host.address}"
    opcode = rng.choice((0, 1, 2, 32600, 21898))
    if job.nccl < (2, 16, 0):
        text = f"NET/IB : Got completion from peer {address} with error {status}, opcode {opcode}, len 0, vendor err {vendor}"
        return said("transport/net_ib.cc:1237", text)
    if job.nccl < (2, 20, 0):
        text = (
            f"NET/IB : Got completion from peer {address} with error {status}, opcode {opcode}, len 0, vendor err {vendor} "
            f"(Send) localGid ::ffff:{rank.host.address} remoteGid ::ffff:{peer.host.address}"
        )
        return said("transport/net_ib.cc:1295", text)
    if job.nccl < (2, 28, 0):
        tail = f" hca {hca}" if job.nccl >= (2, 23, 0) else ""
        head = "NET/IB:" if job.nccl >= (2, 23, 0) else "NET/IB :"
        text = (
            f"{head} Got completion from peer {address} with status={status} opcode={opcode} len=0 vendor err {vendor} "
            f"(Send){gids}{tail}"
        )
        return said("transport/net_ib.cc:1909" if not tail else "transport/net_ib.cc:2451", text)
    text = (
        f"NET/IB: Got completion from peer {address} with status=IBV_WC_{_STATUS[status][0]}({status}) "
        f"opcode=IBV_WC_SEND(0) vendor_err={vendor} {gids} hca {hca}"
    )
    return said("transport/net_ib/p2p.cc:651", text)


def remote_error_trace(job: Job, rank: Rank) -> str:
    return trace(job, rank, ["transport/net.cc:1134", "proxy.cc:694", "proxy.cc:874"], 6, " [Progress Thread]")


def proxy_failed(job: Job, rank: Rank, t: float, peer: Rank, result: int = 3) -> str:
    text = f"[Proxy Service {rank.rank}] Failed to execute operation Connect from rank {peer.rank}, retcode {result}"
    said = job.words.warning(
        "proxy failed", job, "proxy.cc:1580", text, rank=rank.rank, other=peer.rank, result=result
    )  # fmt: skip
    return warn(job, rank, t, *said, 5, 0)


def torch_error(job: Job, kind: str, last: str = "") -> str:
    """How torch tells NCCL's result: "NCCL error in: ...", and ``last``, NCCL's last error."""
    told = {
        "cuda": ("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed."),
        "system": (
            "unhandled system error",
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
        ),
        "internal": ("internal error - please report this issue to the NCCL developers",
                     "ncclInternalError: Internal check failed."),
        "usage": ("invalid usage", "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."),
        "remote": (
            _REMOTE,
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        ),
    }  # fmt: skip
    short, long = told[kind]
    if job.nccl >= (2, 19, 0) and kind in ("cuda", "system"):
        short += " (run with NCCL_DEBUG=INFO for details)"
    if job.nccl >= (2, 19, 0) and kind == "usage":
        short += " (run with NCCL_DEBUG=WARN for details)"
    version = ".".join(map(str, job.nccl))
    error = "torch.distributed.DistBackendError" if job.torch >= (2, 1, 0) else "RuntimeError"
    root = "/pytorch" if job.torch >= (2, 6, 0) else ".."
    told_last = f"\nLast error:\n{last}" if last else ""
    own = (
        f"{error}: NCCL error in: {root}/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, {short}, "
        f"NCCL version {version}\n{long}{told_last}"
    )
    return job.words.text("nccl error", job, own, short=short, long=long, nccl=version, last=told_last)
