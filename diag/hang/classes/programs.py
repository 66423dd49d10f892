"""What programs of high-performance computing, their libraries and runtimes print as they fail: one pattern a program,
from its own source."""

from __future__ import annotations

from diag.hang.classes.base import NAMES_AN_EFFECT, SUGGESTS, WAS_ASKED, LogPattern, confirms

_PETSC = "PETSc 3+; src/sys/error/{} (petsc)"
_FORTRAN = "Intel Fortran 8+, include/for_iosdef.for; the list of its run-time errors"
_STOPPED = "The program ended itself: {message}."

# Codes of Intel Fortran's runtime that report a signal or an exception of the processor
_FORRTL = {11: "157|170", 4: "168", 8: "65|71|72|73|74|75"}
_ABOUT_SIGNALS = "69|76|78|174|" + "|".join(_FORRTL.values())


def of_signal(name: str, number: int, words: str) -> dict[str, LogPattern]:
    """What a process prints itself of the signal that ends it. ``words``: of strsignal."""
    says = f"The process caught a signal: {words}."
    found = {
        f"petsc-{name}": LogPattern(
            (f"PETSC ERROR: Caught signal number {number} ",),
            rf"\[(?P<rank>\d+)\]PETSC ERROR: Caught signal number {number} ",
            _PETSC.format("signal.c"),
            says,
        ),
        # Its stack trace by gdb shows the message as the argument of a call.
        f"mpt-{name}": LogPattern(
            (f"received signal {name.upper()}({number})",),
            r"(?:\bheader=(?:header@entry=)?0x[0-9a-f]+ \")?MPT ERROR: [Rr]ank \d+\(g:(?P<rank>\d+)\) received signal "
            rf"{name.upper()}\({number}\)(?:\.\\n\\tProcess ID: \d+, Host: (?P<host>[\w.-]{{1,253}}),)?",
            "SGI and HPE MPT 2+; sig.c, as its own stack traces name it",
            says,
        ),
        f"runtime-{name}": LogPattern(
            (f"signal {number} (", f"signal ({number}", f"signal {number}: ", f"received signal {name.upper()}: "),
            rf"^(?:\[(?P<pid>\d+)\] )?signal (?:\({number}(?:\.-?\d+)?\)|{number}(?: \(-?\d+\))?): {words}|"
            rf"^Program received signal {name.upper()}: ",
            "Julia 0.3+, src/signal-handling.c; gfortran 4.9+, libgfortran/runtime/compile_options.c",
            says,
            support=NAMES_AN_EFFECT,
        ),
    }
    if number in _FORRTL:
        found[f"forrtl-{name}"] = LogPattern(
            ("forrtl: ",),
            rf"^forrtl: (?:severe|error) \((?:{_FORRTL[number]})\): (?P<message>[^\n]{{1,120}})",
            _FORTRAN,
            "The process ended: {message}.",
            support=NAMES_AN_EFFECT,
        )
    return found


# The texts of PETSc's error codes (PetscErrorStrings), but for that of a signal
_OF_PETSC = (
    "Out of memory", "No support for this operation", "Operation done in wrong order", "Nonconforming object sizes",
    "Argument aliasing not permitted", "Invalid argument", "Argument out of range", "Corrupt argument",
    "Unable to open file", "Read from file failed", "Write to file failed", "Invalid pointer",
    "Arguments must have same type", "Attempt to use a pointer that does not point", "Zero pivot in ",
    "Floating point exception", "Object is in wrong state", "Corrupted Petsc object", "Arguments are incompatible",
    "Error in external library", "Null argument, when expecting valid pointer", "Unknown type. Check for ",
)  # fmt: skip


def _stops(anchors: tuple[str, ...], regex: str, printed_by: str) -> LogPattern:
    return confirms(anchors, regex, printed_by, _STOPPED, SUGGESTS)


