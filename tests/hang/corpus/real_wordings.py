"""What programs really printed when a training failed: fixed message strings, each with the address it was seen at.

The rest of this package words its messages from the sources of NCCL and PyTorch, as the rules of the triage were. These
wordings come from public issue threads instead, and from sources of other programs where no thread shows the message.
Half of the cases speak them wherever one fits their versions, the other half speaks the package's own. A wording never
changes what a log says: names, numbers and addresses are the case's.
"""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .job import Job

Version = tuple[int, int, int]

_FIRST: Version = (0, 0, 0)
_LAST: Version = (99, 0, 0)


@dataclass(frozen=True)
class Wording:
    """A message of ``kind``. ``template``: its fixed words, fields in braces. ``code``: file and line, for NCCL's.

    ``program`` of that version range prints it: "nccl", "torch" or "" for all. ``until`` is exclusive.
    """

    kind: str
    template: str
    seen_in: str
    program: str = ""
    since: Version = _FIRST
    until: Version = _LAST
    code: str = ""

    def fits(self, job: Job) -> bool:
        if not self.program:
            return True
        return self.since <= (job.nccl if self.program == "nccl" else job.torch) < self.until


def _thread(repository: str, number: int, what: str = "issues") -> str:
    return f"https://github.com/{repository}/{what}/{number}"


def _source(repository: str, path: str, at: str) -> str:
    return f"https://github.com/{repository}/blob/{at}/{path}"


def _nccl(kind: str, seen_in: str, since: Version, until: Version, code: str, template: str) -> Wording:
    return Wording(kind, template, seen_in, "nccl", since, until, code)


def _torch(kind: str, seen_in: str, since: Version, until: Version, template: str) -> Wording:
    return Wording(kind, template, seen_in, "torch", since, until)


def _any(kind: str, seen_in: str, template: str) -> Wording:
    return Wording(kind, template, seen_in)


_SOCKETS = (
    # Connections that break. Before NCCL 2.8 no peer is named.
    _nccl("recv failed", _source("NVIDIA/nccl", "src/include/socket.h", "v2.4.8-1"), (2, 4, 0), (2, 8, 0), "include/socket.h:408", "Call to recv failed : {error}"),
    _nccl("recv failed", _thread("NVIDIA/nccl", 963), (2, 14, 0), (2, 16, 0), "misc/socket.cc:518", "Net : Call to recv from {peer} failed : {error}"),
    _nccl("recv failed", _thread("NVIDIA/nccl-tests", 185), (2, 18, 0), (2, 24, 0), "misc/socket.cc:30", "socketProgressOpt: Call to recv from {peer} failed : {error}"),
    _nccl("recv failed", _thread("NVIDIA/nccl", 1920), (2, 24, 0), (2, 29, 0), "misc/socket.cc:46", "socketProgressOpt: Call to send to {peer} failed : {error}"),
    _nccl("closed", _thread("horovod/horovod", 666), (2, 4, 0), (2, 8, 0), "include/socket.h:403", "Net : Connection closed by remote peer"),
    _nccl("closed", _thread("NVIDIA/nccl", 844), (2, 10, 0), (2, 13, 0), "include/socket.h:423", "Net : Connection closed by remote peer {peer}"),
    _nccl("closed", _thread("NVIDIA/nccl", 795), (2, 14, 0), (2, 16, 0), "misc/socket.cc:538", "Net : Connection closed by remote peer {peer_name}"),
    _nccl("closed", _thread("NVIDIA/nccl", 1235), (2, 18, 0), (2, 24, 0), "misc/socket.cc:49", "socketProgress: Connection closed by remote peer {peer_name}"),
    _nccl("closed", _thread("NVIDIA/nccl-tests", 166), (2, 18, 0), (2, 29, 0), "misc/socket.cc:49", "socketProgress: Connection closed by remote peer {peer_host}"),
    # Connections that never come about.
    _nccl("connect failed", _source("NVIDIA/nccl", "src/include/socket.h", "v2.4.8-1"), (2, 4, 0), (2, 9, 0), "include/socket.h:390", "Connect to {peer} failed : {error}"),
    _nccl("connect failed", _thread("NVIDIA/nccl", 963), (2, 14, 0), (2, 16, 0), "misc/socket.cc:456", "Net : Connect to {peer} failed : {error}"),
    _nccl("connect retry", _thread("NVIDIA/nccl", 1618, "pull"), (2, 24, 0), (2, 27, 0), "", "socketPollConnect: connect returned {error}, retrying ({n}/34) after sleep for {msec} msec"),
    _nccl("unreachable", _thread("sgl-project/sglang", 3820), (2, 19, 4), (2, 24, 0), "misc/socket.cc:533", "socketPollConnect: Connect to {peer} returned 113(No route to host) errno 115(Operation now in progress)"),
    _nccl("no interface", _thread("marin-community/marin", 6940), (2, 4, 0), _LAST, "", "Bootstrap : no socket interface found"),
    _nccl("root counts", _thread("pytorch/pytorch", 46248), (2, 7, 0), (2, 23, 0), "bootstrap.cc:190", "Bootstrap Root : mismatch in rank count from procs {world} : {other}"),
    _nccl("bootstrap truncated", _thread("NVIDIA/nccl", 1176), (2, 8, 0), _LAST, "", "Message truncated : received 256 bytes instead of 4"),
    _nccl("bootstrap truncated", _thread("NVIDIA/nccl", 1273), (2, 8, 0), _LAST, "", "Message truncated : received 1024 bytes instead of 256"),
    _nccl("socket truncated", _thread("NVIDIA/nccl", 268), (2, 4, 0), (2, 8, 0), "transport/net_socket.cc:200", "NET/Socket : message truncated : receiving 696320 bytes instead of 32768"),
    _nccl("socket truncated", _thread("NVIDIA/nccl", 626), (2, 10, 0), (2, 12, 0), "transport/net_socket.cc:424", "NET/Socket : peer {peer} message truncated : receiving 1048576 bytes instead of 65536"),
    _nccl("socket truncated", _thread("NVIDIA/nccl", 969), (2, 12, 0), (2, 19, 0), "transport/net_ib.cc:1038", "NET/IB : req 0/1 tag 0 peer {peer} collective mismatch error, local size 496640 remote size 65536"),
    _nccl("socket truncated", _thread("sail-sg/zero-bubble-pipeline-parallelism", 60), (2, 16, 0), (2, 26, 0), "transport/net_socket.cc:488", "NET/Socket : peer {peer} message truncated : receiving 4 bytes instead of 2. If you believe your socket network is in healthy state,           there may be a mismatch in collective sizes or environment settings (e.g. NCCL_PROTO, NCCL_ALGO) between ranks"),
    # Who NCCL is and where it listens.
    _nccl("bootstrap", _thread("NVIDIA/nccl", 380), (2, 5, 0), (2, 8, 0), "", "Bootstrap : Using [0]{interface}:{address}<0>"),
    _nccl("version", _thread("NVIDIA/nccl-tests", 231), (2, 22, 0), _LAST, "", "NCCL version {nccl}+cuda12.4"),
    _nccl("no plugin", _thread("NVIDIA/nccl", 1232), (2, 17, 0), (2, 19, 0), "", "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory"),
    _nccl("no plugin", _thread("NVIDIA/nccl-tests", 244), (2, 21, 0), (2, 22, 0), "", "NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory : when loading libnccl-net.so"),
    _nccl("no plugin", _thread("NVIDIA/nccl-tests", 231), (2, 22, 0), (2, 24, 0), "", "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."),
)  # fmt: skip

