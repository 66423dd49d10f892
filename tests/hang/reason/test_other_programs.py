"""What models, solvers, their libraries and runtimes print as they fail, in the words of their own sources; and lines
beside them that mean something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.model import Triage

CRASH, RAISED, STORAGE = "rank_killed_sigsegv", "rank_killed_exception", "storage"
STEPS = "step 11 | loss 2.31\nstep 12 | loss 2.30\nstep 13 | loss 2.29\n"
REFUSED = "ConnectException: Connection refused"
SPARK = "org.apache.spark.SparkException: Job aborted: Lost task 3.3 in stage 5.0 (TID 9) ({} executor 4): {}"
MOVED = "    #000: H5D.c line 1069 in H5Dread(): can't read data"
MPT = (
    '2:MPT:   header=header@entry=0x7ff "MPT ERROR: Rank 2(g:9) received signal SIGBUS(7).\\n\\tProcess ID: 7, '
    "Host: n4, Program: /x/g"
)
PERFTEST = "# ib_read_bw -d mlx5_2 --use_cuda=1 10.0.0.2\nallocated GPU buffer address at 00007f pointer=0x7f\n"


def of(folder: Path, text: str) -> Triage:
    (folder / "job.log").write_text(f"{text}\n")
    return triage([str(folder)])


@pytest.mark.parametrize(
    ("fault", "rank", "text"),
    [
        (CRASH, 3, "[3]PETSC ERROR: Caught signal number 8 FPE: Floating Point Exception,probably divide by zero"),
        ("rank_killed_sigbus", 5, "[5]PETSC ERROR: Caught signal number 7 BUS: Bus Error, possibly illegal access"),
        (RAISED, 2, "[2]PETSC ERROR: Argument out of range\n[2]PETSC ERROR: Inserting a new nonzero at (3,4)"),
        ("rank_killed_sigbus", 9, MPT),
        (CRASH, 874, "MPT ERROR: Rank 4(g:874) received signal SIGFPE(8).\n\tProcess ID: 7, Host: n4, Program: /x/g"),
        (CRASH, None, "[71] signal (11.1): Segmentation fault\nin expression starting at /x/run.jl:15"),
        (CRASH, None, "signal (4): Illegal instruction\nin expression starting at /x/run.jl:15"),
        (CRASH, None, "Program received signal SIGFPE: Floating-point exception - erroneous arithmetic operation."),
        (CRASH, None, "forrtl: error (73): floating divide by zero"),
        (CRASH, None, "forrtl: severe (168): Program Exception - illegal instruction"),
        (RAISED, None, "forrtl: severe (24): end-of-file during read, unit 11, file /x/input.nml"),
        (RAISED, None, "At line 12 of file a.f90\nFortran runtime error: Index '9' of dimension 1 above bound of 8"),
        (RAISED, None, "ERROR STOP 3"),
        (RAISED, 12, "MPI traceback error handler called by rank:           12"),
        (RAISED, None, "FATAL CALLED FROM FILE:  <stdin>  LINE:     384\n time step too large"),
        (RAISED, None, "FATAL from PE   39: time_interp_external 2: time after range of list,file=INPUT/temp.nc"),
        (RAISED, None, "     Error in routine cdiaghg (12):\n     problems computing cholesky"),
        (RAISED, 7, "ERROR on proc 7: Bond atoms 3 4 missing on proc 7 at step 9 (src/ntopo_bond_all.cpp:59)"),
        (RAISED, None, "ERROR: Lost atoms: original 4000 current 3999 (../thermo.cpp:481)"),
        (RAISED, None, "### ERROR: get_grid :: Cannot open input grid file 'g.nc'\n Writing emergency history file"),
        (RAISED, None, "[0003] [00012.7] engine.c:engine_rebuild():99: Failed to allocate the tasks."),
        (RAISED, None, "(shr_sys_abort) ERROR: remap transport: negative area"),
        (RAISED, None, "------------- Processor 2 Exiting: Called CmiAbort ------------\nReason: bad message"),
        (RAISED, None, "FATAL:   container creation failed: unable to add /x to mount list"),
        (RAISED, None, "  ***** FATAL ERROR: Model stopped"),
        (RAISED, None, "ERROR worker.py:2] Exception in worker VllmWorkerProcess while processing method load_model."),
    ],
)  # fmt: skip
def test_a_program_says_that_it_ended_and_who_it_was(tmp_path: Path, fault: str, rank: int | None, text: str) -> None:
    answer = of(tmp_path, STEPS + text)
    assert (answer.fault_class, [culprit.rank for culprit in answer.culprits]) == (fault, [rank])


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (STORAGE, "ls: cannot access '/mnt/data': Transport endpoint is not connected"),
        (STORAGE, "stat: cannot statx '/scratch/u': Stale file handle"),
        (STORAGE, "bash: line 3: cd: /mnt/data: Transport endpoint is not connected"),
        (STORAGE, "panic: write /ckpt/model.bin: no space left on device"),
        (STORAGE, 'Error: failed to stat "/var/lib/x": stat /var/lib/x: stale NFS file handle'),
        (STORAGE, "File locking failed in ADIOI_Set_lock(fd 14,cmd F_SETLKW/7,type F_WRLCK/1,whence 0) with return"),
        (STORAGE, "File locking failed in PNCIO_GEN_SetLock(fd 14,cmd F_SETLKW/7,type F_WRLCK/1,whence 0) with"),
        (STORAGE, "    #004: H5FDsec2.c line 653 in H5FD__sec2_read(): file read failed: time = x, filename = 'a.h5'"),
        (STORAGE, "    #001: H5Fint.c line 1519 in H5F_open(): unable to lock the file"),
        (STORAGE, "HDF5-DIAG: Error detected in HDF5 (1.14.0) MPI-process 14:\n" + MOVED),
        ("net_failure", "[n1:71] PMIX ERROR: ERROR in file ptl_tcp.c at line 688"),
        ("net_failure", "[n1:71] OPAL ERROR: Unreachable in file ext3x_client.c at line 112"),
        ("net_failure", "MPIDU_bc_table_create(3): Missing hostname or invalid host/port description in business card"),
        ("net_failure", "[n1:71] 3 more processes have sent help message help-mpi-btl-tcp.txt / client handshake fail"),
        ("net_connection_lost", "Libfabric error: (107) Transport endpoint is not connected"),
        ("gdr_acs", PERFTEST + "Couldn't allocate MR with error=14\nSegmentation fault (core dumped)"),
        ("gpu_hardware", "kernel: amdgpu 0000:e5:00.0: amdgpu: GPU reset(5) succeeded!"),
    ],
)  # fmt: skip
def test_a_line_names_its_fault(tmp_path: Path, fault: str, text: str) -> None:
    assert of(tmp_path, text).fault_class == fault


@pytest.mark.parametrize(
    "text",
    [
        "Couldn't allocate MR",  # of the host's memory: too little may be locked, or something else
        PERFTEST + "local address: LID 0000 QPN 0x0 PSN 0x1",
        "[00035.2] space_rebuild: (re)building space",  # SWIFT's messages
        "NOTE from PE     0: MOM_vert_friction: set CFL limit to    7.701E-02",
        "WARNING from PE     3: NaN in input",
        "[0]PETSC ERROR: Try option -start_in_debugger or -on_error_attach_debugger",
        "forrtl: warning (402): fort: (1): In call to F, an array temporary was created for argument #1",
        "  FATAL ERROR: cannot use the cache\n" + STEPS,  # the program went on
        "kernel: amdgpu 0000:a1:00.0: amdgpu: GPU reset(1) succeeded!\n"
        "kernel: amdgpu 0000:b1:00.0: amdgpu: GPU reset(1) succeeded!",  # of a hive
        "tornado.util.TimeoutError",
        "forrtl: error (78): process killed (SIGTERM)",  # by whom is unknown
        "df: /dev/fuse: Transport endpoint is not connected (ignored)",
    ],
)
def test_another_line_in_such_words_names_nothing(tmp_path: Path, text: str) -> None:
    assert of(tmp_path, text).fault_class == "undetermined"


def test_a_last_fatal_line_that_says_what_failed_is_read_by_what_it_says(tmp_path: Path) -> None:
    assert of(tmp_path, "FATAL: Stale file handle of the data set").fault_class == STORAGE


def test_mpt_names_the_host_in_the_line_below(tmp_path: Path) -> None:
    said = "MPT ERROR: Rank 3(g:3) received signal SIGSEGV(11).\n\tProcess ID: 7, Host: r5i4n2, Program: /x/gadget"
    assert [(culprit.rank, culprit.host) for culprit in of(tmp_path, said).culprits] == [(3, "r5i4n2")]


def test_alps_names_the_node_whose_memory_was_used_up(tmp_path: Path) -> None:
    answer = of(tmp_path, "[NID 04371] 2016-10-19 22:21:28 Apid 23764253: OOM killer terminated this process.")
    assert (answer.fault_class, [culprit.host for culprit in answer.culprits]) == ("rank_killed_sigkill", ["04371"])


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        (f"io.netty.channel.AbstractChannel$Annotated{REFUSED}: master/172.22.0.6:7077", "172.22.0.6"),
        (f"java.net.{REFUSED}: no further information: /10.1.1.9:8031", "10.1.1.9"),
        (f"Call From n1/10.0.0.1 to nn2:9000 failed on connection exception: java.net.{REFUSED}; For more", "nn2"),
        (SPARK.format("10.87.33.41", f"java.net.{REFUSED} (Connection refused)"), ""),  # it reports
        (SPARK.format("10.87.33.41", f"java.net.{REFUSED}: driver/10.87.33.2:7001"), "10.87.33.2"),
    ],
)
def test_java_names_the_address_that_refuses(tmp_path: Path, text: str, peer: str) -> None:
    answer = of(tmp_path, text)
    assert answer.fault_class == "net_connect_refused"
    assert [culprit.peer for culprit in answer.culprits] == [peer]


def test_both_hosts_of_a_pair_that_open_mpi_cannot_connect_are_shown(tmp_path: Path) -> None:
    answer = of(
        tmp_path,
        "At least one pair of MPI processes are unable to reach each other for\nMPI communications.\n\n"
        "  Process 1 ([[7733,0],0]) is on host: kt031\n  Process 2 ([[7733,0],2]) is on host: kt032",
    )
    shown = " ".join(evidence.text for evidence in answer.evidence)
    assert (answer.fault_class, "kt031" in shown, "kt032" in shown) == ("net_failure", True, True)
