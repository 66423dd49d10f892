"""Sockets: interfaces that are missing or wrong, peers that cannot be reached, connections that end."""

from __future__ import annotations

import re

from diag.hang.classes import programs
from diag.hang.classes.base import NAMES_AN_EFFECT, RAISED, SUGGESTS, UCX, FaultClass, LogPattern, confirms, cut_off

_UNRESOLVED = (
    "Name or service not known",
    "Temporary failure in name resolution",
    "No address associated with hostname",
)
_PEER = r"(?P<peer>[^\s<>]+<\d+>)"
# strerror's texts for errors of socket and verbs calls.
_ERRNO = (
    r"(?:Connection \w+|No route to host|Network is \w+|Host is down|Invalid argument|Operation not \w+|Permission "
    r"denied|Bad (?:address|file descriptor)|Input/output error|Remote I/O error|Resource temporarily unavailable|"
    r"Protocol (?:not available|error)|No such device|Too many open files|Cannot a\w+|Address \w+ not supported|"
    r"Broken pipe|Transport endpoint|Software caused|Function not implemented|No buffer space|Message too long|Device "
    r"or resource busy|Numerical result out|[Tt]imed out|Success|[Uu]nknown error|with error|Value too large|Invalid "
    r"address|Inappropriate ioctl|Interrupted system|No data available)"
)

# strerror's texts where nothing answers, with the characters that tell each from the others where it is cut
_NO_ANSWER = {
    "Connection timed out": len("Connection t"),
    "No route to host": len("No r"),
    "Network is unreachable": len("Network is u"),
    "Host is down": len("Host is d"),
}

# Windows Sockets: number, name behind "WSAE", and the beginning of the text that FormatMessage has for it in English
_WINSOCK = {
    10013: ("ACCES", "An attempt was made to access a socket in a way forbidden by its access permissions"),
    10048: ("ADDRINUSE", "Only one usage of each socket address (protocol/network address/port) is normally permitted"),
    10049: ("ADDRNOTAVAIL", "The requested address is not valid in its context"),
    10051: ("NETUNREACH", "A socket operation was attempted to an unreachable network"),
    10053: ("CONNABORTED", "An established connection was aborted by the software in your host machine"),
    10054: ("CONNRESET", "An existing connection was forcibly closed by the remote host"),
    10060: ("TIMEDOUT", "A connection attempt failed because the connected party did not properly respond"),
    10061: ("CONNREFUSED", "No connection could be made because the target machine actively refused it"),
    10065: ("HOSTUNREACH", "A socket operation was attempted to an unreachable host"),
}


def _of_windows(numbers: tuple[int, ...], says: str) -> LogPattern:
    """Errors of Windows Sockets by text, by name, and by number where a word says whose number it is. torch warns of
    each address of a host name that it cannot use, and goes on with the next one."""
    texts = "|".join(re.escape(_WINSOCK[number][1]) for number in numbers)
    names = "|".join(_WINSOCK[number][0] for number in numbers)
    codes = "|".join(map(str, numbers))
    return LogPattern(
        (
            *(_WINSOCK[number][1] for number in numbers),
            *(f"WSAE{_WINSOCK[number][0]}" for number in numbers),
            *("WinError 10", "Winsock error", "os error 10", "system error: 10", "ocket error", "WSAGetLastError"),
        ),
        rf"(?P<error>{texts}|\bWSAE(?:{names})\b|"
        r"\b(?i:win(?:dows|sock|32)? ?error|os error|system error|socket error|errno|wsagetlasterror)\W{0,5}"
        rf"(?:{codes})\b)",
        "Windows, winsock2.h; Microsoft's list of the error codes of Windows Sockets; Python, torch, Rust, Go",
        says,
        support=NAMES_AN_EFFECT,
        unless=("arning", "etrying", "client socket has failed to connect to ["),
    )


_GRPC_OF_PYTHON = "gRPC for Python; src/python/grpcio/grpc/_channel.py, grpc/aio/_call.py"
_GRPC_CLOSED = r"Socket closed|(?:recvmsg: ?)?Connection reset by peer"


_GRPC_TARGET = "gRPC 1.2 to 1.49, in TensorFlow and Ray; src/core/lib/iomgr/tcp_client_posix.cc, error.cc"


def _of_grpc_target(why: str) -> str:
    """An error of gRPC as it prints one with all that it knows: a JSON object with its fields in their order."""
    return (
        rf'"os_error":"(?P<error>{why})",(?:"[^"\n]{{1,40}}":"?[^",\n]{{0,200}}"?,){{0,4}}"target_address":"ipv[46]:'
        r'(?P<other>\[[0-9a-fA-F:]+\]|[\d.]{7,15}):(?P<port>\d+)"'
    )


# The numbers of families of addresses (AF_MAX is 46 or less); Linux, include/linux/socket.h
_OF_LINUX = r"(?:[1-3]?\d|4[0-5])"


def _of_rpc(why: str) -> str:
    """A request of torch.distributed.rpc that the other worker did not get, or did not answer."""
    return (
        r"\bRPC agent for (?P<asks>\S{1,128}) encountered error when (?:sending outgoing request #\d+ to|reading "
        rf"incoming response from) (?P<worker>\S{{1,128}}): (?P<rpc>{why})"
    )


_RPC_ANCHORS = ("RPC agent for ",)
_RPC_SOURCE = "torch 1.6+; torch/csrc/distributed/rpc/tensorpipe_agent.cpp, tensorpipe/transport/uv/error.cc"


def _of_mpi(why: str) -> str:
    """A connection of MPICH, Open MPI, UCX or gloo that failed."""
    return (
        rf"Communication error with rank (?P<peer_rank>\d+): (?:{why})|"
        rf"btl_tcp_endpoint\.c:\d+:\w+\] connect\(\) to (?P<other>[\w.-]+)(?::(?P<port>\d+))? failed: (?:{why})|"
        rf"{UCX}UCX +ERROR +(?:connect\(fd=\d+, dest_addr=|Failed to connect \w+ to )(?P<any>[\w.-]+):(?P<any_port>\d+)"
        rf"[^\n]{{0,40}}?(?:{why})|"
        rf"gloo/transport/tcp/pair\.cc:\d+\] connect \[(?P<store>[^\]\s]+)\]:(?P<store_port>\d+): (?:{why})"
    )


_SSH_STEPS = (
    "Run the launcher's own test from the host that starts the job: {ssh} with the "
    "name as the hostfile has it. Mend the name (DNS, /etc/hosts), the port of sshd, or "
    "the key.",
    "Without ssh: start the launcher on every host itself (torchrun, or `deepspeed --no_ssh`).",
)
_OF_SSH = r"ssh: connect to host (?P<store>\S{{1,255}}) port (?P<port>\d+): (?P<error>{0})"
_NO_ANSWER_OF_SSH = "(?:Connection|Operation) timed out|No route to host|Host is down|Network is unreachable"

_MPI_ANCHORS = ("Communication error with rank ", "mca_btl_tcp_endpoint_", "UCX  ERROR", "pair.cc:")
_MPI_SOURCE = (
    "MPICH 1.1+, src/mpid/ch3/channels/nemesis/netmod/tcp; Open MPI 1.3+, opal/mca/btl/tcp/btl_tcp_endpoint.c; "
    "UCX 1.3+, src/ucs/sys/sock.c; gloo, gloo/transport/tcp/pair.cc"
)

# How an exception of an HTTP client begins that nobody caught: what is tried again is printed in other words.
_OF_HTTP = (
    r"^(?:requests|urllib3)\.exceptions\.\w{1,40}: [^\n]{0,60}?HTTPS?ConnectionPool\(host='(?P<store>[\w.-]{1,253})', "
    r"port=(?P<port>\d{1,5})\)"
)
_HTTP_STEPS = (
    "On the host that complains: does `curl -I` of that server answer, with the proxy that the job has (HTTPS_PROXY)?",
    "Download the model and the data before the job starts, so that no rank needs a server outside "
    "(HF_HUB_OFFLINE=1 for the Hugging Face Hub).",
)
_HTTP_SOURCE = "urllib3 1.20+, under requests; src/urllib3/connectionpool.py, exceptions.py"