_HOSTS = (
    _nccl("shm extend", _thread("NVIDIA/nccl", 525), (2, 4, 0), (2, 12, 0), "include/shm.h:28", "Call to posix_fallocate failed : No space left on device"),
    _nccl("shm extend", _thread("NVIDIA/nccl-tests", 166), (2, 14, 0), (2, 22, 0), "misc/shmutils.cc:71", "Error: failed to extend {path} to {bytes} bytes"),
    _nccl("shm extend", _thread("ai-dynamo/dynamo", 1408), (2, 22, 0), (2, 27, 0), "misc/shmutils.cc:87", "Error: failed to extend {path} to {bytes} bytes, error: No space left on device (28)"),
    _nccl("shm extend", _thread("pytorch/ci-infra", 490, "pull"), (2, 27, 0), _LAST, "misc/shmutils.cc:88", "Error: failed to extend {path} to {bytes} bytes, error: No space left on device (28)"),
    _nccl("shm create", _thread("NVIDIA/nccl", 525), (2, 4, 0), (2, 12, 0), "include/shm.h:48", "Error while creating shared memory segment nccl-shm-recv-{hex}-1-2-3 (size {size})"),
    _nccl("shm create", _thread("NVIDIA/nccl-tests", 166), (2, 14, 0), (2, 22, 0), "misc/shmutils.cc:112", "Error while creating shared memory segment {path} (size {size})"),
    _nccl("shm create", _thread("ai-dynamo/dynamo", 1408), (2, 22, 0), (2, 27, 0), "misc/shmutils.cc:129", "Error while creating shared memory segment {path} (size {size}), error: No space left on device (28)"),
    _nccl("shm create", _thread("pytorch/ci-infra", 490, "pull"), (2, 27, 0), _LAST, "misc/shmutils.cc:132", "Error while creating shared memory segment {path} (size {size}), error: No space left on device (28)"),
    _nccl("duplicate gpu", _thread("horovod/horovod", 3929), (2, 7, 0), (2, 18, 0), "init.cc:497", "Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {device}"),
    _nccl("duplicate gpu", _thread("Peterande/D-FINE", 289), (2, 18, 0), _LAST, "", "Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {device}"),
    _nccl("nvls", _thread("NVIDIA/nccl", 1029), (2, 18, 0), (2, 19, 0), "transport/nvls.cc:245", "Cuda failure 'initialization error'"),
    _nccl("nvls", _thread("NVIDIA/nccl", 1672), (2, 20, 0), (2, 27, 0), "transport/nvls.cc:251", "Cuda failure 1 'invalid argument'"),
    _nccl("nvls", _thread("NVIDIA/nccl", 1788), (2, 20, 0), (2, 27, 0), "transport/nvls.cc:254", "Cuda failure 401 'the operation cannot be performed in the present state'"),
    _nccl("nvls", _thread("NVIDIA/nccl", 1672), (2, 26, 0), (2, 27, 0), "transport/nvls.cc:598", "Cuda failure 1 'invalid argument'"),
    _nccl("memlock", _thread("NVIDIA/nccl-tests", 206), (2, 14, 0), _LAST, "misc/ibvwrap.cc:278", "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
    _nccl("nvlink p2p", _thread("NVIDIA/nccl", 2329), (2, 14, 0), _LAST, "graph/paths.cc:392", "P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case given their connectivity, and is probably due to a hardware issue. If you still want to proceed, you can set NCCL_IGNORE_DISABLED_P2P=1."),
    _nccl("cuda oom", _thread("NVIDIA/nccl", 844), (2, 4, 0), (2, 13, 0), "include/alloc.h:48", "Cuda failure 'out of memory'"),
    _nccl("cuda oom", _thread("NVIDIA/nccl", 962), (2, 18, 0), (2, 21, 0), "include/alloc.h:178", "Cuda failure 'out of memory'"),
    _nccl("cuda oom", _thread("PKU-YuanGroup/Open-Sora-Plan", 386), (2, 14, 0), (2, 21, 0), "enqueue.cc:1085", "Cuda failure 'out of memory'"),
    _nccl("proxy failed", _thread("NVIDIA/nccl", 795), (2, 14, 0), (2, 18, 0), "proxy.cc:1119", "[Proxy Service {rank}] Failed to execute operation Connect from rank {other}, retcode {result}"),
    _nccl("proxy failed", _thread("NVIDIA/nccl", 1235), (2, 18, 0), _LAST, "proxy.cc:1519", "[Proxy Service {rank}] Failed to execute operation Setup from rank {other}, retcode {result}"),
    _nccl("proxy failed", _thread("NVIDIA/nccl-tests", 166), (2, 18, 0), _LAST, "proxy.cc:1143", "Socket recv failed while polling for opId=0x7f6f18cb7f40"),
)  # fmt: skip

_INFINIBAND = (
    _nccl("async event", _thread("NVIDIA/nccl", 230), (2, 4, 0), (2, 10, 0), "transport/net_ib.cu:80", "NET/IB : Got async event : {event}"),
    _nccl("async event", _thread("Lightning-AI/lit-llama", 380), (2, 10, 0), (2, 20, 0), "transport/net_ib.cc:93", "NET/IB : Got async event : {event}"),
    _nccl("async event", _thread("NVIDIA/nccl", 1710), (2, 20, 0), (2, 23, 0), "transport/net_ib.cc:101", "NET/IB : {hca}:1 Got async event : {event}"),
    _nccl("completion", _thread("NVIDIA/nccl", 426), (2, 4, 0), (2, 9, 0), "transport/net_ib.cc:839", "NET/IB : Got completion with error {status}, opcode 0, len 0, vendor err {vendor}"),
    _nccl("completion", _thread("pytorch/pytorch", 81628), (2, 10, 0), (2, 16, 0), "transport/net_ib.cc:881", "NET/IB : Got completion from peer {peer} with error {status}, opcode 0, len 0, vendor err {vendor}"),
    _nccl("completion", _thread("Lightning-AI/lit-llama", 380), (2, 10, 0), (2, 16, 0), "transport/net_ib.cc:1238", "NET/IB : Got completion from peer {peer_host} with error {status}, opcode 2, len 1, vendor err {vendor}"),
    _nccl("completion", _thread("NVIDIA/nccl-tests", 252), (2, 14, 0), (2, 20, 0), "ib_plugin.c:1105", "NET/IB : Got completion from peer {peer} with error {status}, opcode 5327, len 5327, vendor err {vendor} (Send)"),
    _nccl("completion", _thread("NVIDIA/nccl", 928), (2, 18, 0), (2, 20, 0), "transport/net_ib.cc:1295", "NET/IB : Got completion from peer {peer} with error {status}, opcode 32564, len 32564, vendor err {vendor} (Send)"),
    _nccl("completion", _thread("NVIDIA/nccl", 1405), (2, 20, 0), (2, 28, 0), "ib_plugin.c:1615", "NET/IB : Got completion from peer {peer} with status={status} opcode=32616 len=0 vendor err {vendor} (Recv) localGid fd00:1148:9000:5000:4:200:3:ff22 remoteGidsfd00:1148:9000:5000:4:200:3:ff1f"),
    _nccl("completion", _thread("NVIDIA/nccl", 1814), (2, 20, 0), (2, 28, 0), "ib_plugin.c:1615", "NET/IB : Got completion from peer {peer} with status={status} opcode=129 len=65536 vendor err {vendor} (Recv) localGid ::ffff:{local_gid} remoteGids::ffff:{remote_gid}"),
    _nccl("completion", _thread("NVIDIA/nccl", 1710), (2, 20, 0), (2, 23, 0), "transport/net_ib.cc:1909", "NET/IB : Got completion from peer {peer} with status={status} opcode=0 len=0 vendor err {vendor} (Send) localGid ::ffff:{local_gid} remoteGids::ffff:{remote_gid}"),
    _nccl("completion", _thread("NVIDIA/nccl", 1905), (2, 23, 0), (2, 28, 0), "transport/net_ib.cc:2451", "NET/IB: Got completion from peer {peer} with status={status} opcode=0 len=0 vendor err {vendor} (Send) hca {hca}"),
    _nccl("completion", _source("NVIDIA/nccl", "src/transport/net_ib/p2p.cc", "v2.29.2-1"), (2, 28, 0), _LAST, "transport/net_ib/p2p.cc:550", "NET/IB: Got completion from peer {peer} with status={status_name}({status}) opcode=IBV_WC_RDMA_WRITE(1) vendor_err={vendor}  localGid ::ffff:{local_gid} remoteGids::ffff:{remote_gid} hca {hca}"),
    _nccl("modify qp", _thread("NVIDIA/nccl-tests", 185), (2, 10, 0), (2, 20, 0), "misc/ibvwrap.cc:187", "Call to ibv_modify_qp failed with error {error}"),
    _nccl("modify qp", _thread("NVIDIA/nccl-tests", 227), (2, 20, 0), (2, 24, 0), "ibvwrap.c:160", "Call to ibv_modify_qp failed with error {error} errno {errno}"),
    _nccl("modify qp", _thread("NVIDIA/nccl", 2013), (2, 24, 0), _LAST, "ibvwrap.c:262", "Call to ibv_modify_qp failed with {errno} {error}, on dev {hca}:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:{local_gid}, remote GID ::ffff:{remote_gid}"),
)  # fmt: skip

_RAN = "ran for {ran} milliseconds before timing out."
_WORK = "WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel_in}, NumelOut={numel_out}, Timeout(ms)={timeout})"
_CAUGHT = f"[Rank {{inner}}] Watchdog caught collective operation timeout: {_WORK} {_RAN}"
_SOME = "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data."
_DOWN = "To avoid data inconsistency, we are taking the entire process down."
_FRAMES = (
    "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7fb51677a897 in /opt/conda/lib/python3.10/site-packages/torch/lib/libc10.so)\n"
    "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long, std::ratio<1l, 1000l> > >) + 0x1d2 (0x7fb4ca461c62 in /opt/conda/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so)\n"
    "frame #2: c10d::ProcessGroupNCCL::watchdogHandler() + 0x1a0 (0x7fb4ca466a80 in /opt/conda/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so)\n"
    "frame #3: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x10c (0x7fb4ca467dcc in /opt/conda/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so)\n"
    "frame #4: <unknown function> + 0xd6df4 (0x7fbd01ab4df4 in /lib/x86_64-linux-gnu/libstdc++.so.6)\n"
    "frame #5: <unknown function> + 0x8609 (0x7fbd0a63d609 in /lib/x86_64-linux-gnu/libpthread.so.0)\n"
    "frame #6: clone + 0x43 (0x7fbd0a408353 in /lib/x86_64-linux-gnu/libc.so.6)\n"
)


def _watchdog(at: tuple[int, int, int, int], raised_at: int, root: str, *, middle: str, dated: bool, group: str) -> str:
    """The watchdog's lines from torch 2.3 on: ``at`` has the lines of caught, failed, down and terminated."""
    caught, failed, down, ended = at
    mark = "[rank{r}]:[E{stamp} ProcessGroupNCCL.cpp:" if dated else "[rank{r}]:[E ProcessGroupNCCL.cpp:"
    last = f"{group} Process group watchdog thread terminated with exception: {_CAUGHT}\nException raised from checkTimeout at {root}/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:{raised_at} (most recent call first):\n{_FRAMES}"
    return (
        f"{mark}{caught}] {_CAUGHT}\n{middle.replace('<mark>', mark)}\n{{first}}{mark}{failed}] [Rank {{inner}}] {_SOME}\n"
        f"{mark}{down}] [Rank {{inner}}] {_DOWN}\n{mark}{ended}] {last}\n"
        f"terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {last}"
    )


_AT_24 = "<mark>1664] {pg_bare} Exception (either an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {done}.\n<mark>1709] {pg_bare} Timeout at NCCL work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {done}."
_AT_25 = _AT_24.replace("1664", "1785").replace("1709", "1834").replace("{pg_bare}", "{pg}")
_NO_STACK = "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value."
_FAILURE = "{group}  failure detected by watchdog at work sequence id: {{seq}} PG status: last enqueued work: {{enqueued}}, last completed work: {{done}}"

_OLD_WHAT = f"terminate called after throwing an instance of 'std::runtime_error'\n  what():  [Rank {{inner}}] Watchdog caught collective operation timeout: WorkNCCL(OpType={{op}}, Timeout(ms)={{timeout}}) {_RAN}"
_OLD_CAUGHT = f"[Rank {{inner}}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={{seq}}, OpType={{op}}, Timeout(ms)={{timeout}}) {_RAN}"

_WATCHDOG = (
    _torch("watchdog", _thread("WongKinYiu/yolov9", 539), (1, 8, 0), (1, 12, 0), f"[E ProcessGroupNCCL.cpp:361] {_SOME} To avoid this inconsistency, we are taking the entire process down.\n{_OLD_WHAT}"),
    _torch("watchdog", _thread("OFA-Sys/OFA", 271), (1, 12, 0), (1, 13, 0), f"[E ProcessGroupNCCL.cpp:737] {_OLD_CAUGHT}\n[E ProcessGroupNCCL.cpp:414] {_SOME} To avoid this inconsistency, we are taking the entire process down.\nterminate called after throwing an instance of 'std::runtime_error'\n  what():  {_OLD_CAUGHT}"),
    _torch("watchdog", _thread("cfzd/Ultra-Fast-Lane-Detection-v2", 119), (1, 13, 0), (2, 0, 0), f"[E ProcessGroupNCCL.cpp:821] {_OLD_CAUGHT}\n[E ProcessGroupNCCL.cpp:456] {_SOME}\n[E ProcessGroupNCCL.cpp:461] {_DOWN}\nterminate called after throwing an instance of 'std::runtime_error'\n  what():  {_OLD_CAUGHT}"),
    _torch("watchdog", _thread("NVIDIA/nccl", 1438), (1, 12, 0), (2, 0, 0), "Traceback (most recent call last):\n  File \"/workspace/{script}\", line 412, in <module>\n    main()\n  File \"/opt/conda/lib/python3.7/site-packages/torch/distributed/distributed_c10d.py\", line 1322, in all_reduce\n    work = group.allreduce([tensor], opts)\nRuntimeError: NCCL communicator was aborted on rank {inner}.  Original reason for failure was: " + _OLD_CAUGHT),
    _torch("watchdog", _thread("open-mmlab/mmdetection", 11096), (2, 0, 0), (2, 1, 0), f"[E ProcessGroupNCCL.cpp:828] {_OLD_CAUGHT}\n[E ProcessGroupNCCL.cpp:455] {_SOME}\n[E ProcessGroupNCCL.cpp:460] {_DOWN}"),
    _torch("watchdog", _thread("pytorch/pytorch", 118369), (2, 0, 0), (2, 1, 0), f"[E ProcessGroupNCCL.cpp:458] {_OLD_CAUGHT}"),
    _torch("watchdog", _thread("hiyouga/LlamaFactory", 2424), (2, 1, 0), (2, 2, 0), f"[E ProcessGroupNCCL.cpp:475] {_CAUGHT}\n[E ProcessGroupNCCL.cpp:489] {_SOME}\n[E ProcessGroupNCCL.cpp:495] {_DOWN}\n[E ProcessGroupNCCL.cpp:916] [Rank {{inner}}] NCCL watchdog thread terminated with exception: {_CAUGHT}"),
    _torch("watchdog", _thread("charent/ChatLM-mini-Chinese", 47), (2, 2, 0), (2, 3, 0), f"[rank{{r}}]:[E ProcessGroupNCCL.cpp:523] {_CAUGHT}\n[rank{{r}}]:[E ProcessGroupNCCL.cpp:537] {_SOME}\n[rank{{r}}]:[E ProcessGroupNCCL.cpp:543] {_DOWN}\n[rank{{r}}]:[E ProcessGroupNCCL.cpp:1182] [Rank {{inner}}] NCCL watchdog thread terminated with exception: {_CAUGHT}\nException raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:525 (most recent call first):\n{_FRAMES}"),
    _torch("watchdog", _thread("huggingface/accelerate", 2912), (2, 3, 0), (2, 4, 0), _watchdog((563, 577, 583, 1414), 565, "/opt/conda/conda-bld/pytorch_1716905971132/work", middle="<mark>1537] {pg} Timeout at NCCL work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {done}.", dated=False, group="{pg}")),
    _torch("watchdog", _thread("hiyouga/LlamaFactory", 7396), (2, 4, 0), (2, 5, 0), _watchdog((607, 621, 627, 1515), 609, "..", middle=_AT_24, dated=True, group="{pg_bare}")),
    _torch("watchdog", _thread("mila-iqia/milabench", 269, "pull"), (2, 4, 0), (2, 5, 0), _watchdog((607, 621, 627, 1521), 609, "..", middle=_AT_24.replace("{pg_bare}", "{pg}"), dated=True, group="{pg}")),
    _torch("watchdog", _thread("mlfoundations/open_clip", 1024), (2, 5, 0), (2, 6, 0), _watchdog((616, 630, 636, 1595), 618, "..", middle=_AT_25, dated=True, group="{pg}")),
    _torch("watchdog", _thread("ecmwf/WeatherGenerator", 1533, "pull"), (2, 6, 0), (2, 7, 0), _watchdog((629, 681, 695, 1895), 632, "/pytorch", middle=f"<mark>2168] {_FAILURE.format(group='{pg}')}\n<mark>667] {_NO_STACK}", dated=True, group="{pg}")),
    _torch("watchdog", _thread("hiyouga/LlamaFactory", 8261), (2, 7, 0), (2, 8, 0), _watchdog((632, 684, 698, 1899), 635, "/pytorch", middle=f"<mark>2268] {_FAILURE.format(group='{pg_bare}')}\n<mark>670] {_NO_STACK}", dated=True, group="{pg_bare}")),
    _torch("watchdog", _thread("deepspeedai/DeepSpeed", 7533), (2, 7, 0), (2, 8, 0), _watchdog((632, 684, 698, 1899), 635, "/pytorch", middle=f"<mark>2271] {_FAILURE.format(group='{pg}')}\n<mark>670] {_NO_STACK}", dated=True, group="{pg}")),
    _torch("watchdog", _thread("huggingface/accelerate", 3861), (2, 8, 0), (2, 9, 0), _watchdog((655, 707, 721, 2068), 658, "/pytorch", middle=f"<mark>2299] {_FAILURE.format(group='{pg}')}\n<mark>693] {_NO_STACK}", dated=True, group="{pg}").replace("ncclCommWatchdog()", "Watchdog::run()")),
    # A communicator that broke.
    _torch("broken", _thread("OpenRLHF/OpenRLHF", 621), (2, 4, 0), (2, 6, 0), "[rank{r}]:[E{stamp} ProcessGroupNCCL.cpp:542] [Rank {inner}] Collective WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=778567680, NumelOut=778567680, Timeout(ms)=1800000) raised the following async exception: NCCL error: remote process exited or there was a network error, NCCL version {nccl}"),
    _torch("broken", _thread("hiyouga/LlamaFactory", 6849), (2, 6, 0), (2, 8, 0), f"[rank{{r}}]:[E{{stamp}} ProcessGroupNCCL.cpp:681] [Rank {{inner}}] {_SOME}\n[rank{{r}}]:[E{{stamp}} ProcessGroupNCCL.cpp:695] [Rank {{inner}}] {_DOWN}\n[rank{{r}}]:[E{{stamp}} ProcessGroupNCCL.cpp:1895] {{pg}} Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version {{nccl}}\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgressOpt: Call to recv from {{address}}<49901> failed : Broken pipe\nException raised from checkForNCCLErrorsInternal at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2363 (most recent call first):\n{_FRAMES}"),
)  # fmt: skip

_PYTHON = (
    _torch("nccl error", _thread("NVIDIA/nccl", 286), (1, 4, 0), (1, 8, 0), "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:410, {short}, NCCL version {nccl}"),
    _torch("nccl error", _thread("NVIDIA/nccl", 1514), (2, 0, 0), (2, 1, 0), "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, {short}, NCCL version {nccl}\n{long}{last}"),
    _torch("nccl error", _thread("NVIDIA/nccl", 1241), (2, 0, 0), (2, 2, 0), "torch.distributed.DistBackendError: NCCL error in: /opt/pytorch/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1287, {short}, NCCL version {nccl}\n{long}{last}\nException raised from getNCCLComm at /opt/pytorch/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1287 (most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7f23e1d21675 in /usr/local/lib/python3.8/dist-packages/torch/lib/libc10.so)\n"),
    _torch("nccl error", _thread("NVIDIA/Megatron-LM", 661), (2, 1, 0), (2, 3, 0), "torch.distributed.DistBackendError: NCCL error in: /opt/pytorch/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1727, {short}, NCCL version {nccl}\n{long}{last}"),
    _torch("nccl error", _thread("verl-project/verl", 161), (2, 4, 0), (2, 6, 0), "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, {short}, NCCL version {nccl}\n{long}{last}"),
    _torch("nccl error", _thread("verl-project/verl", 1096), (2, 6, 0), _LAST, "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, {short}, NCCL version {nccl}\n{long}{last}"),
    # The store.
    _torch("store get", _thread("NVIDIA/nccl", 845), (1, 11, 0), (2, 1, 0), "[{r}] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: {error}\nException raised from recvBytes at ../torch/csrc/distributed/c10d/Utils.hpp:595 (most recent call first):"),
    _torch("store get", _thread("bytedance/HLLM", 20), (2, 1, 0), (2, 6, 0), "[{r}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: {error}\nException raised from recvBytes at ../torch/csrc/distributed/c10d/Utils.hpp:672 (most recent call first):"),
    _torch("store get", _thread("NVIDIA-NeMo/Speech", 14399), (2, 6, 0), _LAST, "[{r}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: {error}\nException raised from doWait at /opt/pytorch/pytorch/torch/csrc/distributed/c10d/TCPStore.cpp:578 (most recent call first):"),
    _torch("store recv", _thread("NVIDIA/Fuser", 3124), (2, 4, 0), (2, 6, 0), "[rank{r}]:[W{stamp} TCPStore.cpp:141] [c10d] recvValue failed on SocketImpl(fd=6, addr=[{host}]:55712, remote=[{store}]:29500): {error}\nException raised from recvBytes at /opt/pytorch/pytorch/torch/csrc/distributed/c10d/Utils.hpp:667 (most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >) + 0xac (0x7f553eca13dc in /usr/local/lib/python3.10/dist-packages/torch/lib/libc10.so)"),
    _torch("store recv", _thread("sgl-project/sglang", 20859), (2, 6, 0), _LAST, "[rank{r}]:[W{stamp} TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=135, addr=[{host}.default.svc.cluster.local]:48750, remote=[{store}]:29500): {error}\nException raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:679 (most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >) + 0x80 (0x7f4210b91b80 in /usr/local/lib/python3.12/dist-packages/torch/lib/libc10.so)\nframe #1: <unknown function> + 0x5ffc5d1 (0x7f426df2f5d1 in /usr/local/lib/python3.12/dist-packages/torch/lib/libtorch_cpu.so)"),
    _torch("store recv", _thread("xorbitsai/inference", 4421), (2, 6, 0), _LAST, "[rank{r}]:[W{stamp} TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=67, addr=[{host}]:36214, remote=[{store}]:29500): Broken pipe\nException raised from sendBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:653 (most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >) + 0x98 (0x758a06b785e8 in /usr/local/lib/python3.10/dist-packages/torch/lib/libc10.so)"),
    _torch("should dump", _thread("xorbitsai/inference", 4421), (2, 6, 0), (2, 10, 0), "[rank{r}]:[W{stamp} ProcessGroupNCCL.cpp:1662] {pg_bare} Failed to check the \"should dump\" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: {error}"),
    _torch("should dump", _thread("sgl-project/sglang", 20859), (2, 9, 0), _LAST, "[rank{r}]:[W{stamp} ProcessGroupNCCL.cpp:1771] {pg_bare} Failed to check the \"should dump\" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: {error}"),
    # What ranks call, compared by TORCH_DISTRIBUTED_DEBUG=DETAIL.
    _torch("detail shape", _thread("modelscope/ms-swift", 9443, "pull"), (2, 0, 0), _LAST, "RuntimeError: Detected mismatch between collectives on ranks. Rank {r} is running collective: {mine}), but Rank {other} is running collective: {theirs}).Collectives differ in the following aspects:   Tensor Tensor shapes: {shape}vs {other_shape}"),
    _torch("detail op", _thread("pytorch/pytorch", 79901, "pull"), (1, 12, 0), (1, 13, 0), "RuntimeError: Detected mismatch between collectives on ranks. Rank {r} is running collective: {mine}), but Rank {other} is running collective: {other_op}."),
    _torch("detail op", _thread("pytorch/pytorch", 100213, "pull"), (2, 0, 0), (2, 1, 0), "RuntimeError: Detected mismatch between collectives on ranks. Rank {r} is running collective: {mine}), but Rank {other} is running collective: CollectiveFingerPrint(SequenceNumber={other_seq}OpType={other_op})."),
    _torch("detail op", _thread("bghira/SimpleTuner", 2712), (2, 1, 0), _LAST, "RuntimeError: Detected mismatch between collectives on ranks. Rank {r} is running collective: {mine}), but Rank {other} is running collective: {theirs}).Collectives differ in the following aspects:   Op type: {op}vs {other_op}  Tensor Tensor shapes: {shape}vs {other_shape}"),
    _torch("detail sequence", _thread("bghira/SimpleTuner", 2712), (2, 0, 0), _LAST, "RuntimeError: Detected mismatch between collectives on ranks. Rank {r} is running collective: {mine}), but Rank {other} is running collective: {theirs}).Collectives differ in the following aspects:   Sequence number: {seq}vs {other_seq}"),
    _any("barrier root", _source("pytorch/pytorch", "torch/csrc/distributed/c10d/ProcessGroupGloo.cpp", "v2.5.1"), "RuntimeError: [Rank 0]: Rank {first} failed to pass monitoredBarrier in 30000 ms\n Original exception: \n[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [2401:db00:eef0:1100:3560:0:1c05:25d]:8594"),
    # DDP.
    _torch("unused", _thread("va1shn9v/PromptIR", 30), (1, 6, 0), (1, 9, 0), "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss. You can enable unused parameter detection by (1) passing the keyword argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`; (2) making sure all `forward` function outputs participate in calculating loss. If you already have done the above two steps, then the distributed data parallel module wasn't able to locate the output tensors in the return value of your module's `forward` function. Please include the loss function and the structure of the return value of `forward` of your module when reporting this issue (e.g. list, dict, iterable)."),
    _torch("unused", _thread("hkchengrex/Cutie", 125), (1, 9, 0), _LAST, "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss. You can enable unused parameter detection by passing the keyword argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, and by \nmaking sure all `forward` function outputs participate in calculating loss. \nIf you already have done the above, then the distributed data parallel module wasn't able to locate the output tensors in the return value of your module's `forward` function. Please include the loss function and the structure of the return value of `forward` of your module when reporting this issue (e.g. list, dict, iterable).\nParameters which did not receive grad for rank {r}: mask_encoder.sensory_update.transform.bias, mask_encoder.sensory_update.transform.weight\nParameter indices which did not receive grad for rank {r}: {parameters} "),
    # GPUs.
    _torch("torch oom", _thread("mozilla/TTS", 502), (1, 4, 0), (1, 11, 0), "RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU {local}; 10.76 GiB total capacity; 9.59 GiB already allocated; 4.25 MiB free; 9.78 GiB reserved in total by PyTorch)"),
    _torch("torch oom", _thread("JiaweiLian/AP-PA", 3), (1, 11, 0), (2, 0, 0), "RuntimeError: CUDA out of memory. Tried to allocate 2.81 GiB (GPU {local}; 23.69 GiB total capacity; 16.12 GiB already allocated; 374.94 MiB free; 19.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"),
    _torch("torch oom", _thread("152334H/DL-Art-School", 56), (1, 13, 0), (2, 1, 0), "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.55 GiB (GPU {local}; 23.99 GiB total capacity; 20.44 GiB already\nallocated; 0 bytes free; 22.59 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting\nmax_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"),
    _torch("torch oom", _thread("liucongg/ChatGLM-Finetuning", 28), (2, 0, 0), (2, 1, 0), "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB (GPU {local}; 44.99 GiB total capacity; 44.15 GiB already allocated; 37.32 MiB free; 44.15 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"),
    _torch("torch oom", _thread("carolchenyx/MGFN.", 35), (2, 1, 0), (2, 2, 0), "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.70 GiB. GPU {local} has a total capacty of 6.00 GiB of which 0 bytes is free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"),
    _torch("torch oom", _thread("pytorch/pytorch", 16417), (2, 2, 0), (2, 5, 0), "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU {local} has a total capacity of 23.65 GiB of which 11.06 MiB is free. Including non-PyTorch memory, this process has 23.60 GiB memory in use. Of the allocated memory 22.90 GiB is allocated by PyTorch, and 194.87 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"),
    _torch("ecc", _thread("tloen/alpaca-lora", 123), (2, 0, 0), (2, 8, 0), "RuntimeError: CUDA error: uncorrectable ECC error encountered\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"),
    _torch("ecc", _thread("jade-hpc-gpu/jade-hpc-gpu.github.io", 194), (2, 1, 0), (2, 8, 0), "RuntimeError: CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"),
    _torch("ecc", _thread("ostris/ai-toolkit", 470), (2, 8, 0), _LAST, "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\nSearch for `cudaErrorECCUncorrectable' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"),
    _torch("ecc watchdog", _thread("kohya-ss/sd-scripts", 1434), (2, 1, 0), (2, 2, 0), "[E ProcessGroupNCCL.cpp:916] [Rank {inner}] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\nException raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:44 (most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7a71e4e84617 in /opt/conda/lib/python3.10/site-packages/torch/lib/libc10.so)"),
    # A program's own fault.
    _any("exception", _thread("cure-lab/MagicDrive", 91), "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File \"/opt/conda/envs/magic/lib/python3.7/site-packages/torch/utils/data/_utils/worker.py\", line 287, in _worker_loop\n    data = fetcher.fetch(index)\n  File \"/opt/conda/envs/magic/lib/python3.7/site-packages/torch/utils/data/_utils/fetch.py\", line 52, in fetch\n    return self.collate_fn(data)\nKeyError: 'image'\n"),
    _any("exception", _thread("sgrvinod/a-PyTorch-Tutorial-to-Transformers", 1), "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File \"/usr/local/lib/python3.6/dist-packages/torch/utils/data/_utils/worker.py\", line 178, in _worker_loop\n    data = fetcher.fetch(index)\n  File \"/workspace/datasets.py\", line 67, in __getitem__\n    img = Image.open(self.images[i], mode='r')\nKeyError: 0\n"),
    _any("exception", _thread("pytorch/pytorch", 58847), "RuntimeError: DataLoader worker exited unexpectedly with exit code 1. Details are lost due to multiprocessing. Rerunning with num_workers=0 may give better error trace"),
)  # fmt: skip

_RUNNER = (
    "Traceback (most recent call last):\n  File \"{bin}\", line 8, in <module>\n    sys.exit(main())\n"
    "  File \"{lib}/torch/distributed/elastic/multiprocessing/errors/__init__.py\", line 346, in wrapper\n    return f(*args, **kwargs)\n"
    "  File \"{lib}/torch/distributed/run.py\", line 762, in main\n    run(args)\n  File \"{lib}/torch/distributed/run.py\", line 753, in run\n    elastic_launch(\n"
    "  File \"{lib}/torch/distributed/launcher/api.py\", line 132, in __call__\n    return launch_agent(self._config, self._entrypoint, list(args))\n"
    "  File \"{lib}/torch/distributed/launcher/api.py\", line 246, in launch_agent\n    raise ChildFailedError("
)  # fmt: skip
_DASHES = "-" * 74
_EQUALS = "=" * 83
_OOM_SCORE = "UID:0 pgtables:69068kB oom_score_adj:0"

_LAUNCHERS = (
    _torch("agent line", _thread("pytorch/pytorch", 126544), (2, 3, 0), (2, 5, 0), "{level}{agent_stamp} 140617718325696 torch/distributed/elastic/multiprocessing/api.py:{line}] {text}"),
    _torch("agent line", _thread("NVIDIA/nccl", 1504), (2, 5, 0), _LAST, "{level}{agent_stamp} {agent_pid} site-packages/torch/distributed/elastic/multiprocessing/api.py:{line}] {text}"),
    _torch("agent line rich", _thread("huggingface/accelerate", 1573), (1, 13, 0), (2, 1, 0), "stdout: [{clock}] {name:8} {text:<150} api.py:698"),
    _torch("agent line rich", _thread("huggingface/accelerate", 1214), (1, 13, 0), (2, 1, 0), " {name:8} {head}  api.py:699{tail}"),
    _torch("agent death", _thread("determined-ai/determined", 8915), (1, 9, 0), (2, 1, 0), "WARNING: torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers"),
    _torch("agent traceback", _thread("hpcaitech/ColossalAI", 3514), (1, 9, 0), (2, 3, 0), _RUNNER.format(bin="/opt/conda/bin/torchrun", lib="/opt/conda/lib/python3.10/site-packages")),
    _torch("agent traceback", _thread("lmzpai/roboMamba", 10), (2, 3, 0), _LAST, _RUNNER.format(bin="/home/user/miniconda3/bin/torchrun", lib="/home/user/miniconda3/lib/python3.12/site-packages").replace("    sys.exit(main())", "    sys.exit(main())\n             ^^^^^^").replace("    return f(*args, **kwargs)", "    return f(*args, **kwargs)\n           ^^^^^^^^^^^^^^^^^^")),
    _torch("agent traceback", _thread("lzhxmu/CPPO", 6), (2, 1, 0), _LAST, _RUNNER.format(bin="/usr/local/bin/accelerate", lib="/usr/local/lib/python3.11/site-packages")),
    _torch("agent traceback", _thread("NVIDIA/nccl", 1504), (2, 5, 0), _LAST, _RUNNER.format(bin="/home/user/miniconda3/envs/pippy/bin/torchrun", lib="/home/user/miniconda3/envs/pippy/lib/python3.10/site-packages").replace("line 8, in <module>\n    sys.exit(main())", "line 33, in <module>\n    sys.exit(load_entry_point('torch==2.5.0', 'console_scripts', 'torchrun')())")),
    # DeepSpeed and torch.distributed.launch before elastic: the command is that of the last local rank, whoever ended.
    _any("deepspeed kill", _thread("deepspeedai/DeepSpeedExamples", 626), "[{comma_stamp}] [INFO] [launch.py:318:sigkill_handler] Killing subprocess {pid}"),
    _any("deepspeed kill", _thread("deepspeedai/DeepSpeed", 3232), "[{comma_stamp}] [INFO] [launch.py:428:sigkill_handler] Killing subprocess {pid}"),
    _any("deepspeed end", _thread("deepspeedai/DeepSpeed", 5302), "[{comma_stamp}] [ERROR] [launch.py:321:sigkill_handler] ['/data/anaconda3/envs/llama/bin/python', '-u', '{script}', '--local_rank={last}', '--stage', 'sft', '--deepspeed', 'configs/deepspeed_zero3_config.json', '--do_train', '--cutoff_len', '4096', '--flash_attn'] exits with return code = {code}"),
    _any("deepspeed end", _thread("deepspeedai/DeepSpeed", 4000), "[{comma_stamp}] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', '-u', '{script}', '--local_rank={last}', '--deepspeed', 'deepspeed.json', '--do_train', '--overwrite_cache', '--max_source_length', '64'] exits with return code = {code}"),
    _any("deepspeed end", _thread("Xirider/finetune-gpt2xl", 20), "Traceback (most recent call last):\n  File \"/opt/conda/lib/python3.8/runpy.py\", line 194, in _run_module_as_main\n    return _run_code(code, main_globals, None,\n  File \"/opt/conda/lib/python3.8/site-packages/deepspeed/launcher/launch.py\", line 156, in main\n    sigkill_handler(signal.SIGTERM, None)  # not coming back\n  File \"/opt/conda/lib/python3.8/site-packages/deepspeed/launcher/launch.py\", line 137, in sigkill_handler\n    raise subprocess.CalledProcessError(returncode=last_return_code, cmd=cmd)\nsubprocess.CalledProcessError: Command '['/opt/conda/bin/python', '-u', '{script}', '--local_rank={last}', '--deepspeed', 'ds_config.json']' {died}"),
    _any("launch end", _thread("pytorch/pytorch", 61839), "Traceback (most recent call last):\n  File \"/opt/conda/lib/python3.7/runpy.py\", line 193, in _run_module_as_main\n    \"__main__\", mod_spec)\n  File \"/opt/conda/lib/python3.7/runpy.py\", line 85, in _run_code\n    exec(code, run_globals)\n  File \"/opt/conda/lib/python3.7/site-packages/torch/distributed/launch.py\", line 263, in <module>\n    main()\n  File \"/opt/conda/lib/python3.7/site-packages/torch/distributed/launch.py\", line 259, in main\n    cmd=cmd)\nsubprocess.CalledProcessError: Command '['/opt/conda/bin/python3', '-u', '{script}', '--local_rank={last}', '--epochs', '180']' {died}"),
    _any("launch end", _thread("pytorch/pytorch", 72034), "Traceback (most recent call last):\n  File \"/opt/conda/lib/python3.8/site-packages/torch/distributed/launch.py\", line 260, in <module>\n    main()\n  File \"/opt/conda/lib/python3.8/site-packages/torch/distributed/launch.py\", line 255, in main\n    raise subprocess.CalledProcessError(returncode=process.returncode,\nsubprocess.CalledProcessError: Command '['/opt/conda/bin/python', '-u', '{script}', '--local_rank={last}']' {died}"),
    _torch("spawn end", _thread("jeffffffli/HybrIK", 198), (1, 6, 0), (1, 8, 0), "Traceback (most recent call last):\n  File \"./scripts/{script}\", line 213, in main\n    mp.spawn(main_worker, nprocs=ngpus_per_node, args=(opt, cfg))\n  File \"/opt/conda/lib/python3.6/site-packages/torch/multiprocessing/spawn.py\", line 157, in start_processes\n    while not context.join():\n  File \"/opt/conda/lib/python3.6/site-packages/torch/multiprocessing/spawn.py\", line 107, in join\n    (error_index, name)\nException: process {local} terminated with signal {signal}"),
    _torch("spawn end", _thread("lyu-yx/ACUMEN", 4), (1, 8, 0), _LAST, "Traceback (most recent call last):\n  File \"/opt/conda/lib/python3.8/site-packages/torch/multiprocessing/spawn.py\", line 188, in start_processes\n    while not context.join():\n  File \"/opt/conda/lib/python3.8/site-packages/torch/multiprocessing/spawn.py\", line 130, in join\n    raise ProcessExitedException(\ntorch.multiprocessing.spawn.ProcessExitedException: process {local} terminated with signal {signal}"),
    _any("mpirun signal", _thread("open-mpi/ompi", 2661), "mpirun noticed that process rank {rank} with PID {pid} on node {host} exited on signal {number} ({name})."),
    _any("mpirun signal", _thread("mfem/mfem", 3424), f"{_DASHES}\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n{_DASHES}\n{_DASHES}\nmpirun noticed that process rank {{rank}} with PID 0 on node {{host}} exited on signal {{number}} ({{name}}).\n{_DASHES}"),
    _any("mpirun signal", _thread("adda-team/adda", 151), f"{_DASHES}\nmpiexec noticed that process rank {{rank}} with PID {{pid}} on node {{host}} exited on \nsignal {{number}} ({{name}}).\n{_DASHES}\n8 total processes killed (some possibly by mpiexec during cleanup)"),
    _any("hydra end", _thread("openai/jukebox", 155), f"\n{_EQUALS}\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID {{pid}} RUNNING AT {{host}}\n=   EXIT CODE: {{plain}}\n=   CLEANING UP REMAINING PROCESSES\n=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n{_EQUALS}\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: {{name}} (signal {{number}})\nThis typically refers to a problem with your application.\nPlease see the FAQ page for debugging suggestions"),
    _any("srun killed", _thread("chrisknewman/tusas", 149), "slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks have been OOM Killed.\nsrun: error: {host}: task {rank}: Out Of Memory\nsrun: Terminating StepId=440575.0\nslurmstepd: error: *** STEP 440575.0 ON {host} CANCELLED AT {iso} ***"),
    _any("srun killed", _thread("brain-score/vision", 950, "pull"), "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=37205392.0. Some of your processes may have been killed by the cgroup out-of-memory handler.\nsrun: error: {host}: task {rank}: Out Of Memory"),
    _any("shell killed", _thread("ArjunaCluster/ArjunaUsers", 52), "/var/spool/slurmd/job00191/slurm_script: line 28:  {pid} Killed                  python3 {script} --prop hform --epochs 400"),
    _any("shell killed", _thread("divamgupta/deep-clustering-kingdra", 2), "/bin/bash: line 27: {pid} Killed python {script}"),
    _any("ray died", _thread("OpenRLHF/OpenRLHF", 624), "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check the logs for the dead worker. RayTask ID: ffffffffffffffffed03ec50b4ec774f98aa30c803000000 Worker ID: 75bba2eea21c50d9a81aecc9f47faa5782daaeb736b3556543cee00e Node ID: aad5f29e3b402e31eaa20750741b7b998315158779540b17c0c47e09 Worker IP address: {address} Worker port: 10004 Worker PID: {pid} Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors."),
    _any("ray died", _thread("ray-project/ray", 31828), "{slash_stamp}\tWARNING worker.py:1829 -- A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check the logs for the dead worker. RayTask ID: ffffffffffffffff686c4586a18aa58bf9747eb504000000 Worker ID: 0c62b78d30f3642bc1fc9a6f3cb257202e1230b03d988031722bc993 Node ID: 38300cefdc3b42caebdba478cc1da1adbba154304cecb24fd8ba1a7e Worker IP address: {address} Worker port: 10016 Worker PID: {pid} Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors."),
    # What stands before each line.
    _any("prefix tee", _thread("NVIDIA-NeMo/Speech", 14399), "B-train/{node} [default{local}]:"),
    _any("prefix mpirun", _thread("NVIDIA/nccl", 230), "{iso_ms}Z: [1,{rank}]<stdout>:"),
    _any("prefix hydra", _thread("NVIDIA/nccl", 1232), "[{rank}] "),
    _any("prefix kubernetes", _thread("determined-ai/determined", 8915), "[{iso_us}Z] fa88a9df || "),
    _any("prefix kubernetes", _thread("NVIDIA/nccl", 1029), "{host}: "),
    _any("prefix kubernetes", _thread("mila-iqia/milabench", 269, "pull"), "train.{host} [stderr] "),
    _any("prefix ray", _thread("verl-project/verl", 2995), "(WorkerDict pid={pid}, ip={address}) "),
    _any("prefix ray", _thread("OpenRLHF/OpenRLHF", 621), "(RayWorkerWrapper pid={pid}, ip={address}) "),
    _any("prefix torchrun", _thread("OpenRLHF/OpenRLHF", 427), "[{stamp}] "),
    _any("prefix torchrun", _thread("OFA-Sys/OFA", 271), ""),
    # The kernel, and signals that a process reports itself.
    _any("kernel prefix", _thread("docker/for-linux", 1001), "{journal} {host} kernel: [{up}] "),
    _any("kernel prefix", _thread("0jc1/py-autovod", 7), "[{ctime}] "),
    _any("kernel prefix", _thread("NVIDIA/NVSentinel", 155), "[{up}] "),
    _any("kernel oom", _thread("pcyin/tranX", 41), f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=python3,pid={{pid}},uid=0\vOut of memory: Killed process {{pid}} (python3) total-vm:{{vm}}kB, anon-rss:{{rss}}kB, file-rss:74816kB, shmem-rss:12296kB, {_OOM_SCORE}\voom_reaper: reaped process {{pid}} (python3), now anon-rss:0kB, file-rss:74732kB, shmem-rss:12296kB"),
    _any("kernel oom", _thread("reportportal/kubernetes", 203), "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=986\vMemory cgroup out of memory: Killed process {pid} (python3) total-vm:{vm}kB, anon-rss:{rss}kB, file-rss:52176kB, shmem-rss:92kB, UID:0 pgtables:1372kB oom_score_adj:986\voom_reaper: reaped process {pid} (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:92kB"),
    _any("kernel oom", _thread("NervanaSystems/deepspeech", 48), "Out of memory: Kill process {pid} (python) score 974 or sacrifice child\vKilled process {pid} (python) total-vm:{vm}kB, anon-rss:{rss}kB, file-rss:154436kB"),
    _any("kernel xid", _thread("NVIDIA/NVSentinel", 155), "NVRM: Xid (PCI:0000:{bus}:00): 79, GPU has fallen off the bus"),
    _any("kernel xid", _thread("leptonai/gpud", 1174, "pull"), "NVRM: Xid (PCI:0000:{bus}:00): 94, pid={pid}, name=python3, Contained ECC error"),
    _any("kernel xid", _thread("leptonai/gpud", 1160, "pull"), "NVRM: Xid (PCI:0000:{bus}:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"),
    _any("kernel lost", _thread("NVIDIA/NVSentinel", 155), "NVRM: The NVIDIA GPU 0000:{bus}:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this system has\n               NVRM: fallen off the bus and is not responding to commands."),
    _any("signal 7", _thread("deepspeedai/DeepSpeed", 2638), "[{host}:{pid}:0:{tid}] Caught signal 7 (Bus error: nonexistent physical address)"),
    _any("signal 7", _thread("ChenRocks/UNITER", 82), "[{host}:{pid:05d}] *** Process received signal ***\n[{host}:{pid:05d}] Signal: Bus error (7)\n[{host}:{pid:05d}] Signal code: Non-existant physical address (2)\n[{host}:{pid:05d}] Failing at address: 0x7f246888f00a\n[{host}:{pid:05d}] [ 0] /lib/x86_64-linux-gnu/libpthread.so.0(+0x11390)[0x7f25b870a390]\n[{host}:{pid:05d}] *** End of error message ***"),
    _any("signal 11", _thread("horovod/horovod", 489), "[{host}:{pid}:0] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x563faaa34d00)"),
    _any("signal 11", _thread("horovod/horovod", 761), "[{host}:{pid}] *** Process received signal ***\n[{host}:{pid}] Signal: Segmentation fault (11)\n[{host}:{pid}] Signal code: Address not mapped (1)\n[{host}:{pid}] Failing at address: 0xb\n[{host}:{pid}] [ 0] /lib64/libpthread.so.0(+0xf5d0)[0x2b09b2d695d0]\n[{host}:{pid}] [ 1] /lib64/libpython3.5m.so.1.0(PyCFunction_Call+0xe9)[0x2b09b29350f9]\n[{host}:{pid}] *** End of error message ***"),
    _any("signal 11", _thread("horovod/horovod", 1261), "[{host}] *** Process received signal ***\n[{host}] Signal: Segmentation fault (11)\n[{host}] Signal code: Address not mapped (1)\n[{host}] Failing at address: 0x88"),
)  # fmt: skip

_FULL_OF = 'During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File "/workspace/save.py", line 88, in save\n    _save(obj, opened_zipfile, pickle_module, pickle_protocol)'
_KERNELS = "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
_DSA = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
_RCCL = "/long_pathname_so_that_rpms_can_package_the_debug_info/src/extlibs/rccl/build/hipify/src/"

_DEVICES = (
    _nccl("cuda warn", _thread("NVIDIA/nccl", 957), (2, 18, 0), (2, 19, 0), "transport.cc:154", "Cuda failure '{error}'"),
    _nccl("cuda warn", _thread("NVIDIA/TensorRT-LLM", 448), (2, 19, 0), (2, 20, 0), "misc/strongstream.cc:343", "Cuda failure '{error}'"),
    _nccl("cuda warn", _thread("vllm-project/vllm", 19890), (2, 26, 0), (2, 27, 0), "enqueue.cc:1556", "Cuda failure {number}'{error}'"),
    _nccl("cuda start", _thread("NVIDIA/cuml", 5961), (2, 10, 0), (2, 21, 0), "misc/cudawrap.cc:182", "Cuda failure '{error}'"),
    _torch("cuda error", _thread("mk-minchul/AdaFace", 14), (1, 4, 0), (2, 0, 0), "RuntimeError: CUDA error: {error}"),
    _torch("cuda error", _thread("karpathy/nanoGPT", 470), (2, 0, 0), (2, 4, 0), f"RuntimeError: CUDA error: {{error}}\n{_KERNELS}.\n{_DSA}"),
    _torch("cuda error", _thread("sgl-project/sglang", 1274), (2, 4, 0), (2, 8, 0), f"RuntimeError: CUDA error: {{error}}\n{_KERNELS}\n{_DSA}"),
    _torch("cuda watchdog", _thread("vllm-project/vllm", 4108), (2, 1, 0), (2, 2, 0), f"[E ProcessGroupNCCL.cpp:916] [Rank {{inner}}] NCCL watchdog thread terminated with exception: CUDA error: {{error}}\n{_KERNELS}.\n{_DSA}"),
    _torch("cuda watchdog", _thread("sgl-project/sglang", 1274), (2, 4, 0), (2, 5, 0), f"[rank{{r}}]:[E{{stamp}} ProcessGroupNCCL.cpp:1515] {{pg_bare}} Process group watchdog thread terminated with exception: CUDA error: {{error}}\n{_KERNELS}\n{_DSA}"),
    _torch("cuda watchdog", _thread("sgl-project/sglang", 271), (2, 3, 0), (2, 4, 0), f"terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {{pg_bare}} Process group watchdog thread terminated with exception: CUDA error: {{error}}\n{_KERNELS}.\n{_DSA}"),
    _nccl("ipc handle", _thread("horovod/horovod", 785), (2, 4, 0), (2, 12, 0), "transport/p2p.cu:548", "failed to open CUDA IPC handle : 11 invalid argument"),
    _nccl("ipc handle", _thread("ray-project/ray_lightning", 24), (2, 7, 0), (2, 14, 0), "transport/p2p.cc:238", "failed to open CUDA IPC handle : 217 peer access is not supported between these two devices"),
    _nccl("topology attribute", _thread("NVIDIA/nccl", 379), (2, 7, 0), _LAST, "graph/xml.h:77", "Attribute arch of node cpu not found"),
    _nccl("topology ring", _thread("NVIDIA/nccl", 520), (2, 7, 0), (2, 19, 0), "graph/rings.cc:38", "Error : ring {ring} does not loop back to start ({to} != {rank})"),
    _nccl("topology ring", _thread("NVIDIA/nccl", 1020), (2, 19, 0), _LAST, "graph/rings.cc:38", "Error : ring {ring} does not loop back to start ({to} != {rank})."),
    _nccl("topology reverse", _thread("ROCm/rccl", 1728), (2, 20, 0), _LAST, f"{_RCCL}graph/paths.cc:82", "Failed to find reverse path from remNode 0/{bus} nlinks 3 to node 0/{other}"),
)  # fmt: skip

_BOUND = "[W socket.cpp:{0}] [c10d] The server socket has failed to bind to [::]:{{port}} (errno: 98 - Address already in use).\n[W socket.cpp:{0}] [c10d] The server socket has failed to bind to 0.0.0.0:{{port}} (errno: 98 - Address already in use).\n[E socket.cpp:{1}] [c10d] The server socket has failed to listen on any local network address."
_LISTEN = "The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:{port} (errno: 98 - Address already in use). The server socket has failed to bind to 0.0.0.0:{port} (errno: 98 - Address already in use)."
_NO_NAME = "network addresses of ({store}, {port}) cannot be retrieved (gai error: -2 - Name or service not known)."

_SERVICES = (
    # Ports and addresses.
    _torch("bind store", _thread("open-mmlab/mmpretrain", 960), (1, 12, 0), (1, 13, 0), _BOUND.format(401, 435)),
    _torch("bind store", _thread("hunto/DIST_KD", 10), (1, 13, 0), (2, 2, 0), _BOUND.format(426, 462)),
    _torch("bind store", _thread("hao-ai-lab/FastVideo", 575), (2, 2, 0), (2, 6, 0), _BOUND.format(464, 500)),
    _torch("bind raised", _thread("intelligent-machine-learning/dlrover", 443), (1, 11, 0), (2, 1, 0), f"RuntimeError: {_LISTEN}"),
    _torch("bind raised", _thread("meta-pytorch/torchtune", 392), (2, 1, 0), (2, 4, 0), f"torch.distributed.DistNetworkError: {_LISTEN}"),
    _torch("bind raised", _thread("vllm-project/vllm", 39015), (2, 4, 0), _LAST, "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"),
    _nccl("bind nccl", _thread("rwth-i6/returnn", 1470), (2, 14, 0), (2, 27, 0), "misc/socket.cc:379", "Call to bind failed : {error}"),
    _nccl("bind nccl", _thread("NVIDIA/nccl", 1882), (2, 27, 0), _LAST, "misc/socket.cc:409", "Call to bind failed: {error}"),
    # Calls to the network that fail.
    _nccl("net plugin", _thread("awslabs/awsome-distributed-ai", 203), (2, 19, 0), _LAST, "register_rail_mr_buffer:617", "NET/OFI Unable to register memory (type = 2) for device {device}. RC: -22, Error: Invalid argument"),
    _nccl("net plugin", _thread("aws/aws-ofi-nccl", 584), (2, 14, 0), (2, 24, 0), "register_mr_buffers:544", "NET/OFI Unable to register memory (type = 2) for device {device}. RC: -22, Error: Invalid argument"),
    _nccl("net plugin", _thread("aws/aws-ofi-nccl", 889), (2, 21, 0), _LAST, "nccl_net_ofi_domain_get_ep:969", "NET/OFI Creating new endpoint for domain 0x7f9befa99380 failed: Invalid argument"),
    _nccl("net accept", _thread("NVIDIA/nccl", 1382), (2, 18, 0), (2, 27, 0), "misc/socket.cc:415", "socketTryAccept: Accept failed: Bad file descriptor"),
    _torch("no name", _thread("meta-pytorch/torchx", 540), (1, 12, 0), (1, 13, 0), f"[W socket.cpp:558] [c10d] The IPv6 {_NO_NAME}\n[W socket.cpp:558] [c10d] The IPv4 {_NO_NAME}\n[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of ({{store}}, {{port}})."),
    _torch("no name", _thread("hpcaitech/Open-Sora", 94), (1, 13, 0), (2, 4, 0), f"[W socket.cpp:601] [c10d] The IPv6 {_NO_NAME}\n[W socket.cpp:601] [c10d] The IPv6 {_NO_NAME}"),
    _torch("no name", _thread("verl-project/verl", 2550), (2, 4, 0), _LAST, f"[W{{stamp}} socket.cpp:752] [c10d] The IPv6 {_NO_NAME}"),
    # File systems.
    _any("storage", _thread("open-mmlab/mmdetection", 12069), "OSError: [Errno 122] Disk quota exceeded"),
    _any("storage", _thread("hiyouga/LlamaFactory", 1223), "RuntimeError: [enforce fail at inline_container.cc:445] . PytorchStreamWriter failed writing file data/176: file write failed"),
    _any("storage", _thread("babysor/MockingBird", 774), f"OSError: [Errno 28] No space left on device\n\n{_FULL_OF}\nOSError: [Errno 28] No space left on device"),
    _any("storage", _thread("open-mmlab/mmdetection", 6461), "OSError: [Errno 5] Input/output error"),
    _any("storage", _thread("hiyouga/LlamaFactory", 3388), "OSError: [Errno 116] Stale file handle: '/home/xxx/.cache/huggingface/datasets/text/"),
    _any("storage", _thread("pytorch/pytorch", 10577), "RuntimeError: write(): fd 29 failed with Input/output error"),
    # Jobs that are ended.
    _any("slurm limit", _thread("ZettaAI/zetta_utils", 671), "srun: Job step aborted: Waiting up to 47 seconds for job step to finish.\nslurmstepd: error: *** JOB {job} ON {host} CANCELLED AT {iso} DUE TO TIME LIMIT ***\nslurmstepd: error: *** STEP {job}.0 ON {host} CANCELLED AT {iso} DUE TO TIME LIMIT ***"),
    _any("slurm preempted", _thread("facebookincubator/submitit", 1708), "submitit WARNING (2022-08-12 02:06:11,453) - Caught signal SIGUSR2 on {host}: this job is preempted.\nslurmstepd: error: *** JOB {job} ON {host} CANCELLED AT {iso} DUE TO JOB REQUEUE ***\nslurmstepd: error: *** STEP {job}.0 ON {host} CANCELLED AT {iso} DUE TO JOB REQUEUE ***\nsubmitit WARNING (2022-08-12 02:06:12,299) - Bypassing signal SIGCONT\nsubmitit WARNING (2022-08-12 02:06:12,301) - Bypassing signal SIGTERM"),
    _torch("agent signal", _thread("modelscope/ms-swift", 64), (1, 9, 0), (2, 1, 0), "WARNING:torch.distributed.elastic.agent.server.api:Received {number} death signal, shutting down workers"),
    _torch("agent signal", _thread("modelscope/ms-swift", 5884), (2, 5, 0), _LAST, "W{agent_stamp} {agent_pid} site-packages/torch/distributed/elastic/agent/server/api.py:719] Received {number} death signal, shutting down workers"),
)  # fmt: skip

_STUCK = "ProcessGroupNCCL's watchdog got stuck for {seconds} seconds without making progress in monitoring enqueued collectives. This typically indicates a NCCL/CUDA API"
_STUCK_OLD = f"{_STUCK} hang blocking the watchdog, and could be triggered by another thread holding the GIL inside a CUDA api, or other deadlock-prone behaviors."
_STUCK_NEW = f"{_STUCK} (e.g., CudaEventDestroy) hang blocking the watchdog, and could be triggered by another thread holding the GIL inside a CUDA api (for example, CudaEventDestroy), or other deadlock-prone behaviors."
_LONGER = "If you suspect the watchdog is not actually stuck and a longer timeout would help, you can either increase the timeout (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC) to a larger value or disable the heartbeat monitor (TORCH_NCCL_ENABLE_MONITORING=0).If either of aforementioned helps, feel free to file an issue to PyTorch about the short timeout or false positive abort; otherwise, please attempt to debug the hang. "

_HEARTBEATS = (
    _torch("heartbeat", _thread("Intellindust-AI-Lab/DEIM", 105), (2, 3, 0), (2, 4, 0), f"[rank{{r}}]:[E ProcessGroupNCCL.cpp:1316] {{pg}} Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=103\n[rank{{r}}]:[E ProcessGroupNCCL.cpp:1153] {{pg}} ProcessGroupNCCL preparing to dump debug info.\n[rank{{r}}]:[F ProcessGroupNCCL.cpp:1169] {{pg}} {{pg}} {_STUCK_OLD}{_LONGER}workMetaList_.size() = 103"),
    _torch("heartbeat", _thread("sgl-project/sglang", 1691), (2, 4, 0), (2, 5, 0), f"[rank{{r}}]:[E{{stamp}} ProcessGroupNCCL.cpp:1375] {{pg_bare}} First PG on this rank that detected no heartbeat of its watchdog.\n[rank{{r}}]:[E{{stamp}} ProcessGroupNCCL.cpp:1413] {{pg_bare}} Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=121\n[rank{{r}}]:[F{{stamp}} ProcessGroupNCCL.cpp:1224] {{pg_bare}} {{pg_bare}} {_STUCK_OLD}{_LONGER}workMetaList_.size() = 121"),
    _torch("heartbeat", _thread("hiyouga/LlamaFactory", 8549), (2, 7, 0), (2, 9, 0), f"[rank{{r}}]:[E{{stamp}} ProcessGroupNCCL.cpp:1746] {{pg}} {_STUCK_NEW}{_LONGER}"),
    _torch("heartbeat", _thread("om-ai-lab/VLM-R1", 257), (2, 6, 0), (2, 8, 0), f"[rank{{r}}]:[E{{stamp}} ProcessGroupNCCL.cpp:1743] {{pg}} {_STUCK_NEW}{_LONGER}\n[rank{{r}}]:[E{{stamp}} ProcessGroupNCCL.cpp:1533] {{pg}} ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1\n[rank{{r}}]:[F{{stamp}} ProcessGroupNCCL.cpp:1554] {{pg}} {{pg}} Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang."),
    _torch("heartbeat", _thread("modelscope/ms-swift", 7992), (2, 9, 0), _LAST, f"[rank{{r}}]:[E{{stamp}} ProcessGroupNCCL.cpp:1870] {{pg}} {_STUCK_NEW}{_LONGER}"),
)  # fmt: skip

_PROGRESS = (
    # "\f" parts the words of the start from those of each step.
    _any("preprocess", _thread("hiyouga/LlamaFactory", 2424), "Running tokenizer on dataset: {percent:3d}%|{shape:<83}| {done}/{total} [{elapsed}<{left}, {rate:.2f} examples/s]"),
    _any("preprocess", _thread("hiyouga/LlamaFactory", 1196), "Running tokenizer on dataset (num_proc=64): {percent:3d}%|{shape:<91}| {done}/{total} [{elapsed}<{left}, {rate:.2f} examples/s]"),
    _any("preprocess", _thread("tehranixyz/CodeRosetta", 4), "Tokenize words                 {blocks:░<52} {done:<8} /  {total}"),
    _any("preprocess", _thread("hpcaitech/ColossalAI", 3556), "Map: {percent:3d}%|{shape:<50}| {done}/{total} [{elapsed}<{left}, {rate:.2f} examples/s]"),
    _any("loading", _thread("verl-project/verl", 668), "Loading checkpoint shards: {percent:3d}%|{shape:<10}| {done}/{total} [{elapsed}<{left}, {pace:.2f}s/it]"),
    _any("loading", _thread("ray-project/ray", 47183), "Loading safetensors checkpoint shards: {percent:3d}% Completed | {done}/{total} [{elapsed}<{left}, {pace:.2f}s/it]"),
    _any("evaluate", _thread("open-mmlab/mmdetection", 11096), "{mm_stamp} - mmengine - INFO - Evaluating bbox...\nLoading and preparing results...\nDONE (t=27.37s)\ncreating index...\nindex created!\nRunning per image evaluation...\nEvaluate annotation type *bbox*\f"),
    _any("evaluate", _thread("facebookresearch/detectron2", 3886), "\f[{mm_stamp} d2.evaluation.evaluator]: Inference done {done}/{total}. 0.0726 s / img. ETA={left}"),
    _any("evaluate", _thread("jpata/particleflow", 390), "\fRunning predictions on sample clic_edm_ttbar_pf on rank=0: {percent:3d}%|{shape:<10}| {done}/{total} [{elapsed}<{left}, {pace:.2f}s/it]"),
    _any("evaluate", _thread("cfzd/Ultra-Fast-Lane-Detection-v2", 119), "Evaluating the results...\f"),
    _any("evaluate", _source("Lightning-AI/pytorch-lightning", "src/lightning/pytorch/callbacks/progress/tqdm_progress.py", "2.5.0"), "\fValidation DataLoader 0: {percent:3d}%|{shape:<10}| {done}/{total} [{elapsed}<{left}, {pace:.2f}s/it]"),
    _any("checkpoint", _thread("kohya-ss/sd-scripts", 1247), "INFO     Saving DeepSpeed Model and Optimizer  logging.py:61\f"),
    _any("checkpoint", _thread("NVIDIA/nccl", 1132), "{us_stamp} - INFO - accelerate.accelerator - Saving current state to path/to/saved/model/checkpoint-{step}\n{us_stamp} - INFO - accelerate.accelerator - Saving DeepSpeed Model and Optimizer\f"),
    _any("checkpoint", _thread("hustvl/VMA", 3), "{comma_stamp} - mmdet - INFO - Saving checkpoint at 5 epochs\f"),
    _any("checkpoint", _source("NVIDIA/Megatron-LM", "megatron/training/checkpointing.py", "core_r0.10.0"), "saving checkpoint at iteration {step:7d} to /output/checkpoints in torch_dist format\f"),
    _any("checkpoint", _source("deepspeedai/DeepSpeed", "deepspeed/runtime/checkpoint_engine/torch_checkpoint_engine.py", "v0.14.0"), "[{comma_stamp}] [INFO] [logging.py:96:log_dist] [Rank 0] [Torch] Checkpoint global_step{step} is about to be saved!\n[{comma_stamp}] [INFO] [logging.py:96:log_dist] [Rank 0] Saving model checkpoint: /output/checkpoint-{step}/global_step{step}/mp_rank_00_model_states.pt\n[{comma_stamp}] [INFO] [torch_checkpoint_engine.py:21:save] [Torch] Saving /output/checkpoint-{step}/global_step{step}/mp_rank_00_model_states.pt...\f"),
    _any("step", _thread("deepspeedai/DeepSpeed", 4781), "{{'loss': {loss:.4f}, 'learning_rate': 6.5000000000000004e-06, 'epoch': {epoch:.2f}}}"),
    _any("step", _thread("pytorch/pytorch", 118369), "\rEpoch 0: {percent:3d}%|{shape:<32}| {step}/500150 [{elapsed}<94:39:17,  1.37it/s, loss={loss:.3f}, v_num=95nc, reduced_train_loss={loss:.3f}, global_step={step}]"),
    _any("step", _thread("Lightning-AI/lit-llama", 380), "iter {step}: loss {loss:.4f}, time: 4401.19ms, speed: 1771 toks/s/device"),
    _any("step", _thread("Peterande/D-FINE", 118), "Epoch: [0]  [{step:5d}/50108]  eta: 1 day, 20:54:44  lr: 0.000000  loss: {loss:.4f} ({loss:.4f})  loss_bbox: 1.3422 (1.3422)"),
    _any("step", _thread("rwth-i6/returnn", 1626), "ep 13 train, step {step}, ctc_4 4.363, ctc_8 4.184, ctc 4.293, aed_ce {loss:.3f}, aed_fer 0.802, num_seqs 10, max_size:time 225760, mem_usage:cuda:0 8.9GB, 0.750 sec/step"),
    _any("step", _thread("ArjunaCluster/ArjunaUsers", 52), "Epoch: [0][{step}/1736]\t Loss {loss:.4f} MAE 0.6568 RMSE 0.7644"),
    _any("step", _thread("NVIDIA/nccl", 844), "Train Epoch: 1 [{step}/246000 (18%)]\tLoss: {loss:.15f}"),
)  # fmt: skip

_HARMLESS = (
    _nccl("harmless", _source("NVIDIA/nccl", "src/ras/client_support.cc", "v2.24.3-1"), (2, 24, 0), _LAST, "warn ras/client_support.cc:159", "Call to bind failed: Address already in use"),
    _nccl("harmless", _source("NVIDIA/nccl", "src/ras/client_support.cc", "v2.24.3-1"), (2, 24, 0), _LAST, "info", "RAS failed to establish a client listening socket at localhost:28028"),
    _nccl("harmless", _thread("NVIDIA/nccl", 268), (2, 4, 0), _LAST, "info", "Could not find real path of /sys/class/net/eth0/device"),
    _nccl("harmless", _thread("NVIDIA/nccl", 1029), (2, 17, 0), _LAST, "info", "NVLS multicast support is not available on dev {local}"),
    _nccl("harmless", _thread("NVIDIA/TensorRT-LLM", 2225), (2, 10, 0), _LAST, "info", "P2P is disabled between connected GPUs 6 and 7. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1."),
    _nccl("harmless", _thread("NVIDIA/nccl", 531), (2, 7, 0), _LAST, "info", "Attribute coll of node net not found"),
    _nccl("harmless", _thread("NVIDIA/nccl-tests", 287), (2, 19, 0), _LAST, "info", "ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856"),
    _nccl("harmless", _thread("google/nccl-fastsocket", 4), (2, 8, 0), _LAST, "warn net_fastsocket.cc:765", "Cannot get incoming CPU."),
    _nccl("harmless", _thread("google/nccl-fastsocket", 4), (2, 8, 0), _LAST, "warn net_fastsocket.cc:785", "Maximum retry reached for accept 3."),
    _torch("harmless", _thread("meta-pytorch/torchcomms", 2358, "pull"), (2, 6, 0), _LAST, "[W{stamp} TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3, addr=[{host}]:47466, remote=[{store}]:29500): Connection reset by peer\nException raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:679 (most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >) + 0x80 (0x1468a2869c10 in /opt/conda/lib/python3.11/site-packages/torch/lib/libc10.so)"),
    _torch("harmless", _thread("TheTom/vllm-swift", 9), (2, 6, 0), _LAST, "[W{stamp} TCPStore.cpp:347] [c10d] TCP client failed to connect/validate to host {store}:29500 - retrying (try=6, timeout=1800000ms, delay=5241ms): Connection reset by peer"),
    _torch("harmless", _thread("pytorch/pytorch", 46248), (1, 5, 0), (1, 8, 0), "/opt/conda/lib/python3.7/site-packages/torch/nn/parallel/distributed.py:448: UserWarning: Single-Process Multi-GPU is not the recommended mode for DDP. In this mode, each DDP instance operates on multiple devices and creates multiple module replicas within one process."),
    _any("harmless", _thread("ModelTC/LightCompress", 320), "Token indices sequence length is longer than the specified maximum sequence length for this model (288925 > 131072). Running this sequence through the model will result in indexing errors"),
    _any("harmless mpi", _thread("NVIDIA/nccl-tests", 188), "[{host}:{pid}] 15 more processes have sent help message help-mpi-btl-openib.txt / error in device init\n[{host}:{pid}] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all help / error messages"),
    _any("harmless mpi", _thread("openucx/ucx", 8746), "[1668693503.473099] [{host}:{pid}:0]          ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)"),
    _any("harmless end", _thread("resistzzz/Prompt4NR", 3), "/opt/conda/lib/python3.7/multiprocessing/semaphore_tracker.py:144: UserWarning: semaphore_tracker: There appear to be 15 leaked semaphores to clean up at shutdown\n  len(cache))"),
    _torch("harmless end", _thread("hpcaitech/ColossalAI", 6202), (2, 4, 0), (2, 6, 0), "[rank{r}]:[W{stamp} ProcessGroupNCCL.cpp:1168] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group to ensure that any pending NCCL operations have finished in this process. In rare cases this process can exit before this point and block the progress of another member of the process group. This constraint has always been present,  but this warning has only been added since PyTorch 2.4 (function operator())"),
    _torch("harmless end", _thread("Dere-Wah/AI-MarioKart64", 3), (2, 6, 0), _LAST, "[rank{r}]:[W{stamp} ProcessGroupNCCL.cpp:1662] {pg} Failed to check the \"should dump\" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: failed to recv, got 0 bytes"),
    _nccl("harmless end", _thread("NVIDIA/nccl-tests", 252), (2, 14, 0), (2, 27, 0), "info", "[Service thread] Connection closed by localRank {local}"),
)  # fmt: skip

WORDINGS: tuple[Wording, ...] = (
    *_SOCKETS, *_HOSTS, *_INFINIBAND, *_WATCHDOG, *_PYTHON, *_LAUNCHERS, *_DEVICES, *_SERVICES, *_HEARTBEATS, *_PROGRESS,
    *_HARMLESS,
)  # fmt: skip
KINDS = frozenset(wording.kind for wording in WORDINGS)


class Words:
    """The words that a case speaks. Of each kind it keeps to one wording, as a program of one version does.

    ``spoken``: for each kind that was asked for, whether it was a real wording that was said.
    """

    def __init__(self, real: bool, rng: random.Random) -> None:
        self.real = real
        self.rng = rng
        self.spoken: dict[str, bool] = {}
        self._chosen: dict[tuple[str, Version, Version], Wording | None] = {}

    def all(self, kind: str, job: Job) -> list[Wording]:
        """Every real wording of a kind that this job's versions print."""
        found = [wording for wording in WORDINGS if wording.kind == kind and wording.fits(job)] if self.real else []
        self.spoken[kind] = bool(found) or self.spoken.get(kind, False)
        return found

    def find(self, kind: str, job: Job) -> Wording | None:
        """The case's real wording of a kind, if it speaks any."""
        assert kind in KINDS, kind
        key = (kind, job.torch, job.nccl)
        if key not in self._chosen:
            found = self.all(kind, job)
            self._chosen[key] = self.rng.choice(found) if found else None
        return self._chosen[key]

    def text(self, kind: str, job: Job, own: str, /, **fields: object) -> str:
        """The message in the case's words; ``own``: in the package's."""
        found = self.find(kind, job)
        return found.template.format(**fields) if found else own

    def warning(self, kind: str, job: Job, code: str, own: str, /, **fields: object) -> tuple[str, str]:
        """Place and text of a warning of NCCL."""
        found = self.find(kind, job)
        return (found.code or code, found.template.format(**fields)) if found else (code, own)


OWN = Words(False, random.Random(0))


class Dice(random.Random):
    """The random numbers of a case, and with them its words, so that no builder need hand them on."""

    words: Words = OWN