# By name, lines that a program prints as it ends itself. Groups: ``message``, and ``rank`` where it is one of the job.
STOPS = {
    "petsc-error": _stops(
        ("PETSC ERROR: ",),
        r"\[(?P<rank>\d+)\]PETSC ERROR: (?P<message>(?:" + "|".join(_OF_PETSC) + r")[^\n]{0,120})",
        _PETSC.format("err.c"),
    ),
    "mpi-handler": _stops(
        ("MPI traceback error handler called by rank:",),
        r"^(?P<message>MPI traceback error handler called by rank:) +(?P<rank>\d+)",
        "ACCESS-OM2's models of OASIS, which set a handler of MPI's errors; error_handler.F90",
    ),
    "model-stops": _stops(
        (
            "FATAL CALLED FROM FILE:", "FATAL from PE", "Error in routine ",
            "(shr_sys_abort) ERROR: ", "Exiting: Called CmiAbort",
        ),
        # The number of a PE is that of a process of one component.
        r"^[\s-]*(?P<message>FATAL CALLED FROM FILE: [^\n]{1,120}|FATAL from PE +\d+: [^\n]{1,200}|"
        r"Error in routine +\S{1,80} \( *-?\d+ *\):|"
        r"\(shr_sys_abort\) ERROR: [^\n]{1,200}|Processor \d+ Exiting: Called CmiAbort\b)",
        "WRF 2+, frame/module_wrf_error.F; FMS, in MOM and GFDL's models, mpp/include/mpp_util_mpi.inc; Quantum "
        "ESPRESSO 4+, UtilXlib/error_handler.f90; CESM and E3SM, "
        "share/util/shr_sys_mod.F90; Charm++ 5+, in NAMD and ChaNGa, src/conv-core/convcore.c",
    ),
    "lammps-error": _stops(
        ("ERROR on proc ", "ERROR: "),
        r"^(?:ERROR on proc (?P<rank>\d+)|ERROR): (?P<message>[^\n]{1,300} \((?:[\w./+-]{1,200}/)?\w{1,80}\.cpp:\d+\))"
        r"\s*$",
        "LAMMPS 2012+; src/error.cpp",
    ),
    "roms-error": _stops(
        ("### ERROR: ",),
        r"^\s*### ERROR: (?P<message>\w{1,60} ?::[^\n]{1,200})",
        "ROMS of UCLA and AGRIF, CROCO; OCEAN/get_init.F, get_grid.F",
    ),
    "swift-error": _stops(
        tuple(f"():{digit}" for digit in range(1, 10)),
        r"^(?:\[\d{4}\] )?\[[\d.]+\] (?P<message>[\w./-]{1,200}\.[ch]:\w{1,100}\(\):\d+: [^\n]{1,200})",
        "SWIFT 0.1+, whose own messages have no number of a line; src/error.h",
    ),
    "fortran-error": _stops(
        ("Fortran runtime error: ", "ERROR STOP", "forrtl: "),
        r"^(?P<message>Fortran runtime error: [^\n]{1,200}|ERROR STOP\b[^\n]{0,120}|"
        rf"forrtl: severe \((?!(?:{_ABOUT_SIGNALS})\))\d+\): [^\n]{{1,200}}|"
        r"forrtl: error \(76\): [^\n]{1,80})",
        f"gfortran 4+; libgfortran/runtime/error.c, stop.c; {_FORTRAN}",
    ),
}  # fmt: skip

# As STOPS, of programs that may print such a line and go on: it says that one ended where nothing follows it.
STOPS_AT_LAST = {
    "last-fatal": _stops(
        ("FATAL", "Fatal error", "CRITICAL ERROR: ", "NetCDF: "),
        r"^[\s*#!>%-]{0,12}(?P<message>(?:FATAL(?: ERROR)?|Fatal error|CRITICAL ERROR)(?: in \S{1,80})?"
        r"(?:: {0,8}|! |, )(?!P?MPI_)\S[^\n]{0,200}|NetCDF: (?:Not a valid ID|Unknown file format|"
        r"(?:Attribute|Variable) not found|Invalid (?:dimension ID or name|argument)|Start\+count exceeds dimension "
        r"bound|Index exceeds dimension bound|HDF error|String match to name in use)\b[^\n]{0,120})",
        "programs that call their own last line fatal: FMS, mpp/include/mpp_util.inc; Apptainer, "
        "pkg/sylog/sylog.go; WRF-Hydro; MPAS 6+, src/framework/mpas_log.F; netCDF 4+, libdispatch/derror.c",
    ),
}

# Lines after which a process raised, without what it raised
RAISED_IN = {
    "worker-raised": confirms(
        ("while processing method ",),
        r"\bException in worker \S{1,80} while processing method \S{1,80}",
        "vLLM 0.4 to 0.8; vllm/executor/multiproc_worker_utils.py",
        "vLLM's worker raised an exception.",
        SUGGESTS,
    ),
    "spawned-raised": confirms(
        ("raise ProcessRaisedException(",),
        r"^\s*raise ProcessRaisedException\(",
        "torch 1.6+; torch/multiprocessing/spawn.py",
        "A process that torch.multiprocessing started raised an exception.",
        SUGGESTS,
    ),
}

PROCESSES = {
    "mpt-process": confirms(
        ("Process ID: ",),
        r"^(?:\d+:)?(?:MPT: )?\s*Process ID: (?P<pid>\d+), Host: (?P<host>[\w.-]{1,253}), Program: ",
        "SGI and HPE MPT 2+; sig.c",
        "MPT says which process it is, on {host}.",
        SUGGESTS,
    ),
}

