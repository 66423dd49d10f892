"""One planted fault of every class, with the lines that follow it elsewhere: class and culprit must be exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from diag.hang.classes import CLASSES
from diag.hang.model import Triage
from diag.hang.reason import reason
from tests.hang.reason.builders import Job, call


def ranks(triage: Triage) -> list[int | None]:
    return [culprit.rank for culprit in triage.culprits]


def hosts(triage: Triage) -> list[str]:
    return sorted({culprit.host for culprit in triage.culprits})


def cascade(job: Job, culprit: int) -> None:
    """What the others say when one is gone."""
    for rank in range(job.world):
        if rank != culprit:
            job.say(f"Sending process {1000 + rank} closing signal SIGTERM", host=job.host(rank), source="launcher")


SCENARIOS: dict[str, Callable[[Job], None]] = {}
EXPECTED: dict[str, tuple[list[int | None], list[str]]] = {}


def scenario(culprits: list[int | None], where: list[str]) -> Callable[[Callable[[Job], None]], Callable[[Job], None]]:
    def register(build: Callable[[Job], None]) -> Callable[[Job], None]:
        name = build.__name__.removeprefix("_")
        SCENARIOS[name], EXPECTED[name] = build, (culprits, where)
        return build

    return register


@scenario([2], ["node1"])
def _gpu_hardware(job: Job) -> None:
    """The PCI address ties the kernel's line to a rank."""
    job.say("NVRM: Xid (PCI:0000:3b:00): 79, pid=99, GPU has fallen off the bus.", host="node1", source="kernel")
    for rank in (0, 1, 3):
        job.timeout(rank)
    job.exit(2, -6)


@scenario([None], ["node1"])
def _ib_device_fatal(job: Job) -> None:
    job.warn(2, "NET/IB : mlx5_0:1 async fatal event: local catastrophic error")
    job.changed[2] = {"rank": None}
    job.warn(0, "NET/IB: Got completion from peer 10.0.0.2<4000> with status=12 opcode=1 len=0 vendor err 129 (Recv)")


@scenario([2], ["node1"])
def _ib_link_down(job: Job) -> None:
    job.using(2, "eth0:10.0.0.2")
    job.warn(2, "NET/IB : Got async event : port error")
    for rank in (0, 1):
        job.warn(rank, "NET/IB : Got completion from peer 10.0.0.2<4000> with error 12, opcode 1, len 7, vendor err 9")


@scenario([3], ["node1"])
def _rank_killed_sigkill(job: Job) -> None:
    job.exit(3, -9)
    job.say("Out of memory: Killed process 1003 (python) total-vm:1kB", host="node1", source="kernel")
    job.warn(0, "socketProgress: Connection closed by remote peer node1.cluster<4000>")
    cascade(job, 3)


@scenario([1], ["node0"])
def _rank_killed_sigbus(job: Job) -> None:
    job.exit(1, -7)
    cascade(job, 1)


@scenario([1], ["node0"])
def _rank_killed_sigsegv(job: Job) -> None:
    job.exit(1, -11)
    job.timeout(0)
    cascade(job, 1)


@scenario([2], ["node1"])
def _rank_killed_exception(job: Job) -> None:
    job.traceback(2, "ValueError: bad sample 17")
    job.traceback(0, "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2021")
    job.traceback(1, "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]:1234")
    job.exit(2, 1)
    cascade(job, 2)


@scenario([1], ["node0"])
def _shm_exhausted(job: Job) -> None:
    job.warn(1, "Error: failed to extend /dev/shm/nccl-a1B2c3 to 9637892 bytes", "misc/shmutils.cc:88")
    job.warn(1, "Error while creating shared memory segment /dev/shm/nccl-a1B2 (size 9637888)", "misc/shmutils.cc:132")
    job.traceback(1, "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1")
    job.warn(0, "socketProgress: Connection closed by remote peer node0<4000>")