CLASSES = (
    FaultClass(
        id="net_no_interface",
        title="no network interface that can be used was found",
        priority=2,
        by_line=True,
        next_steps=(
            "On {host}: compare NCCL_SOCKET_IFNAME with `ip -br a`; the variable takes prefixes, `=eth0` is exact, "
            "`^docker` excludes.",
        ),
        rules_out={"net_connect_timeout": "there was no local address to connect from"},
        patterns={
            "bootstrap-no-interface": LogPattern(
                ("no socket interface found", "No socket interface found"),
                r"Bootstrap ?: ?[Nn]o socket interface found",
                "all; bootstrap.cc:130",
                "NCCL_SOCKET_IFNAME matches no interface of this host.",
            ),
            "nvshmem-no-interface": LogPattern(
                ("bootstrap_net_init:",),
                r"\bbootstrap_net_init:\d+: No (?:socket|usable listening) interface found",
                "NVSHMEM 2.10+; src/modules/bootstrap/uid/bootstrap_uid.cpp",
                "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME and NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY match no interface of this "
                "host.",
            ),
            "net-no-interface": LogPattern(
                ("no interface found", "No interface found"),
                r"(?:NET/Socket|NET/IB|Bootstrap) ?: ?[Nn]o (?:usable )?interface found",
                "all; transport/net_socket.cc:62",
                "NCCL_SOCKET_IFNAME matches no interface of this host.",
            ),
            "gloo-no-interface": LogPattern(
                ("nable to find interface for", "nable to find address for"),
                r"(?<!rp != nullptr\. )[Uu]nable to find (?:interface|address) for:? \[?(?P<wanted>[^\]\s]+)",
                "torch 1.x+; gloo/transport/tcp/device.cc",
                "gloo finds no interface for {wanted}: GLOO_SOCKET_IFNAME or the address of this host's name.",
            ),
            "no-matching-device": LogPattern(
                ("no device found matching", "no device found after excluding"),
                r"no device found (?:matching|after excluding) (?P<wanted>.+?)(?:, |$)",
                "2.23+; bootstrap.cc:582",
                "No device of this host matches {wanted}.",
            ),
            "family": LogPattern(
                ("is neither AF_INET",),
                rf"with family (?!0 ){_OF_LINUX} is neither AF_INET",
                "2.12+; misc/socket.cc:538",
                "The address has no family that NCCL can use.",
                support=SUGGESTS,
            ),
            "socket-creation": LogPattern(
                ("Socket creation failed : Address family not supported",),
                printed_by="old; misc/socket.cc",
                says="The host does not support the address's family.",
            ),
        },
    ),
    FaultClass(
        id="net_wrong_interface",
        title="an interface is used that does not reach the other hosts",
        priority=2,
        by_line=True,
        speaker_is_culprit=False,
        next_steps=(
            "Set NCCL_SOCKET_IFNAME on every host to the interface that the hosts share (`ip -br a`), for example "
            "NCCL_SOCKET_IFNAME=eth0; for torch's own stores also GLOO_SOCKET_IFNAME.",
        ),
        if_read={
            ("connect() to ",): (
                "Give Open MPI the network that the hosts share (`ip -br a`): mpirun --mca btl_tcp_if_include "
                "10.0.0.0/24, for example. Without it Open MPI tries the addresses of all interfaces.",
            ),
        },
        rule="A Bootstrap or NET/Socket line lists a bridge, a tunnel, a link-local address or the loopback, or the "
        "hosts list different subnets, and connections then fail.",
        rules_out={
            "net_connect_timeout": "the address that does not answer belongs to an interface of one host only",
            "net_connect_refused": "the address that refuses belongs to an interface of one host only",
        },
        patterns={
            "gloo-families": LogPattern(
                ("ss1.ss_family == ss2.ss_family",),
                r"ss1\.ss_family == ss2\.ss_family(?:\. (?P<here>\d+) vs (?P<there>\d+))?",
                "torch 1.x+; gloo/transport/tcp/pair.cc",
                "One side has an IPv4 address and the other one an IPv6 address (ss1.ss_family == ss2.ss_family).",
            ),
            "loopback-fallback": confirms(
                ("Using the loopback", "using the loopback", "loopback address as fallback"),
                r"(?:\[rank(?P<rank>\d{1,6})\] [^\n]{0,200}?)?(?i:\busing the loopback\b|"
                r"\bloopback address as fallback\b)",
                "torch 1.8+; torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (createDefaultDevice)",
                "The host's name leads to no address of its own, so the loopback is used.",
                SUGGESTS,
            ),
            "loopback-peer": confirms(
                ("[127.0.0.1]", "[127.0.1.1]", "to 127.0.0.1", "=127.0.0.1", "[::1]", "remote=[localhost]"),
                r"(?:\bremote=|\bdest_addr=|\b[Cc]onnect\w* (?:to )?)\[?(?:127(?:\.\d{1,3}){3}|::1|localhost)\b",
                "gloo, gloo/transport/tcp/error.cc; c10d, socket.cpp; UCX, src/ucs/sys/sock.c",
                "A connection goes to the loopback.",
                SUGGESTS,
            ),
            "dials-loopback": confirms(
                (", local=[127.", ", local=[::1]"),
                r"\brank=(?P<rank>\d{1,6}), size=(?P<size>\d{1,6}), local=\[(?:127(?:\.\d{1,3}){3}|::1)\]",
                "gloo of torch 2.4+; gloo/transport/tcp/debug_data.h, helpers.cc",
                "Rank {rank} of {size} connects to a peer at the loopback: that is the address that the peer gave, as "
                "where /etc/hosts has the loopback for the host's name.",
                SUGGESTS,
            ),
            "bootstrap-using": confirms(
                ("Bootstrap : Using", "Bootstrap: Using"),
                r"Bootstrap ?: Using (?P<interfaces>.+)",
                "all; without a blank from 2.24; bootstrap.cc:137",
                "NCCL uses {interfaces}.",
                SUGGESTS,
            ),
            "interface-using": confirms(
                ("Using interface ",),
                r"NET(?:/\w+)? : Using interface (?P<interfaces>\S+:\S+<\d+>)",
                "<= 2.3; transport/net_socket.cu",
                "NCCL uses {interfaces}.",
                SUGGESTS,
            ),
            "socket-using": confirms(
                ("NET/Socket : Using",),
                r"NET/Socket : Using (?P<interfaces>.+)",
                "all; transport/net_socket.cc:78",
                "NCCL uses {interfaces}.",
                SUGGESTS,
            ),
            "ib-oob": confirms(
                ("; OOB ",),
                r"NET/IB : Using.*; OOB (?P<interfaces>.+)",
                "all; transport/net_ib/init.cc:385",
                "NCCL uses {interfaces} in addition to InfiniBand.",
                SUGGESTS,
            ),
        },
    ),
    FaultClass(
        id="net_connect_timeout",
        title="an address does not answer",
        priority=2,
        next_steps=(
            "Look at {where}: is its process alive, and does a firewall drop packets? {nc} from the "
            "host that complains; NCCL needs all high ports open between the hosts.",
            "If it is not the address to use, set NCCL_SOCKET_IFNAME.",
        ),
        if_read={("ssh: ",): _SSH_STEPS, ("ConnectionPool(host='",): _HTTP_STEPS},
        patterns={
            "ssh-no-answer": LogPattern(
                ("ssh: connect to host",),
                _OF_SSH.format(_NO_ANSWER_OF_SSH),
                "any; OpenSSH, sshconnect.c, ssh.c",
                "ssh got no answer from {store}, port {port}: {error}.",
            ),
            "windows-no-answer": _of_windows((10051, 10060, 10065), "A connection got no answer: {error}."),
            "connect-timed-out": LogPattern(
                (
                    "returned Connection timed out",
                    "returned No route to host",
                    "returned Network is unreachable",
                    "returned Host is down",
                ),
                rf"connect (?:to {_PEER} )?returned (?:Connection timed out|No route to host|Network is unreachable|"
                r"Host is down)(?P<final>, exceeded)?",
                "all; with the address from 2.24; misc/socket.cc:470 (v2.18.3), os/linux.cc:221",
                "A connection[ to {peer}] got no answer.",
                support=NAMES_AN_EFFECT,
            ),
            "kubectl-timed-out": LogPattern(
                ("Unable to connect to the server: ",),
                r"Unable to connect to the server: (?:dial tcp (?P<peer>[^\s:]+(?::\d+)?): )?(?:[\w/ :.]{0,80})?"
                r"(?:i/o timeout|[Cc]onnection timed out|TLS handshake timeout|no route to host)",
                "kubectl; k8s.io/kubectl, pkg/cmd/util/helpers.go",
                "The server of Kubernetes[, {peer},] did not answer.",
            ),
            "http-no-answer": LogPattern(
                ("ConnectionPool(host='",),
                rf"{_OF_HTTP}(?:: Read timed out\b|[^\n]{{0,400}}?(?:ConnectTimeoutError\(|\[Errno (?:101|110|113)\]))",
                _HTTP_SOURCE,
                "The server {store}, port {port}, did not answer.",
                support=NAMES_AN_EFFECT,
            ),
            "exceeded-timeouts": LogPattern(
                ("exceeded timeouts",),
                r"socket\w*Connect: exceeded timeouts",
                "<= 2.23; misc/socket.cc:475 (v2.18.3)",
                "NCCL gave up connecting after time-outs.",
            ),
            "connection-abort": LogPattern(
                ("failed : Software caused connection abort",),
                rf"Connect to {_PEER} failed : Software caused connection abort",
                "<= 2.23, hides a refusal or a time-out (nccl#1515); misc/socket.cc",
                "Connecting to {peer} failed; this version hides whether it was refused or not answered.",
                support=SUGGESTS,
            ),
            "connect-failed-timeout": LogPattern(
                ("Connection timed out", "No route to host", "Network is unreachable", "Host is down", "Connect to "),
                rf"(?:Connect to {_PEER} (?:failed|returned) ?:? ?(?:\d+\()?|Call to connect "
                rf"failed ?: ?)(?:{'|'.join(text + '|' + cut_off(text, least) for text, least in _NO_ANSWER.items())})",
                "all; misc/socket.cc",
                "Connecting[ to {peer}] timed out or found no route.",
            ),
            "mpi-no-answer": LogPattern(
                _MPI_ANCHORS,
                _of_mpi("Connection timed out|No route to host|Network is unreachable|Host is down"),
                _MPI_SOURCE,
                "A connection[ to rank {peer_rank}][ to {other}][ to {any}][ to {store}] got no answer.",
                support=NAMES_AN_EFFECT,
            ),
            "ompi-connect": LogPattern(
                ("connect() to ",),
                r"^\s*Message: +connect\(\) to (?P<other>[\w.-]+):(?P<port>\d+) failed",
                "Open MPI 2+; opal/mca/btl/tcp/help-mpi-btl-tcp.txt",
                "Open MPI could not connect to {other}, port {port}.",
                support=SUGGESTS,
            ),
            "jax-no-answer": LogPattern(
                ("CoordinationService/RegisterTask", "agent in error status: DEADLINE_EXCEEDED"),
                r"while calling /tensorflow\.CoordinationService/RegisterTask|"
                r"agent in error status: DEADLINE_EXCEEDED: Deadline Exceeded",
                "JAX 0.4+, TensorFlow 2.9+; xla/tsl/distributed_runtime/coordination/coordination_service_agent.cc",
                "The coordination service of JAX, which process 0 serves, does not answer a process that registers.",
                support=SUGGESTS,
                unless=("Barrier", "UNAVAILABLE"),
            ),
            "gloo-connect-timeout": LogPattern(
                ("Connect timeout [",),
                r"Connect timeout \[(?P<other>[^\]\s]+)\]:(?P<port>\d+)",
                "torch 1.x+; gloo/transport/tcp/pair.cc",
                "gloo got no answer from {other}, port {port}.",
            ),
            "grpc-no-answer": LogPattern(
                ("Failed to connect to remote host", "timed out before receiving SETTINGS frame"),
                r"ipv[46]:(?P<other>\[[0-9a-fA-F:]+\]|[\d.]{7,15}):(?P<port>\d+): (?:connection attempt timed out "
                r"before receiving SETTINGS frame|Failed to connect to remote host: (?:connect: |"
                r"getsockopt\(SO_ERROR\): )?(?:FD Shutdown|Timeout occurred|Connection timed out|No route to host|"
                r"Host is down))",
                "gRPC 1.38+, in JAX, TensorFlow and Ray; src/core/lib/iomgr/tcp_client_posix.cc, "
                "src/core/ext/transport/chttp2/client/chttp2_connector.cc",
                "{other}, port {port}, does not answer gRPC.",
                support=NAMES_AN_EFFECT,
            ),
            "grpc-target-silent": LogPattern(
                ('"target_address":"ipv',),
                _of_grpc_target("Connection timed out|No route to host|Host is down|Network is unreachable"),
                _GRPC_TARGET,
                "{other}, port {port}, does not answer gRPC: {error}.",
                support=SUGGESTS,  # it is tried again, as while the others start
            ),
            "grpc-deadline": LogPattern(
                ("status = StatusCode.DEADLINE_EXCEEDED",),
                r"^\s*status = StatusCode\.DEADLINE_EXCEEDED\b",
                _GRPC_OF_PYTHON,
                "The other end of a call of gRPC did not answer before its deadline.",
                support=SUGGESTS,
            ),
            "python-no-answer": LogPattern(
                (
                    "Connection timed out",
                    "No route to host",
                    "Network is unreachable",
                    "Host is down",
                    "ETIMEDOUT",
                    "EHOSTUNREACH",
                    "ENETUNREACH",
                    "EHOSTDOWN",
                ),
                r"^(?:TimeoutError|OSError): \[Errno (?:110|113|101|112)\] (?P<error>Connection timed out|No route "
                r"to host|"
                r"Network is unreachable|Host is down)\s*$|^RuntimeError: (?P<why>No route to host|Network is "
                rf"unreachable)\s*$|{RAISED}(?P<name>ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|EHOSTDOWN)\b",
                "any Python, Modules/socketmodule.c; torch 1.0 to 1.8, torch/lib/c10d/Utils.hpp; libuv, "
                "src/uv-common.c",
                "A connection got no answer[: {error}][: {why}][: {name}], and the address is not printed.",
                support=NAMES_AN_EFFECT,
            ),
            "rpc-no-answer": LogPattern(
                _RPC_ANCHORS,
                _of_rpc("ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|EHOSTDOWN"),
                _RPC_SOURCE,
                "A request of {asks} got no answer from {worker}: {rpc}.",
                support=NAMES_AN_EFFECT,
            ),
            "others-no-answer": LogPattern(
                ("Timed out trying to connect to tcp://", "Failed to connect to GCS at address ", "[LightGBM] "),
                r"Timed out trying to connect to '?tcp://(?P<other>[\w.-]+):(?P<port>\d+)'? after|"
                r"Failed to connect to GCS at address (?P<store>[\w.-]+):(?P<store_port>\d+)|"
                r"\[LightGBM\] \[Fatal\] Connecting to rank (?P<peer_rank>\d+) failed",
                "Dask 2+, distributed/comm/core.py; Ray 2+, src/ray/gcs/gcs_client; LightGBM 2+, "
                "src/network/linkers_socket.cpp",
                "No answer[ from {other}, port {port}][ from {store}, port {store_port}][ from rank {peer_rank}].",
                support=SUGGESTS,
            ),
            "store-connect-timed-out": LogPattern(
                (
                    "client socket has timed out after",
                    "client socket has failed to connect to",
                    "connect() timed out",
                    "RuntimeError: Connection timed out",
                ),
                r"^RuntimeError: Connection timed out\s*$|[Tt]he client socket has timed out after (?P<after>\S+) "
                r"while trying to connect to "
                r"\(?(?P<store>[^,()\s]+?)(?:, |:)(?P<port>\d+)\)?|failed to connect to \[?(?P<other>[^\]\s,]+?)\]?:"
                r"(?P<other_port>\d+) \((?:errno: 11[03]|system error: 100(?:60|65|51)|[^)]*(?:timed out|"
                r"No route))|connect\(\) timed out|"
                r"failed to connect to any network address of \((?P<any>[^,()\s]+), (?P<any_port>\d+)\)",
                "torch 1.0+; torch/lib/c10d/Utils.hpp, socket.cpp",
                "Nothing answers[ at {store}, port {port}][ at {other}, port {other_port}][ at {any}, port {any_port}]"
                "[ within {after}]: the store of the job, which its first process serves.",
                support=NAMES_AN_EFFECT,
            ),
        },
    ),
    FaultClass(
        id="net_connect_refused",
        title="an address refuses connections",
        priority=2,
        next_steps=(
            "Look at {where}: the host answers, but nothing listens there. Did the process exit, or start after the "
            "retries ran out? `ss -ltnp` there, and the first error in its log.",
        ),
        if_read={("ssh: ",): _SSH_STEPS},
        patterns={
            "ssh-connection-refused": LogPattern(
                ("ssh: connect to host",),
                _OF_SSH.format("Connection refused"),
                "any; OpenSSH, sshconnect.c, ssh.c",
                "Nothing takes ssh's connection to {store}, port {port}.",
            ),
            "windows-refused": _of_windows((10061,), "A connection was refused: {error}."),
            "exceeded-retries": LogPattern(
                ("exceeded retries",),
                r"socket\w*Connect: exceeded retries",
                "<= 2.23; misc/socket.cc:466 (v2.18.3)",
                "NCCL gave up connecting after refusals.",
            ),
            "refused-at-last": LogPattern(
                ("returned Connection refused, exceeded error retry count",),
                rf"connect (?:to {_PEER} )?returned Connection refused, exceeded error retry count",
                "2.24+; with the address from 2.27; os/linux.cc:221",
                "A connection[ to {peer}] was refused on every retry.",
            ),
            "connect-failed-refused": LogPattern(
                ("Connection refused",),
                rf"(?:Connect to {_PEER} (?:failed|returned) ?:? ?(?:\d+\()?|Call to connect failed ?: "
                rf"?)Connection refused",
                "all; misc/socket.cc",
                "The connection[ to {peer}] was refused.",
            ),
            "mpi-refused": LogPattern(
                _MPI_ANCHORS,
                _of_mpi("Connection refused"),
                _MPI_SOURCE,
                "A connection[ to rank {peer_rank}][ to {other}][ to {any}][ to {store}] was refused.",
            ),
            "store-refused": confirms(
                ("errno: 111", "(errno: 61", "system error: 10061"),
                r"failed to connect to \[?(?P<other>[^\]\s,]+?)\]?:(?P<port>\d+) \((?:errno: (?:111|61)|system error: "
                r"10061)",
                "torch 1.9+; socket.cpp",
                "{other}, port {port}, refuses: nothing serves the store there (yet).",
                SUGGESTS,
            ),
            "grpc-refused": LogPattern(
                ("Failed to connect to remote host", "onnection refused"),
                r"ipv[46]:(?P<other>\[[0-9a-fA-F:]+\]|[\d.]{7,15}):(?P<port>\d+): (?:Failed to connect to remote host: "
                r")?(?:connect: |getsockopt\(SO_ERROR\): )?Connection refused",
                "gRPC 1.38+, in JAX, TensorFlow and Ray; src/core/lib/iomgr/tcp_client_posix.cc",
                "{other}, port {port}, refuses gRPC's connection.",
                support=NAMES_AN_EFFECT,
            ),
            "grpc-target-refused": LogPattern(
                ('"target_address":"ipv',),
                _of_grpc_target("Connection refused"),
                _GRPC_TARGET,
                "{other}, port {port}, refuses gRPC's connection.",
                support=SUGGESTS,  # it is tried again, as while the others start
            ),
            "program-refused": LogPattern(
                ("onnection refused",),
                r"(?:\bERROR|\b[Ee]rror|\b[Ff]ail(?:ed|ure)?|\b[Cc]ould not|\b[Uu]nable|\b[Cc]annot)(?: to)? "
                r"connect(?:ing)? to \[?(?P<other>[\w-]+(?:\.[\w-]+)+|[0-9a-fA-F]*(?::[0-9a-fA-F]*){2,7})\]?"
                r"(?:(?::|[: ]+port )(?P<port>\d+))?: Connection refused\b",
                "PaddlePaddle 0.10, paddle/pserver/LightNetwork.cpp; brpc, src/brpc/socket.cpp; programs that print "
                "what connect() returned",
                "{other}[, port {port},] refuses the program's connection.",
                support=NAMES_AN_EFFECT,
                unless=("NCCL", "ssh: "),
            ),
            "exception-refused": LogPattern(
                ("onnection refused", "ECONNREFUSED"),
                # Python's own ConnectionRefusedError is that of any server, and of workers of a loader that has ended.
                rf"{RAISED}ECONNREFUSED\b|"
                r"^(?:torch\.distributed\.)?(?:RuntimeError|Dist\w{1,20}Error): (?:\[Errno \d+\] )?"
                r"Connection refused\.?\s*$",
                "libuv, src/uv-common.c, under TensorPipe and uvloop; torch 1.0+, "
                "torch/csrc/distributed/c10d/Utils.hpp",
                "A connection was refused, and the address is not printed.",
                support=SUGGESTS,
            ),
            **programs.REFUSED,
            "rpc-refused": LogPattern(
                _RPC_ANCHORS,
                _of_rpc("ECONNREFUSED"),
                _RPC_SOURCE,
                "{worker} refuses the connection of {asks}.",
                support=NAMES_AN_EFFECT,
            ),
            "refused-retrying": confirms(
                ("returned Connection refused, retrying",),
                rf"connect (?:to {_PEER} )?returned Connection refused, retrying",
                "all; with the address from 2.24; misc/socket.cc:470 (v2.18.3), os/linux.cc:226",
                "A refused connection that NCCL retries: usual while other ranks start.",
                SUGGESTS,
            ),
        },
    ),
    FaultClass(
        id="net_connection_lost",
        title="a connection was lost",
        priority=2,
        closed_at_end=True,
        lost_with_process=True,
        context=("lost communication with its daemon",),
        next_steps=(
            "Find the first error on {where}, which precedes the other ranks' complaints. Its log with "
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,BOOTSTRAP, and `dmesg -T` of that host.",
        ),
        if_read={
            ("Socket closed", "grpc_message", "RPC agent for ", "ECONNRESET", "ECONNABORTED", "EPIPE"): (
                "Find the first error on {where}: a process that ends closes its connections, so look at the end of "
                "its log before this moment, and at `dmesg -T` of that host.",
            ),
        },
        patterns={
            "windows-closed": _of_windows((10053, 10054), "The connection was closed: {error}."),
            "call-failed": LogPattern(
                ("Call to recv", "Call to send", "Call to read", "Call to write", "socketProgress"),
                rf"(?:Call to (?:recv|send|read|write)\w{{0,8}}(?: (?:from|to) {_PEER})?|socketProgress\w{{0,20}}: "
                rf"[\w ]{{0,40}}?) ?(?:failed|returned) ?:? ?(?P<error>Connection timed out|Connection refused|"
                rf"Connection reset(?: by peer)?|Broken pipe|No route to host|Transport endpoint is not connected|"
                rf"Software caused connection abort)",
                "all; with the address from 2.16; misc/socket.cc:289 (ProgressOpt)",
                "The connection[ to {peer}] ended: {error}.",
                support=SUGGESTS,
            ),
            "gloo-connection": LogPattern(
                ("Read error [", "Write error ["),
                r"(?:Read|Write) error \[(?P<peer>[^\]\s]+)\]:\d+: (?P<error>Connection reset by peer|Connection "
                r"timed out|Broken pipe|No route to host)",
                "torch 1.x+; gloo/transport/tcp/pair.cc",
                "gloo's connection to {peer} ended: {error}.",
                support=SUGGESTS,
            ),
            "gloo-closed": LogPattern(
                ("Connection closed by peer [",),
                r"Connection closed by peer \[(?P<peer>[^\]\s]+)\]",
                "torch 1.x+; gloo/transport/tcp/pair.cc",
                "gloo's peer {peer} closed the connection.",
                support=SUGGESTS,
            ),
            "c10d-connection": LogPattern(
                (
                    "Connection reset by peer",
                    "Broken pipe",
                    "ailed to recv, got 0 bytes",
                    "ECONNRESET",
                    "ECONNABORTED",
                    "EPIPE",
                ),
                r"^(?:torch\.distributed\.)?(?:RuntimeError|Dist\w{1,20}Error): (?:\[Errno \d+\] )?"
                r"(?P<error>Connection reset by peer|Broken pipe|[fF]ailed to recv, got 0 bytes)\.?\s*$|"
                rf"{RAISED}(?P<name>ECONNRESET|ECONNABORTED|EPIPE)\b",
                "torch 1.0+; torch/csrc/distributed/c10d/Utils.hpp, socket.cpp; libuv, src/uv-common.c",
                "A connection to another process ended[: {error}][: {name}].",
                support=SUGGESTS,
            ),
            "rpc-lost": LogPattern(
                _RPC_ANCHORS,
                _of_rpc("ECONNRESET|ECONNABORTED|EPIPE|EOF"),
                _RPC_SOURCE,
                "{asks} lost its connection to {worker}: {rpc}.",
                support=SUGGESTS,
                unless=("expected to happen during shutdown",),
            ),
            "grpc-closed": LogPattern(
                ("Socket closed", "Connection reset by peer"),
                rf"\b(?:UnavailableError|UNAVAILABLE|Unavailable): (?:From /job:(?P<job>\w+)/replica:\d+/task:"
                rf"(?P<task>\d+): ?)?(?P<error>{_GRPC_CLOSED})|"
                rf"peer ipv[46]:(?P<other>\[[0-9a-fA-F:]+\]|[\d.]{{7,15}}):(?P<port>\d+)[^\n]{{0,300}}grpc_message"
                rf"\W{{2,6}}(?P<said>{_GRPC_CLOSED})",
                "gRPC 1.0+, in TensorFlow and JAX; src/core/lib/iomgr/tcp_posix.cc",
                "gRPC's connection to another process ended[: {error}][: {said}].",
                support=SUGGESTS,
            ),
            "grpc-status": confirms(
                ("status = StatusCode.",),
                r"^\s*status = StatusCode\.(?P<status>UNAVAILABLE|CANCELLED)\b",
                _GRPC_OF_PYTHON,
                "A call of gRPC ended as {status}.",
                SUGGESTS,
            ),
            "grpc-target": confirms(
                ("from remote target /job:", "Error received from peer "),
                r"from remote target /job:(?P<job>\w+)/replica:\d+/task:(?P<task>\d+)|"
                r"(?:\\?\"description\\?\":\\?\")?Error received from peer +ipv[46]:"
                r"(?P<other>\[[0-9a-fA-F:]+\]|[\d.]{7,15}):(?P<port>\d+)",
                "TensorFlow 1.15+; tensorflow/core/distributed_runtime/rpc/grpc_util.cc; gRPC, "
                "src/core/lib/surface/call.cc",
                "The other end of the call was[ task {task} of {job}][ {other}, port {port}].",
                SUGGESTS,
            ),
            "mpi-peer": confirms(
                ("Peer host:",),
                r"^\s*Peer host: +(?P<host>[\w.-]+)",
                "Open MPI 1.8+; opal/mca/btl/tcp/help-mpi-btl-tcp.txt",
                "Open MPI's connection to a process on {host} ended without a word from that process.",
            ),
            "mpi-rank-lost": confirms(
                ("Communication error with rank ",),
                r"Communication error with rank (?P<peer_rank>\d+)\s*$",
                "MPICH 1.1+; src/mpid/ch3/channels/nemesis/netmod/tcp/socksm.c",
                "MPICH lost its connection to rank {peer_rank}.",
            ),
            "machine-lost": confirms(
                (">CallMethod<CtrlMethod::kLoadServer>(",),
                r"\bCallMethod<CtrlMethod::kLoadServer>\([^\n]{0,200}\bMachine (?P<peer_rank>\d+) lost\b",
                "OneFlow 0.6+; oneflow/core/control/ctrl_client.cpp (the heartbeat to each process)",
                "OneFlow lost its connection to process {peer_rank}.",
            ),
            "daemon-lost": confirms(
                ("Remote daemon:", "  hostname:  "),
                r"Remote daemon: +\[\S+\] on node (?P<host>[\w.-]+)|^\s{2,4}hostname: {2,}(?P<node>[\w.-]+)\s*$",
                "Open MPI 1.6+, PRRTE; orte/mca/errmgr/base/help-errmgr-base.txt",
                "mpirun lost its daemon[ on {host}][ on {node}]: that host or its network is gone, or the daemon was "
                "killed.",
            ),
            **programs.LOST,
            "ucx-connection": LogPattern(
                ("UCX  ERROR", "UCX  DIAG", "UCX  WARN"),
                UCX + r"(?:\S+:\d+ +)?UCX +(?:ERROR|DIAG|WARN) +[^\n]{0,200}?(?P<error>Connection reset by (?:remote "
                r")?peer|"
                r"Endpoint timeout|Endpoint is not connected|Broken pipe)",
                "UCX 1.9+; src/ucp/core/ucp_ep.c, ucp_worker.c, src/uct/tcp/tcp_ep.c",
                "UCX lost a connection: {error}.",
                support=SUGGESTS,
            ),
            "lightgbm-connection": LogPattern(
                ("[LightGBM] [Fatal] Socket ",),
                r"\[LightGBM\] \[Fatal\] Socket (?:recv|send) error, (?P<error>[^\n(]{1,60})",
                "LightGBM 2+; src/network/socket_wrapper.hpp",
                "LightGBM lost a connection: {error}.",
                support=SUGGESTS,
            ),
            "closed-by-peer": LogPattern(
                ("Connection closed by remote peer", "Connection closed by peer"),
                rf"(?:WARN|Net ?:|NET/\w+ ?:|socket\w*:).{{0,80}}?Connection closed by (?:remote )?peer(?: {_PEER})?",
                "2.4+; with the address from 2.12; misc/socket.cc:35",
                "The peer[ {peer}] closed the connection.",
                support=SUGGESTS,
            ),
        },
    ),
    FaultClass(
        id="net_bind_failed",
        title="an address or a port is not available",
        priority=2,
        by_line=True,
        next_steps=(
            "Port in use: {ss} on {host} shows who listens on it; end the old job, choose another port "
            "(MASTER_PORT, --master-port), or port 0 (torchrun --standalone).",
            "Address of another host: compare MASTER_ADDR, NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY with `ip -br a`.",
        ),
        if_read={
            ("Permission denied",): (
                "Ports below 1024 are reserved for root: choose one from 1024 upwards (MASTER_PORT, --master-port), or "
                "port 0 (torchrun --standalone).",
                "If the port is higher: a policy forbids it (SELinux, the container's profile), not another process.",
            ),
        },
        rules_out={
            "rank_killed_exception": "the exception says that the port or address is not available",
            "net_connection_lost": "connections close when the process that met the error ends",
        },
        patterns={
            "windows-bind": _of_windows((10013, 10048, 10049), "An address could not be bound: {error}."),
            "hccl-listen": LogPattern(
                ("and specific port[",),
                r"\blisten on ip\[(?P<host>[\w.:%-]{1,64})\] and specific port\[(?P<port>\d+)\] fail",
                "CANN 8+; HCCL, hccl_socket.cc",
                "HCCL cannot listen on port {port} of {host}.",
            ),
            "bind-failed": LogPattern(
                (
                    "Address already in use",
                    "Cannot assign requested address",
                    "EADDRINUSE",
                    "EADDRNOTAVAIL",
                    "server socket has failed to",
                    "bind failed",
                    "Call to bind failed",
                    "no matching local address",
                    "error while attempting to bind on address",
                    " is already in use",
                    "Tried to launch distributed communication on port",
                    "[LightGBM] [Fatal] Binding port",
                    "Failed to bind the IP port",
                    "rp != nullptr",
                    "bind: address already in use",
                    " already in use",
                    "Failed bind on ",
                ),
                r"server socket has failed to (?:bind|listen)(?: on any local network address)?(?:[^\n]*?"
                r"(?P<address>(?:\[[0-9a-fA-F:.]*\]|(?<![\w.:])[\w.-]{1,255}):\d+)(?= \(errno))?"
                r"(?:[^\n]*?\bport: (?P<port>\d+))?(?:[^\n]*?errno: \d+ - (?P<reason>[\w ]+))?|"
                r"(?P<error>Address already in use|Cannot assign requested address|EADDRINUSE|EADDRNOTAVAIL)|"
                r"[Bb]ind failed|Call to bind failed|no matching local address|while attempting to bind on "
                r"address \('(?P<at>[^']{1,80})', (?P<bound>\d+)\)|\b[Pp]ort (?P<taken>\d+) (?:is )?already in use|"
                r"bind: (?P<of_go>address already in use)|"
                r"Tried to launch distributed communication on port `(?P<asked>\d+)`, but another process|"
                r"rp != nullptr\.? Unable to find address for: (?P<host>\S{1,255})|Failed to bind the IP port|"
                r"\[LightGBM\] \[Fatal\] Binding port (?P<of_lightgbm>\d+) failed|"
                r"\bFailed bind on (?P<of_dgl>\S{1,255}:\d+)(?: , error: (?!Success)(?P<why>[A-Z][\w ]{2,60}))?",
                "all; socket.cpp, misc/socket.cc, gloo/transport/tcp/device.cc; asyncio/base_events.py; SGLang, "
                "srt/utils.py; Accelerate, utils/launch.py; LightGBM, linkers_socket.cpp; CANN's EJ0003; DGL, "
                "src/rpc/network/tcp_socket.cc",
                "An address[ {address}][ {of_dgl}][, port {port},][, port {bound},][, port {taken},][, port {asked},]"
                "[, port {of_lightgbm},] could "
                "not be bound[: {error}][: {reason}][: {why}][: the name {host} leads to no "
                "address of this host].",
                unless=("ras/", "RAS", "trying another", "rying port", "instead"),
            ),
        },
    ),
    FaultClass(
        id="net_failure",
        title="a call to the network failed",
        priority=2,
        coarse=True,
        by_line=True,
        next_steps=(
            "Find the first such line by time; it names a host or an address in most versions of NCCL. Collect "
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,BOOTSTRAP of all ranks.",
            "Rule out the fast network: NCCL_IB_DISABLE=1 (or NCCL_NET=Socket) on all hosts.",
        ),
        rule="NCCL warns from its network code, and no more specific class fits.",
        if_read={
            ("via ssh", "ssh: ", "Permission denied (", "Host key verification", "ssh exited with"): _SSH_STEPS,
            ("ConnectionPool(host='",): _HTTP_STEPS,
            ("Gloo connectFullMesh failed", "transport/tcp/socket.cc:"): (
                "GLOO_SOCKET_IFNAME names the interface over which the hosts reach each other, on every host (`ip -br "
                "a`); without it gloo takes the address of the host's name (`getent hosts $(hostname)`), which is "
                "often 127.0.1.1 or an address that only this host knows.",
                "A firewall between the hosts has to let all ports through: gloo listens on random ones.",
            ),
            ("socketPollConnect",): (
                "NCCL_SOCKET_IFNAME names the interface over which the hosts reach each other, on every host (`ip -br "
                "a`); with NCCL_DEBUG=INFO, the line of NET/Socket shows which one NCCL took.",
            ),
            (
                "unable to reach each other",
                "start one or more daemons",
                "daemon has unexpectedly",
                "a TCP connection",
            ): (
                "Name the network that all hosts share: `--mca btl_tcp_if_include` and `--mca oob_tcp_if_include` "
                "(PRRTE: `--prtemca oob_tcp_if_include`) with its interface or address range (`ip -br a`); a firewall "
                "has to let all ports through.",
                "The launcher starts its daemons by ssh: the same MPI has to be in the path of a shell without a login "
                "on every host.",
            ),
            (*_UNRESOLVED, "No peer by name ["): (
                "`getent hosts` with that name on every host: MASTER_ADDR, --rdzv-endpoint and the hostfile need a "
                "name or an address that all hosts resolve. In Kubernetes, a pod's name is known only once its "
                "service is.",
            ),
            ("OFI poll failed",): (
                "The line names the process that reports it, not the end that failed: the counters of the adapters on "
                "the hosts of the job show a link that is down or resends, as does the fabric's manager.",
                "Repeat the job without the hosts that report it; if it fails again, FI_LOG_LEVEL=warn makes libfabric "
                "say more.",
            ),
            ("GNI_RC_ERROR",): (
                "Start fewer processes on each host: each of them takes domains, queues and memory of the adapter, and "
                "those that end badly leave them until the scheduler takes them back.",
            ),
            ("ibv_post_",): (
                "Look at the queues of the adapter on {host}: more requests are in flight than the queue holds, or its "
                "memory is not registered. A larger queue or fewer requests at a time show which.",
            ),
            ("fi_getinfo",): (
                "`fi_info -p efa` in the environment of the job on {host}: if it lists nothing, the adapters are not "
                "visible there (in a container: /dev/infiniband), or libfabric has no provider for them.",
                "Rule out the plugin: NCCL_NET=Socket on all hosts.",
            ),
        },
        rules_out={
            "net_connection_lost": "connections close when the process that met the error ends",
            "rank_killed_exception": "the launcher raised it because it could not reach the host",
        },
        patterns={
            "garbled-address": LogPattern(
                ("is neither AF_INET",),
                rf"with family (?!{_OF_LINUX} )(?P<family>\d+) is neither AF_INET",
                "2.12+; misc/socket.cc:538",
                "What a peer sent as its address is none: no family has number {family}. Another program, or another "
                "version of NCCL, sent it.",
                support=NAMES_AN_EFFECT,
            ),
            "poll-connect": LogPattern(
                ("socketPollConnect",),
                r"socketPollConnect:? poll\(\) (?:failed with error (?P<error>[A-Z][\w ]{2,60})|returned -?\d+)",
                "2.19+; misc/socket.cc: the address is not reachable over the interface that NCCL took",
                "NCCL's connection to another rank was not made[: {error}].",
                support=SUGGESTS,
            ),
            "ssh-unreachable": LogPattern(
                ("was not reachable via ssh",),
                r"\bhost=(?P<store>[^\s,]{1,255}) was not reachable via ssh",
                "DeepSpeed 0.6+; deepspeed/launcher/runner.py",
                "The launcher cannot log in to {store} by ssh.",
            ),
            "ssh-connect": LogPattern(
                ("ssh: connect to host",),
                _OF_SSH.format(rf"(?!Connection refused|{_NO_ANSWER_OF_SSH})[^\r\n]{{1,80}}"),
                "any; OpenSSH, sshconnect.c, ssh.c",
                "ssh cannot connect to {store}, port {port}: {error}.",
            ),
            "ssh-refused": LogPattern(
                (
                    "Permission denied (",
                    "Host key verification failed",
                    "ssh exited with exit code 255",
                    "returned non-zero exit status 255",
                ),
                r"(?:^|[\s:])(?:(?P<store>[\w.@-]{1,255}): )?Permission denied \((?:publickey|password|gssapi|keyboard)"
                r"[^)]*\)|Host key verification failed\.|: (?P<other>[^:\s]{1,255}): ssh exited with exit code 255|"
                r"Command '\[?['\"]?ssh [^\n]{1,300} returned non-zero exit status 255",
                "OpenSSH, pdsh, DeepSpeed; sshconnect2.c, sshconnect.c, src/pdsh/dsh.c, deepspeed/launcher/runner.py",
                "ssh cannot log in[ to {store}][ to {other}].",
            ),
            "ssh-name": LogPattern(
                ("ssh: Could not resolve hostname",),
                r"ssh: Could not resolve hostname (?P<store>[^\s:]{1,255})",
                "any; OpenSSH, sshconnect.c, ssh.c",
                "ssh does not know the name {store}.",
            ),
            "ssh-ended": LogPattern(
                (
                    "_exchange_identification: ",
                    "client_loop: send disconnect",
                    "packet_write_wait: Connection to ",
                    "Connection closed by ",
                    "Connection reset by ",
                    " not responding.",
                    "closed by remote host",
                ),
                r"\b(?:kex|ssh)_exchange_identification: (?:read: )?(?P<error>Connection \w+)|"
                r"^(?:\S+: )?Connection (?:closed|reset) by (?:remote host|(?:UNKNOWN|authenticating user \S+ )?"
                r"(?P<store>[\w.:-]+) port (?P<port>\d+))|"
                r"client_loop: send disconnect: (?P<broken>\w[\w ]+)|packet_write_wait: Connection to (?P<other>\S+) "
                r"port \d+: |^(?:\S+: )?Timeout, server (?P<silent>\S+) not responding\.|"
                r"^(?:\S+: )?Connection to (?P<left>\S+) closed by remote host\.",
                "any; OpenSSH, kex.c, packet.c, clientloop.c, sshconnect.c",
                "ssh lost its connection[ to {store}, port {port}][ to {other}][ to {left}][: {silent} does not answer]"
                "[: {error}][: {broken}].",
                support=NAMES_AN_EFFECT,
            ),
            "pdsh-connect": LogPattern(
                ("pdsh@",),
                r"\bpdsh@[^:\s]+: (?P<store>[^:\s]{1,255}): (?:mcmd: |xrcmd: )?connect(?: failed)?: "
                r"(?P<error>[^\n]{1,80})",
                "pdsh 2+, under DeepSpeed; src/pdsh/dsh.c, src/modules/mcmd.c, xrcmd.c",
                "pdsh cannot connect to {store}: {error}.",
                support=NAMES_AN_EFFECT,
            ),
            "slurm-controller": LogPattern(
                ("Unable to contact slurm controller", "Unable to confirm allocation for job"),
                r"Unable to contact slurm controller \((?P<error>[^)\n]{1,60})\)|"
                r"Unable to confirm allocation for job \d+: (?P<why>Connection \w+(?: out)?|Socket timed "
                r"out[^\n]{0,40}|"
                r"Zero Bytes[^\n]{0,40})",
                "any Slurm; src/common/slurm_errno.c, src/srun/libsrun/allocate.c",
                "Slurm's controller does not answer[: {error}][: {why}].",
                support=NAMES_AN_EFFECT,
            ),
            "tracker": LogPattern(
                ("[tracker.", "[comm.", "[socket.", "Failed to connect to tracker"),
                r"- \[(?:tracker|comm|socket)\.(?:cc|h):\d+(?:\|[\d:]+)?\]: (?P<message>Failed to [^\n]{1,160})|"
                r"allreduce_base\.cc:\d+: (?P<rabit>Failed to connect to tracker[^\n]{0,80})",
                "XGBoost 1+; src/collective/tracker.cc, comm.cc, socket.cc, rabit/src/allreduce_base.cc",
                "XGBoost's network failed: [{message}][{rabit}].",
                support=NAMES_AN_EFFECT,
            ),
            "hydra-connect": LogPattern(
                ("unable to connect from ", "OFI fi_getinfo() failed", "OFI getinfo() failed", "OFI addrinfo() failed"),
                r"HYDU_sock_connect [^\n]{0,80}?unable to connect from \"[^\"\n]{1,255}\" to "
                r"\"(?P<store>[^\"\n]{1,255})\""
                r"(?: \((?P<error>[^)\n]{1,60})\))?|(?P<ofi>OFI (?:fi_getinfo|getinfo|addrinfo)\(\) failed)",
                "MPICH 1.3+, Intel MPI; src/pm/hydra/lib/utils/sock.c, src/mpid/ch4/netmod/ofi/ofi_init.c",
                "MPICH cannot connect[ to {store}][: {error}][: {ofi}, libfabric has no provider for the network].",
                support=NAMES_AN_EFFECT,
            ),
            "ofi-completion": LogPattern(
                ("OFI poll failed (", ":efa:"),
                r"\blibfabric:\d+:[^\n]{0,60}?:efa:\w+:\w+\(\):\d+<warn> (?:EFA provider internal \w+ failure )?err: "
                r"\d+, message: (?P<efa>Unresponsive re(?:ceiver|mote)|Unreachable remote|Connection was reset by "
                r"remote peer)|OFI poll "
                r"failed \((?:\w{1,40}\.[ch]:\d+:\w{1,80}:|default nic=[^:\n]{1,40}: )"
                r"(?P<error>Input/output error|Connection (?:reset by peer|timed out|refused|aborted)|"
                r"(?:No route to|Host is|Network is) \w+|Transport endpoint [\w ]{1,40}|Broken pipe|"
                r"Software caused connection abort)(?: - (?P<reason>\w[\w ]{1,60}))?",
                "MPICH 3.3+ and those made of it (Cray, Intel); src/mpid/ch4/netmod/ofi/ofi_events.c, errnames.txt; "
                "libfabric 1.18+ (from 2.4 for its own transfers alone), prov/efa/src/rdm/efa_rdm_ope.c, efa_errno.h",
                "A transfer over libfabric ended with an error[: {error}][ ({reason})][: {efa}].",
                support=NAMES_AN_EFFECT,
            ),
            "gni-resources": LogPattern(
                ("GNI_RC_ERROR_RESOURCE", "GNI_RC_ERROR_NOMEM"),
                r"(?:(?P<call>GNI_\w{2,40}) returned (?:error )?|\bUnable to initialize DLA, )"
                r"(?P<error>GNI_RC_ERROR_(?:RESOURCE|NOMEM))",
                "Cray's uGNI, cdm.c; libfabric, prov/gni/src/gnix_nic.c, gnix_cm_nic.c",
                "Cray's network adapter has no resources left[ for {call}]: {error}.",
                support=NAMES_AN_EFFECT,
            ),
            "verbs-post": LogPattern(
                ("ail to ibv_post_send", "ail to ibv_post_recv"),
                r"\b[Ff]ail to (?P<call>ibv_post_(?:send|recv))[^:\n]{0,80}: (?P<error>[A-Z][\w ]{1,60})",
                "brpc with RDMA; src/brpc/rdma/rdma_endpoint.cpp",
                "An adapter did not take a request: {call} failed with {error}.",
                support=NAMES_AN_EFFECT,
            ),
            **programs.UNREACHED,
            "pmix-unreachable": LogPattern(
                ("PMIX ERROR: ", "PMIX_ERROR: "),
                r"PMIX[ _]ERROR: (?P<error>(?:PMIX_ERR_)?(?:UNREACH(?:ABLE)?|LOST.CONNECTION[\w-]*))",
                "OpenPMIx 2+; src/client/pmix_client.c, src/common/pmix_strings.c",
                "PMIx cannot reach its server: {error}.",
                support=NAMES_AN_EFFECT,
            ),
            "grpc-no-address": LogPattern(
                ("failed to connect to all addresses",),
                r"\bfailed to connect to all addresses\b",
                "gRPC 1.9+; src/core/ext/filters/client_channel/subchannel_list.h, lb_policy/pick_first/pick_first.cc",
                "gRPC reached none of the addresses of its server.",
                support=NAMES_AN_EFFECT,
            ),
            "grpc-os-error": LogPattern(
                ("Unavailable: OS Error", "ailed to connect to remote host: OS Error"),
                r"\bUnavailable: OS Error\b|\"(?P<what>Failed to connect to remote host): OS Error\"",
                f"{_GRPC_TARGET}; tensorflow/core/distributed_runtime/rpc/grpc_util.h",
                "A call of the system failed under gRPC, which does not print why[: {what}].",
                support=SUGGESTS,  # it is tried again, as while the others start
            ),
            "gloo-socket": LogPattern(
                ("transport/tcp/socket.cc:",),
                r"gloo/transport/tcp/socket\.cc:\d+\] rv != -1\. -1 vs -1\. (?P<call>[a-z]{4,10}): "
                r"(?P<error>[A-Z][\w -]{3,80})",
                "gloo since 2022, torch 2.0+; gloo/transport/tcp/socket.cc",
                "gloo's call of {call}() failed: {error}.",
                unless=("Address already in use", "Cannot assign requested address"),
            ),
            "gloo-full-mesh": LogPattern(
                ("Gloo connectFullMesh failed",),
                r"Gloo connectFullMesh failed with \[[^\]\n]*\] (?P<error>no error)",
                "torch 2.5+; gloo/rendezvous/context.cc, ProcessGroupGloo.cpp",
                "gloo could not connect each rank with all others, and names no reason.",
                support=SUGGESTS,
            ),
            "network-warning": LogPattern(
                (
                    "socket.c",
                    "proxy.cc:",
                    "net_ib",
                    "ibvwrap.c",
                    "bootstrap.c",
                    "net_socket.c",
                    "nccl_ofi",
                    "net.cc",
                    "WARN NET/",
                ),
                r"(?:\bsocket\.cc?|\bproxy\.cc(?=:\d+ (?:R?NCCL )?WARN \[[\w ]+\] Accept failed)|"
                r"net_ib[\w./]*\.cc?|ibvwrap\.cc?|bootstrap\.cc?|nccl_ofi\w*\.\w+|\bnet\.cc?|"
                r"nccl-net-ofi\S*):\d+(?: \(\w+\))? (?:R?NCCL )?WARN (?P<message>.*?"
                + _ERRNO
                + r".*)|WARN NET/(?:OFI|IB|Socket|Plugin) ?:? ?(?P<other>.*?"
                + _ERRNO
                + r".*)",
                "all; misc/socket.cc, transport/net*.cc, bootstrap.cc, aws-ofi-nccl",
                "NCCL's network code reports: [{message}][{other}]",
                support=SUGGESTS,
                unless=("No such file", "Failed to open libibverbs", "Could not find", "falling back"),
            ),
            "ofi-old-warning": LogPattern(
                ("WARN: Function: ",),
                r"WARN: Function: \w+ Line: \d+: NET/OFI (?P<message>.*?" + _ERRNO + r".*)",
                "aws-ofi-nccl 1.0; tests/test-common.h",
                "The network plugin reports: {message}",
                support=SUGGESTS,
            ),
            "kernel-ib": LogPattern(
                ("infiniband ",),
                r"\binfiniband (?P<hca>\w+): (?P<message>Failed .+)",
                "Linux 5.2+; drivers/infiniband/hw/efa/efa_com.c",
                "The kernel reports for adapter {hca}: {message}",
                support=SUGGESTS,
            ),
            "rendezvous-failed": LogPattern(
                ("connection to the C10d store has failed", "connection to the C10d store failed"),
                r"The connection to the C10d store (?:has )?failed",
                "torch 1.9+; torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py",
                "The launcher could not reach the rendezvous store: check its endpoint (--rdzv-endpoint).",
                support=SUGGESTS,
            ),
            "device-not-opened": LogPattern(
                ("Unable to open device",),
                r"NET/IB ?: ?Unable to open device (?P<hca>[\w-]+)",
                "all; transport/net_ib.cc",
                "NCCL could not open the adapter {hca}, which the other hosts may have.",
                support=SUGGESTS,
            ),
            "libfabric": LogPattern(
                ("<warn>", "libfabric:"),
                r"libfabric:\d+:[^\n]{0,200}?<warn> (?P<message>err: \d+, message: [\w ]{1,200}?(?= My EFA|\s*$|,)"
                r"|.{0,200}output empty list)"
                r"(?:.{0,300}?My host id: (?P<host>\S+))?(?:.{0,300}?Peer host id: (?P<other>\S+))?",
                "aws-ofi-nccl; libfabric, src/log.c",
                "libfabric reports: {message}[ between {host} and {other}].",
                support=NAMES_AN_EFFECT,
            ),
            "mpi-unreachable": LogPattern(
                (
                    "are unable to reach each other for",
                    "no active messages transport to",
                    "was unable to reliably start one or more daemons",
                    "daemon has unexpectedly failed",
                    "unable to complete a TCP connection",
                ),
                r"MPI processes are unable to reach each other for|"
                + UCX
                + r"UCX +ERROR +no active messages transport to (?P<other>[\w.-]+)|"
                r"was unable to reliably start one or more daemons|daemon has unexpectedly failed|"
                r"was unable to complete a TCP connection",
                "Open MPI 1.8+, PRRTE; help-mca-bml-r2.txt, help-errmgr-base.txt, help-oob-tcp.txt; UCX 1.3+, "
                "src/ucp/wireup/select.c",
                "Processes or daemons of MPI cannot reach each other[: no transport to {other}].",
                support=NAMES_AN_EFFECT,
            ),
            "mpi-remote-host": confirms(
                ("Remote host:",),
                r"^\s*Remote host:\s+(?P<host>[\w.-]+)\s*$",
                "Open MPI 1.8+; help-oob-tcp.txt, help-mpi-btl-tcp.txt",
                "Open MPI names {host} as the other end.",
                SUGGESTS,
            ),
            "mlx-ring": LogPattern(
                ("[ring] ",),
                r"\[ring\] (?:(?:Sending to|Receiving from) socket \d+ failed with errno (?P<number>\d+)|"
                r"(?P<many>Too many send/recv errors))",
                "MLX 0.21+; mlx/distributed/ring/ring.cpp",
                "MLX's ring failed on a socket[ with errno {number}][: {many}].",
                support=NAMES_AN_EFFECT,
            ),
            "store-told": confirms(
                ("TCPStore server at ",),
                r"TCPStore server at (?P<store>[A-Za-z][\w.-]{0,252}):(?P<port>\d+)",
                "torchelastic 0.1; torchelastic/p2p/coordinator_p2p.py",
                "The store of the job is at {store}, port {port}.",
                SUGGESTS,
            ),
            "name-not-resolved": LogPattern(
                _UNRESOLVED,
                r"(?:(?:addresses of \(|[Cc]onnect(?:ing)? to ['\"]?(?:\w{1,20}://)?)(?P<store>[^,()\s:'\"]+)(?:, |:)"
                r"(?P<port>\d+)(?:\) cannot be retrieved|['\"]?).*|host not found: .*|"
                r"Unable to resolve hostname .*|getaddrinfo.*|gai error.*|socket\.gaierror.*)(?:Name or service not "
                r"known|Temporary failure in name resolution|No address associated with hostname)",
                "all; socket.cpp, Python's socket",
                "The name[ {store} (port {port})] cannot be resolved to an address.",
                support=NAMES_AN_EFFECT,
                unless=("IPv6 network addresses of (localhost,",),  # its IPv4 address is taken
            ),
            "http-unresolved": LogPattern(
                ("ConnectionPool(host='",),
                rf"{_OF_HTTP}[^\n]{{0,400}}?(?:NameResolutionError|Name or service not known|Temporary failure in name "
                r"resolution|No address associated with hostname)",
                _HTTP_SOURCE,
                "The name {store} (port {port}) cannot be resolved to an address.",
                support=NAMES_AN_EFFECT,
            ),
            "caffe-peer": LogPattern(
                ("No peer by name [",),
                r"\bNo peer by name \[(?P<store>[^\]\s]{1,255})\]",
                "CaffeOnSpark; caffe-distri/src/main/cpp/util/socket.cpp",
                "The name {store} cannot be resolved to an address.",
                support=NAMES_AN_EFFECT,
            ),
            "network-return-code": confirms(
                ("socket.cc:", "transport/net", "bootstrap.cc:", "ibvwrap.cc:"),
                r"(?P<file>misc/socket\.cc|transport/net\w*(?:/\w+)?\.cc|bootstrap\.cc|misc/ibvwrap\.cc):\d+ -> 2\b",
                "all; NCCLCHECK",
                "{file} of NCCL returned a system error (2), without a warning that shows why.",
                SUGGESTS,
            ),
        },
    ),
)