ASKED = {
    "runtime-told-to-stop": LogPattern(
        ("forrtl: error (78)", "PETSC ERROR: Caught signal number 15 ", "signal (15", "signal 15 ("),
        r"^forrtl: error \(78\): process killed \(SIGTERM\)|PETSC ERROR: Caught signal number 15 |"
        r"^(?:\[\d+\] )?signal (?:\(15(?:\.-?\d+)?\)|15(?: \(-?\d+\))?): Terminated",
        f"{_FORTRAN}; {_PETSC.format('signal.c')}; Julia, src/signal-handling.c",
        "The process was asked to stop (SIGTERM) by its launcher, a scheduler or a person.",
        support=WAS_ASKED,
    ),
}

_ERRORS = r"(?:Transport endpoint is not connected|Stale (?:NFS )?file handle|Input/output error|Remote I/O error)"
_OF_GO = (
    "stale NFS file handle", "no space left on device", "disk quota exceeded", "read-only file system",
    "transport endpoint is not connected", "input/output error",
)  # fmt: skip

STORAGE = {
    # A path stands before the error: it is that of a mount, and not of a connection.
    "mount-gone": LogPattern(
        ("Transport endpoint is not connected", "Stale NFS file handle", "Stale file handle", "Input/output error"),
        r"^(?:-?[\w./-]{1,80}: )(?:line \d+: )?(?:\w{1,20}: )?(?:[a-z][\w' -]{1,40} )?[\u2018'`\"]?"
        rf"(?P<path>/(?!dev/|proc/|sys/)[^\u2019'\"\n:]{{1,255}})[\u2019'\"]?: (?P<error>{_ERRORS})\s*$",
        "GNU coreutils; gl/lib/error.c, with df.c, ls.c and stat.c; bash, error.c",
        "The file system at {path} is gone: {error}.",
    ),
    "go-file-error": LogPattern(
        _OF_GO,
        r"\b(?P<call>open|l?stat|mkdir|write|read|mount|statfs|remove|rename|unlinkat|openat|readdirent|fsync|chmod|"
        rf"chown|truncate|copy_file_range) (?P<path>/[^\s:]{{1,400}}): (?P<error>{'|'.join(_OF_GO)})\b",
        "Go 1+, in Kubernetes and its drivers; io/fs/fs.go (PathError), syscall/zerrors_linux_amd64.go",
        "A file system failed: {error}, {call} {path}.",
        unless=("/dev/shm",),
    ),
    "romio-lock": LogPattern(
        ("File locking failed in ", "ADIOI_Set_lock:", "ADIOI_GEN_SetLock:"),
        r"\bFile locking failed in (?P<call>(?:ADIOI|PNCIO)_\w{3,40})|^(?P<failed>ADIOI_(?:GEN_)?Set_?[Ll]ock\w*)::? ?"
        r"(?P<error>[A-Z][\w ]{3,60})$",
        "ROMIO, in MPICH and Open MPI, and PnetCDF; adio/common/lock.c",
        "The file system gives no lock to MPI's files[: {call} failed][: {failed}, {error}].",
    ),
    "hdf5-file": LogPattern(
        ("(): file read failed", "(): file write failed", "unable to lock file", "unable to lock the file"),
        r"\bin H5\w{2,60}\(\): (?P<message>file (?:read|write) failed[^\n]{0,160}|unable to lock (?:the )?file"
        r"[^\n]{0,160})",
        "HDF5 1.6+; src/H5FDsec2.c, H5FDmpio.c, H5Fint.c",
        "HDF5 could not use a file: {message}.",
        support=NAMES_AN_EFFECT,
    ),
    # What it prints at the top of its stack alone: a filter that is not installed fails so as well.
    "hdf5-data": LogPattern(
        ("can't read data", "can't write data", "can't synchronously read data", "can't synchronously write data"),
        r"\bin H5D(?:read|write|__\w{2,40})\(\): (?P<message>can't (?:synchronously )?(?:read|write) data)",
        "HDF5 1.6+; src/H5D.c, H5Dio.c",
        "HDF5 could not move data: {message}.",
        support=SUGGESTS,
        rivalled=True,
    ),
}

# What refuses, as programs of Java print it with the address. Spark's executor that reports is another host.
REFUSED = {
    "java-refused": LogPattern(
        ("Connection refused: ", "failed on connection exception: "),
        r"ConnectException: Connection refused: (?:no further information: )?(?:[\w.-]{0,253}/)?"
        r"(?P<other>\d{1,3}(?:\.\d{1,3}){3}):(?P<port>\d{1,5})\b|"
        r"\bCall From \S{1,300} to (?P<store>[\w.-]{1,253}):(?P<call>\d{1,5}) failed on connection exception: "
        r"java\.net\.ConnectException: Connection refused\b",
        "netty 4+, in Spark and Flink, transport/src/main/java/io/netty/channel/AbstractChannel.java; Hadoop 2+, "
        "org/apache/hadoop/net/NetUtils.java",
        "[{other}, port {port},][{store}, port {call},] refuses the program's connection.",
        support=NAMES_AN_EFFECT,
    ),
}