@scenario([0, 1], ["node0"])
def _duplicate_gpu(job: Job) -> None:
    job.warn(0, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000", "init.cc:974")
    job.warn(1, "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "init.cc:974")


@scenario([3], ["node1"])
def _cuda_oom(job: Job) -> None:
    job.warn(3, "Cuda failure 2 'out of memory'", "include/alloc.h:99")
    job.warn(3, "Failed to CUDA calloc 10485760 bytes", "include/alloc.h:99")
    job.traceback(3, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")


@scenario([0, 1], ["node0"])
def _nvls_multicast(job: Job) -> None:
    for rank in (0, 1):
        job.warn(
            rank,
            "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 2 'out of memory'.",
            "transport/nvls.cc:287",
        )


@scenario([2, 3], ["node1"])
def _net_no_interface(job: Job) -> None:
    for rank in (2, 3):
        job.warn(rank, "Bootstrap : no socket interface found", "bootstrap.cc:130")
    job.communicate(started=[0, 1], completed=[])


@scenario([None], ["node1"])
def _net_wrong_interface(job: Job) -> None:
    job.using(0, "eth0:10.0.0.1")
    job.using(2, "docker0:172.17.0.1")
    job.warn(0, "socketStartConnect: Connect to 172.17.0.1<4321> failed : Connection refused")


@scenario([None], ["node1"])
def _net_connect_timeout(job: Job) -> None:
    job.using(0, "eth0:10.0.0.1")
    job.using(2, "eth0:10.0.0.2")
    peer = "10.0.0.2<4321>"
    job.warn(0, f"socketStartConnect: connect to {peer} returned Connection timed out, exceeded error retry count")


@scenario([None], ["node1"])
def _net_connect_refused(job: Job) -> None:
    job.using(0, "eth0:10.0.0.1")
    job.using(2, "eth0:10.0.0.2")
    job.info(0, "socketPollConnect: connect to 10.0.0.2<4321> returned Connection refused, retrying (1/34) after sleep")
    job.warn(
        0,
        "socketPollConnect: connect to 10.0.0.2<4321> returned Connection refused, exceeded error retry count after 35 "
        "attempts",
    )


@scenario([None], ["node1"])
def _net_connection_lost(job: Job) -> None:
    job.using(2, "eth0:10.0.0.2")
    job.warn(0, "socketProgressOpt: Call to recv from 10.0.0.2<4321> failed : Connection reset by peer")
    job.warn(1, "socketProgress: Connection closed by remote peer 10.0.0.2<4321>")


@scenario([3], ["node1"])
def _nccl_version_mismatch(job: Job) -> None:
    for rank in range(4):
        version = "2.19.3" if rank == 3 else "2.21.5"
        job.changed[rank] = {"nccl_version": f"{version}+cuda12.4"}
        job.info(rank, f"NCCL version {version}+cuda12.4")
    job.warn(0, "Message truncated : received 64 bytes instead of 32", "bootstrap.cc:225")


@scenario([2, 3], ["node1"])
def _env_mismatch(job: Job) -> None:
    job.world = 6
    for rank in range(6):
        algorithm = "Ring" if rank in (2, 3) else "Tree"
        job.changed[rank] = {"env": {"NCCL_ALGO": algorithm, "NCCL_DEBUG": "INFO"}, "nccl_version": "2.21.5"}
        job.info(rank, f"NCCL_ALGO set by environment to {algorithm}")
    job.warn(0, "Bootstrap Root : mismatch in info from procs, nranks 6 vs 6, nroots 1 vs 2, iroot 0 vs 0")


@scenario([4], ["node4"])
def _ib_completion_error(job: Job) -> None:
    """One host is an end of every failing link."""
    job.world, job.per_host = 5, 1
    for rank in range(5):
        job.using(rank, f"eth0:10.0.0.{rank + 1}")
    for rank in (0, 1, 2):
        job.warn(
            rank,
            "NET/IB: Got completion from peer 10.0.0.5<4000> with status=IBV_WC_RETRY_EXC_ERR(12) "
            "opcode=IBV_WC_SEND(0) vendor_err=129 localGid fe80::1 remoteGids fe80::5 hca mlx5_0",
        )
    job.warn(4, "NET/IB: Got completion from peer 10.0.0.1<4000> with status=12 opcode=1 len=0 vendor err 129 (Send)")
    job.warn(3, "NET/IB: Got completion from peer 10.0.0.1<4000> with status=5 opcode=1 len=0 vendor err 249 (Send)")


@scenario([0, 2], ["node0", "node1"])
def _gdr_acs(job: Job) -> None:
    for rank in (0, 2):
        job.warn(rank, "NET/IB : Got completion from peer 10.0.0.9<4000> with error 4, opcode 1, len 0, vendor err 81")


@scenario([1], ["node0"])
def _ib_unreachable_rail(job: Job) -> None:
    job.warn(
        1,
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_2:1, curr state INIT, next state RTR, "
        "local GID index 3, local GID ::ffff:10.1.0.1, remote GID ::ffff:10.2.0.1",
    )


@scenario([0], ["node0"])
def _memlock_limit(job: Job) -> None:
    job.warn(0, "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory errno 12")


@scenario([3], ["node1"])
def _mismatch_shape(job: Job) -> None:
    calls = {rank: [call(6), call(7, count=64 if rank == 3 else 100)] for rank in range(4)}
    job.communicate(calls=calls)
    for rank in range(4):
        job.timeout(rank, seq=8)


@scenario([1], ["node0"])
def _mismatch_op(job: Job) -> None:
    fingerprint = "CollectiveFingerPrint(SequenceNumber={}, OpType={}, TensorShape=[{}], TensorDtypes=Float, "
    fingerprint += "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda))"
    for rank, other in ((0, 1), (1, 0), (2, 1), (3, 1)):
        ops = ["ALLGATHER" if one == 1 else "REDUCE" for one in (rank, other)]
        job.traceback(
            rank,
            f"RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running collective: "
            f"{fingerprint.format(5, ops[0], '10')}, but Rank {other} is running collective: "
            f"{fingerprint.format(5, ops[1], '10')}.Collectives differ in the following aspects: \t Op type: x vs y",
        )


@scenario([2], ["node1"])
def _desync(job: Job) -> None:
    for rank in range(4):
        job.timeout(rank, seq=45 if rank == 2 else 42)
    job.say("- [2] finished collective #41, but didn't join collective #42 (count from 1)", 0, source="torch")
    job.say("- [0, 1, 3] joined but didn't finish collective #42 (count from 1)", 0, source="torch")


@scenario([0, 1, 2, 3], ["node0", "node1"])
def _ddp_unused_parameters(job: Job) -> None:
    for rank in range(4):
        job.traceback(
            rank, "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
        )


@scenario([2], ["node1"])
def _missing_rank(job: Job) -> None:
    for rank in (0, 1, 3):
        job.timeout(rank)
    job.info(2, "ncclCommInitRank comm 0x1 rank 2 nranks 4 - Init COMPLETE")


@scenario([0], ["node0"])
def _slow_rank_preprocess(job: Job) -> None:
    for rank in (1, 2, 3):
        job.timeout(rank, seq=1, numel=1)
    job.say("Tokenizing: 37%|███▋      | 37/100 [11:00<19:00]", 0, tagged=False)


@scenario([0], ["node0"])
def _slow_rank_eval(job: Job) -> None:
    for rank in (1, 2, 3):
        job.timeout(rank, seq=900, numel=1)
    job.say("Evaluating:  80%|████████  | 800/1000 [12:30<03:00]", 0)


@scenario([0], ["node0"])
def _slow_rank_checkpoint(job: Job) -> None:
    for rank in (1, 2, 3):
        job.timeout(rank, seq=900, numel=1, op="BROADCAST")
    job.say("Saving model checkpoint to /mnt/slow/step-1000", 0)


@scenario([None], ["node0"])
def _p2p_iommu_acs(job: Job) -> None:
    job.world, job.per_host = 4, 4
    job.communicate(calls={rank: [call(0)] for rank in range(4)})
    for rank in range(4):
        job.info(rank, f"Channel 00/0 : {rank}[{rank}] -> {(rank + 1) % 4}[{(rank + 1) % 4}] via P2P/IPC")
        job.timeout(rank, seq=1)


@scenario([0], ["node0"])
def _cascade_store_lost(job: Job) -> None:
    for rank in (1, 2, 3):
        job.say(
            'Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with '
            "error: Broken pipe",
            rank,
            source="torch",
            level="WARN",
        )


@scenario([2], ["node1"])
def _cuda_failure(job: Job) -> None:
    """Rank 2's kernel fails; NCCL, torch and the watchdog of that rank say it, the others lose their peer."""
    job.communicate()
    job.using(2, "eth0:10.0.0.2")
    job.warn(2, "Cuda failure 700 'an illegal memory access was encountered'", "enqueue.cc:1556")
    job.traceback(2, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
    job.warn(0, "socketProgress: Connection closed by remote peer 10.0.0.2<4000>")
    job.timeout(1)
    job.exit(2, 1)
    cascade(job, 2)


@scenario([0, 1], ["node0"])
def _topology_error(job: Job) -> None:
    """The first host's topology file is wrong; the other one's ranks see its connections close."""
    job.using(0, "eth0:10.0.0.1")
    for rank in (0, 1):
        job.warn(rank, "Attribute arch of node cpu not found", "graph/xml.h:101")
        job.traceback(rank, "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, internal error")
        job.exit(rank, 1)
    job.warn(2, "socketProgress: Connection closed by remote peer 10.0.0.1<4000>")
    cascade(job, 0)


@scenario([0, 2], ["node0", "node1"])
def _same_host_identity(job: Job) -> None:
    """NCCL reports a GPU taken twice, and each of the two ranks says another address: two hosts, one identity."""
    job.using(0, "eth0:10.0.0.1")
    job.using(2, "eth0:10.0.0.2")
    for one, other in ((0, 2), (2, 0)):
        job.warn(one, f"Duplicate GPU detected : rank {one} and rank {other} both on CUDA device 1b000", "init.cc:974")
        job.traceback(one, "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, invalid usage")
        job.exit(one, 1)
    cascade(job, 0)


@scenario([0], ["node0"])
def _net_bind_failed(job: Job) -> None:
    """The port of the store is taken on rank 0's host; the others do not reach a store."""
    refused = "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."
    job.say(f"[W socket.cpp:464] [c10d] {refused}", 0, source="torch", level="WARN")
    job.traceback(
        0,
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        f"{refused}",
    )
    for rank in (2, 3):
        job.say("recvValue failed on SocketImpl(fd=3, addr=[a]:1, remote=[b]:29500): Connection reset by peer", rank)
    job.exit(0, 1)
    cascade(job, 0)


@scenario([3], ["node1"])
def _net_failure(job: Job) -> None:
    """NCCL's network code fails on one host with an error that no finer class has; sockets of the others close."""
    job.using(3, "eth0:10.0.0.2")
    job.warn(3, "Call to ibv_reg_mr_iova2 failed with error Invalid argument", "misc/ibvwrap.cc:182")
    job.traceback(3, "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error")
    job.warn(0, "socketProgress: Connection closed by remote peer 10.0.0.2<4000>")
    job.exit(3, 1)
    cascade(job, 3)


@scenario([2], ["node1"])
def _watchdog_blocked(job: Job) -> None:
    """One rank's heartbeat monitor ends it, and no collective has timed out."""
    job.communicate()
    job.say(
        "[PG ID 0 PG GUID 0(default_pg) Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making "
        "progress in monitoring enqueued collectives.",
        2,
        source="torch",
        level="ERROR",
    )
    job.exit(2, -6)
    job.say('Failed to check the "should dump" flag on TCPStore', 0, source="torch", level="WARN")
    cascade(job, 2)


@scenario([], [])
def _job_cancelled(job: Job) -> None:
    """The scheduler ended it: every rank is told to stop, and nobody is at fault."""
    job.communicate()
    job.say("step 80 loss 2.1", 0)
    job.say("slurmstepd: error: *** JOB 9 ON node0 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", source="")
    for rank in range(4):
        job.exit(rank, -15)
    job.warn(1, "Socket recv failed while polling for opId=0x7f")


@scenario([2], ["node1"])
def _storage(job: Job) -> None:
    """A checkpoint does not fit; the exception is of that rank, the others lose it."""
    job.using(2, "eth0:10.0.0.2")
    job.traceback(2, "OSError: [Errno 28] No space left on device: '/output/step-1000/model.pt'")
    job.warn(0, "socketProgress: Connection closed by remote peer 10.0.0.2<4000>")
    job.timeout(1)
    job.exit(2, 1)
    cascade(job, 2)


@scenario([0], ["node0"])
def _slow_rank_init(job: Job) -> None:
    """The store answers, and the key that rank 0 writes when it has loaded did not come in time."""
    for rank in (1, 2, 3):
        job.traceback(
            rank,
            f"torch.distributed.DistBackendError: [{rank}] is setting up NCCL communicator and retrieving ncclUniqueId "
            "from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout",
        )
        job.exit(rank, 1)
    job.say("Loading checkpoint shards:  40%|████      | 2/5 [10:30<15:45]", 0)
    cascade(job, 0)


@scenario([], [])
def _stale_store(job: Job) -> None:
    """The barrier counts the workers of two attempts: nobody is missing, and the ranks only wait."""
    counts = "(world_size=4, worker_count=8, timeout=0:30:00)"
    for rank in range(4):
        job.traceback(
            rank,
            "RuntimeError: Timed out initializing process group in store based barrier on rank: "
            f"{rank}, for key: store_based_barrier_key:1 {counts}",
        )
        job.exit(rank, 1)
    cascade(job, 0)


@scenario([], [])
def _healthy(job: Job) -> None:
    job.communicate(ended="destroyed")
    job.warn(0, "Call to connect returned Connection refused, retrying")
    job.info(0, "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.")
    job.info(1, "Failed to open libibverbs.so[.1]")


@scenario([], [])
def _undetermined(job: Job) -> None:
    """Everybody waits in the same call of the same group."""
    job.communicate()
    for rank in range(4):
        job.timeout(rank)


def test_every_class_has_a_scenario() -> None:
    assert set(SCENARIOS) == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_a_planted_fault_is_found(name: str) -> None:
    job = Job()
    SCENARIOS[name](job)
    triage = reason(job.logs())
    culprits, where = EXPECTED[name]
    assert (triage.fault_class, ranks(triage), hosts(triage)) == (name, culprits, where), triage
    assert 0 < triage.confidence <= 0.97
    assert triage.headline.endswith(".")
    assert name == "undetermined" or triage.next_steps or name == "healthy"
    assert not any("{" in step for step in triage.next_steps)


@pytest.mark.parametrize("name", CLASSES)
def test_evidence_is_of_the_logs(name: str) -> None:
    job = Job()
    SCENARIOS[name](job)
    logs = job.logs()
    known = {line.evidence for line in logs.lines} | {
        c.evidence for comm in logs.communicators for m in comm.members for c in m.calls
    }
    triage = reason(logs)
    assert triage.evidence
    assert set(triage.evidence) <= known


@pytest.mark.parametrize("name", CLASSES)
def test_the_order_of_files_does_not_matter(name: str) -> None:
    """Order by cause: renaming the files, so that they are read in another order, changes nothing."""

    def answer(rename: Callable[[str], str]) -> tuple[object, ...]:
        from dataclasses import replace

        job = Job()
        SCENARIOS[name](job)
        logs = job.logs()
        lines = tuple(replace(line, path=rename(line.path)) for line in logs.lines)
        lines = tuple(sorted(lines, key=lambda line: (line.path, line.number)))
        processes = tuple(replace(p, paths=tuple(map(rename, p.paths))) for p in logs.processes)
        triage = reason(replace(logs, lines=lines, processes=processes, paths=tuple(map(rename, logs.paths))))
        return triage.fault_class, triage.confidence, set(triage.culprits), triage.victims

    assert answer(lambda path: path) == answer(lambda path: f"{999 - sum(map(ord, path)) % 1000}-{path}")