LOST = {
    "efa-internal": LogPattern(
        ("Libfabric error: (",),
        r"^Libfabric error: \(\d+\) (?P<error>Transport endpoint is not connected|Connection reset by peer|"
        r"Broken pipe|Software caused connection abort)",
        "libfabric 1.18+; prov/efa/src/efa_base_ep.c (efa_base_ep_write_eq_error)",
        "The EFA provider aborts the process: {error}.",
        support=NAMES_AN_EFFECT,
    ),
}

UNREACHED = {
    "pmix-messages": LogPattern(
        ("PMIX ERROR: ", "OPAL ERROR: "),
        r"PMIX ERROR: (?P<error>[A-Z][\w -]{1,60}) in file (?:\S{1,200}/)?ptl_\w{1,40}\.c\b|"
        r"\bOPAL ERROR: (?P<call>Unreachable|Connection (?:failed|refused)|Communication failure) in file",
        "OpenPMIx 1+, src/mca/ptl/tcp/ptl_tcp.c; Open MPI 2+, opal/runtime/opal_init.c (opal_err2str)",
        "A process cannot reach the server of its launcher: [{error}][{call}].",
        support=NAMES_AN_EFFECT,
    ),
    "mpi-stranger": LogPattern(
        (
            "cannot find a corresponding process",
            "cannot find a corresponding endpoint",
            "the peer process did not complete the",
            "help-mpi-btl-tcp.txt / ",
        ),
        r"(?P<message>cannot find a corresponding (?:process|endpoint)|but the peer process did not complete the|"
        r"help-mpi-btl-tcp\.txt / (?:server (?:accept cannot find guid|cannot find endpoint|did not get guid)|"
        r"client (?:connect|handshake) fail|accept failed))",
        "Open MPI 3+; opal/mca/btl/tcp/help-mpi-btl-tcp.txt",
        "Open MPI took a connection that it cannot relate to a process of the job.",
        support=NAMES_AN_EFFECT,
    ),
    "business-card": LogPattern(
        ("description in business card",),
        r"(?P<message>Missing (?:ifname|hostname|port) or invalid (?:host/port|port|host) description in business "
        r"card)",
        "MPICH 1.1+ and those made of it; src/mpi/errhan/errnames.txt",
        "MPICH has no usable address of the other end: {message}.",
        support=NAMES_AN_EFFECT,
    ),
    "mpi-pair": confirms(
        (" is on host: ",),
        r"^\s*Process \d \(\S+\) is on host: (?P<host>[\w.-]{1,253})\s*$",
        "Open MPI 1.3+; ompi/mca/bml/r2/help-mca-bml-r2.txt",
        "Open MPI names {host} as one of the two that cannot reach each other.",
        SUGGESTS,
    ),
}

# Memory of a GPU that an adapter does not take: perftest prints the one above the other.
GPU_MEMORY = {
    "memory-of-gpu": confirms(
        ("--use_cuda", "--use_rocm", "--use_hl", "allocated GPU buffer address at "),
        r"\bib_\w{2,12}_(?:bw|lat)\b(?:[^\n]{0,300}?(?: -d|--ib-dev)[ =]?(?P<hca>\w{1,40}))?[^\n]{0,300}? "
        r"--use_(?:cuda|rocm|hl)|^allocated GPU buffer address at ",
        "perftest 4.1+; src/perftest_parameters.c, cuda_memory.c, rocm_memory.c",
        "perftest gives the adapter[ {hca}] memory of a GPU.",
        SUGGESTS,
    ),
    "memory-refused": confirms(
        ("Couldn't allocate MR",),
        r"^Couldn't allocate MR\b(?: with error=(?P<number>\d+))?",
        "perftest 1.2+; src/perftest_resources.c",
        "The adapter did not take the memory.",
        SUGGESTS,
    ),
}

GPU_RESET = {
    "amdgpu-reset": confirms(
        ("GPU reset(",),
        r"\bamdgpu (?P<bus_id>[0-9a-fA-F:]{7,}\.[0-7]): (?:amdgpu: )?GPU reset\(\d+\) (?P<how>succeeded|failed)",
        "kernel log of amdgpu, Linux 4.15+; drivers/gpu/drm/amd/amdgpu/amdgpu_device.c",
        "The driver had to reset the GPU at {bus_id}, which {how}.",
    ),
}
