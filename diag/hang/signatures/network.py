"""Sockets: interfaces that are missing or wrong, peers that cannot be reached, connections that end."""

from __future__ import annotations

from diag.hang.model import Role
from diag.hang.signatures.base import NAMES_AN_EFFECT, SUGGESTS, FaultClass, Signature

_PEER = r"(?P<peer>[^\s<>]+<\d+>)"
# strerror's texts, as far as calls of sockets and verbs fail with them.
_ERRNO = (
    r"(?:Connection \w+|No route to host|Network is \w+|Host is down|Invalid argument|Operation not \w+|Permission "
    r"denied|"
    r"Bad (?:address|file descriptor)|Input/output error|Remote I/O error|Resource temporarily "
    r"unavailable|Protocol (?:not "
    r"available|error)|No such device|Too many open files|Cannot a\w+|Address \w+ not supported|Broken pipe|Transport "
    r"endpoint|Software caused|Function not implemented|No buffer space|Message too long|Device or resource "
    r"busy|Numerical "
    r"result out|[Tt]imed out|Success|[Uu]nknown error|with error|Value too large|Invalid address|Inappropriate "
    r"ioctl|Interrupted system)"
)

CLASSES = (
    FaultClass(
        id="net_no_interface",
        title="NCCL finds no network interface",
        priority=2,
        next_steps=(
            "On {host}: compare NCCL_SOCKET_IFNAME with `ip -br a`; the variable takes prefixes, `=eth0` is exact, "
            "`^docker` excludes.",
        ),
        rules_out={"net_connect_timeout": "no address was there to connect from"},
        signatures=(
            Signature(
                "bootstrap-no-interface",
                ("no socket interface found", "No socket interface found"),
                r"Bootstrap ?: ?[Nn]o socket interface found",
                "all",
                "bootstrap.cc:130",
                "NCCL_SOCKET_IFNAME matches no interface of this host.",
            ),
            Signature(
                "net-no-interface",
                ("no interface found", "No interface found"),
                r"(?:NET/Socket|NET/IB|Bootstrap) ?: ?[Nn]o (?:usable )?interface found",
                "all",
                "transport/net_socket.cc:62",
                "NCCL_SOCKET_IFNAME matches no interface of this host.",
            ),
            Signature(
                "gloo-no-interface",
                ("nable to find interface for", "nable to find address for"),
                r"[Uu]nable to find (?:interface|address) for:? \[?(?P<wanted>[^\]\s]+)",
                "torch 1.x+",
                "gloo/transport/tcp/device.cc",
                "gloo finds no interface for {wanted}: GLOO_SOCKET_IFNAME or the address of this host's name.",
            ),
            Signature(
                "no-matching-device",
                ("no device found matching", "no device found after excluding"),
                r"no device found (?:matching|after excluding) (?P<wanted>.+?)(?:, |$)",
                "2.23+",
                "bootstrap.cc:582",
                "No device of this host matches {wanted}.",
            ),
            Signature(
                "family",
                ("is neither AF_INET",),
                r"with family (?!0 )\d+ is neither AF_INET",
                "2.12+",
                "misc/socket.cc:538",
                "The address has no family that NCCL can use.",
                confidence=SUGGESTS,  # or a peer sent what is no address
            ),
            Signature(
                "socket-creation",
                ("Socket creation failed : Address family not supported",),
                r"Socket creation failed : Address family not supported",
                "old",
                "misc/socket.cc",
                "The host does not support the address's family.",
            ),
        ),
    ),
    FaultClass(
        id="net_wrong_interface",
        title="NCCL uses an interface that does not reach the other hosts",
        priority=2,
        next_steps=(
            "Set NCCL_SOCKET_IFNAME on every host to the interface that the hosts share (`ip -br a`), for example "
            "NCCL_SOCKET_IFNAME=eth0; for torch's own stores also GLOO_SOCKET_IFNAME.",
        ),
        rule="A Bootstrap or NET/Socket line lists a bridge, a tunnel, a link-local address or the loopback, or the "
        "hosts list different subnets, and connections then fail.",
        rules_out={
            "net_connect_timeout": "the address that does not answer belongs to an interface of one host only",
            "net_connect_refused": "the address that refuses belongs to an interface of one host only",
        },
        signatures=(
            Signature(
                "gloo-families",
                ("ss1.ss_family == ss2.ss_family",),
                r"ss1\.ss_family == ss2\.ss_family(?:\. (?P<here>\d+) vs (?P<there>\d+))?",
                "torch 1.x+",
                "gloo/transport/tcp/pair.cc",
                "One side has an IPv4 address and the other one an IPv6 address (ss1.ss_family == ss2.ss_family).",
            ),
            Signature(
                "bootstrap-using",
                ("Bootstrap : Using", "Bootstrap: Using"),
                r"Bootstrap ?: Using (?P<interfaces>.+)",
                "all; without a blank from 2.24",
                "bootstrap.cc:137",
                "NCCL uses {interfaces}.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
            Signature(
                "interface-using",
                ("Using interface ",),
                r"NET(?:/\w+)? : Using interface (?P<interfaces>\S+:\S+<\d+>)",
                "<= 2.3",
                "transport/net_socket.cu",
                "NCCL uses {interfaces}.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
            Signature(
                "socket-using",
                ("NET/Socket : Using",),
                r"NET/Socket : Using (?P<interfaces>.+)",
                "all",
                "transport/net_socket.cc:78",
                "NCCL uses {interfaces}.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
            Signature(
                "ib-oob",
                ("; OOB ",),
                r"NET/IB : Using.*; OOB (?P<interfaces>.+)",
                "all",
                "transport/net_ib/init.cc:385",
                "NCCL uses {interfaces} beside InfiniBand.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
        ),
    ),
    FaultClass(
        id="net_connect_timeout",
        title="an address does not answer",
        priority=2,
        next_steps=(
            "Look at {where}: does its process live, and does a firewall drop? `nc -vz ADDRESS PORT` from the host "
            "that "
            "complains; NCCL needs all high ports open between the hosts.",
            "Is it the address that you would use? Otherwise NCCL_SOCKET_IFNAME.",
        ),
        signatures=(
            Signature(
                "connect-timed-out",
                (
                    "returned Connection timed out",
                    "returned No route to host",
                    "returned Network is unreachable",
                    "returned Host is down",
                ),
                rf"connect (?:to {_PEER} )?returned (?:Connection timed out|No route to host|Network is unreachable|"
                r"Host is down)(?P<final>, exceeded)?",
                "all; with the address from 2.24",
                "misc/socket.cc:470 (v2.18.3), os/linux.cc:221",
                "A connection[ to {peer}] got no answer.",
                Role.ROOT,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "exceeded-timeouts",
                ("exceeded timeouts",),
                r"socket\w*Connect: exceeded timeouts",
                "<= 2.23",
                "misc/socket.cc:475 (v2.18.3)",
                "Connecting was given up after time-outs.",
            ),
            Signature(
                "connection-abort",
                ("failed : Software caused connection abort",),
                rf"Connect to {_PEER} failed : Software caused connection abort",
                "<= 2.23, hides a refusal or a time-out (nccl#1515)",
                "misc/socket.cc",
                "Connecting to {peer} failed; this version hides whether it was refused or not answered.",
                Role.ROOT,
                SUGGESTS,
            ),
            Signature(
                "connect-failed-timeout",
                ("Connection timed out", "No route to host", "Network is unreachable", "Host is down"),
                rf"(?:Connect to {_PEER} (?:failed|returned) ?:? ?(?:\d+\()?|Call to connect failed ?: "
                rf"?)(?:Connection timed out|No route "
                rf"to host|"
                r"Network is unreachable|Host is down)",
                "all",
                "misc/socket.cc",
                "Connecting[ to {peer}] timed out or found no route.",
            ),
            Signature(
                "gloo-connect-timeout",
                ("Connect timeout [",),
                r"Connect timeout \[(?P<other>[^\]\s]+)\]:(?P<port>\d+)",
                "torch 1.x+",
                "gloo/transport/tcp/pair.cc",
                "gloo got no answer from {other}, port {port}.",
            ),
            Signature(
                "store-connect-timed-out",
                (
                    "client socket has timed out after",
                    "client socket has failed to connect to",
                    "connect() timed out",
                ),
                r"[Tt]he client socket has timed out after (?P<after>\S+) while trying to connect to "
                r"\(?(?P<store>[^,()\s]+?)(?:, |:)(?P<port>\d+)\)?|failed to connect to \[?(?P<other>[^\]\s,]+?)\]?:"
                r"(?P<other_port>\d+) \((?:errno: 11[03]|[^)]*(?:timed out|No route))|connect\(\) timed out|"
                r"failed to connect to any network address of \((?P<any>[^,()\s]+), (?P<any_port>\d+)\)",
                "torch 1.9+",
                "socket.cpp",
                "Nobody answers[ at {store}, port {port}][ at {other}, port {other_port}][ at {any}, port {any_port}]"
                "[ within {after}]: the store of the job, which its first process serves.",
                Role.ROOT,
                NAMES_AN_EFFECT,
            ),
        ),
    ),
    FaultClass(
        id="net_connect_refused",
        title="an address refuses connections",
        priority=2,
        next_steps=(
            "Look at {where}: the host answers and nobody listens there. Did the process die, or start later than the "
            "retries last? `ss -ltnp` there, and the first error in its log.",
        ),
        signatures=(
            Signature(
                "exceeded-retries",
                ("exceeded retries",),
                r"socket\w*Connect: exceeded retries",
                "<= 2.23",
                "misc/socket.cc:466 (v2.18.3)",
                "Connecting was given up after refusals.",
            ),
            Signature(
                "refused-at-last",
                ("returned Connection refused, exceeded error retry count",),
                rf"connect (?:to {_PEER} )?returned Connection refused, exceeded error retry count",
                "2.24+; with the address from 2.27",
                "os/linux.cc:221",
                "A connection[ to {peer}] was refused to the end.",
            ),
            Signature(
                "connect-failed-refused",
                ("Connection refused",),
                rf"(?:Connect to {_PEER} (?:failed|returned) ?:? ?(?:\d+\()?|Call to connect failed ?: "
                rf"?)Connection refused",
                "all",
                "misc/socket.cc",
                "The connection[ to {peer}] was refused.",
            ),
            Signature(
                "gloo-refused",
                ("Connection refused",),
                r"(?:gloo|tcp/pair\.cc)[^\n]*connect \[(?P<other>[^\]\s]+)\]:(?P<port>\d+): Connection refused",
                "torch 1.x+",
                "gloo/transport/tcp/pair.cc",
                "{other}, port {port}, refuses gloo's connection.",
            ),
            Signature(
                "store-refused",
                ("errno: 111", "(errno: 61"),
                r"failed to connect to \[?(?P<other>[^\]\s,]+?)\]?:(?P<port>\d+) \(errno: (?:111|61)",
                "torch 1.9+",
                "socket.cpp",
                "{other}, port {port}, refuses: nothing serves the store there (yet).",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
            Signature(
                "refused-retrying",
                ("returned Connection refused, retrying",),
                rf"connect (?:to {_PEER} )?returned Connection refused, retrying",
                "all; with the address from 2.24",
                "misc/socket.cc:470 (v2.18.3), os/linux.cc:226",
                "A refusal that is tried again: usual while the others start.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
        ),
    ),
    FaultClass(
        id="net_connection_lost",
        title="a connection was lost",
        priority=2,
        next_steps=(
            "Find the first error on {where}: it is earlier in the chain than who complains. Its log with "
            "NCCL_DEBUG=INFO "
            "NCCL_DEBUG_SUBSYS=INIT,NET,BOOTSTRAP, and `dmesg -T` of that host.",
        ),
        signatures=(
            Signature(
                "call-failed",
                ("Call to recv", "Call to send", "Call to read", "Call to write", "socketProgress"),
                rf"(?:Call to (?:recv|send|read|write)\w{{0,8}}(?: (?:from|to) {_PEER})?|socketProgress\w{{0,20}}: "
                rf"[\w ]{{0,40}}?)"
                r" ?(?:failed|returned) ?:? ?(?P<error>Connection timed out|Connection refused|Connection reset(?: by "
                r"peer)?|Broken pipe|No route to host|"
                r"Transport endpoint is not connected|Software caused connection abort)",
                "all; with the address from 2.16",
                "misc/socket.cc:289 (ProgressOpt)",
                "The connection[ to {peer}] ended: {error}.",
                Role.ROOT,
                SUGGESTS,
            ),
            Signature(
                "gloo-connection",
                ("Read error [", "Write error ["),
                r"(?:Read|Write) error \[(?P<peer>[^\]\s]+)\]:\d+: (?P<error>Connection reset by peer|Connection "
                r"timed out|"
                r"Broken pipe|No route to host)",
                "torch 1.x+",
                "gloo/transport/tcp/pair.cc",
                "gloo's connection to {peer} ended: {error}.",
                Role.ROOT,
                SUGGESTS,
            ),
            Signature(
                "closed-by-peer",
                ("Connection closed by remote peer", "Connection closed by peer"),
                rf"(?:WARN|NET/\w+ ?:|socket\w*:).{{0,80}}?Connection closed by (?:remote )?peer(?: {_PEER})?",
                "2.4+; with the address from 2.12",
                "misc/socket.cc:35",
                "The peer[ {peer}] closed it.",
                Role.ROOT,
                SUGGESTS,
            ),
        ),
    ),
    FaultClass(
        id="net_bind_failed",
        title="an address or a port cannot be had",
        priority=2,
        next_steps=(
            "Port in use: `ss -ltnp | grep PORT` on {host}; end the old job, choose another port (MASTER_PORT, "
            "--master-port), or port 0 (torchrun --standalone).",
            "Address not of this host: compare MASTER_ADDR, NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY with `ip -br a`.",
        ),
        rules_out={
            "rank_killed_exception": "the exception says that the port or the address cannot be had",
            "net_connection_lost": "connections close when the process that met the error ends",
        },
        signatures=(
            Signature(
                "bind-failed",
                (
                    "Address already in use",
                    "Cannot assign requested address",
                    "EADDRINUSE",
                    "server socket has failed to",
                    "bind failed",
                    "Call to bind failed",
                    "no matching local address",
                ),
                r"server socket has failed to (?:bind|listen)(?: on any local network address| to "
                r"(?P<address>\S+:\w+))?"
                r"(?:.*?port: (?P<port>\d+))?(?:.*?errno: \d+ - (?P<reason>[\w ]+))?|"
                r"(?P<error>Address already in use|Cannot assign requested address|EADDRINUSE)|[Bb]ind failed|Call "
                r"to bind "
                r"failed|no matching local address",
                "all",
                "socket.cpp, misc/socket.cc, gloo/transport/tcp/device.cc",
                "An address[ {address}][, port {port},] could not be bound[: {error}][: {reason}].",
                unless=("ras/", "RAS"),
            ),
        ),
    ),
    FaultClass(
        id="net_failure",
        title="a call to the network failed",
        priority=2,
        next_steps=(
            "Find the first such line by time; it names a host or an address in most versions of NCCL. Collect "
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,BOOTSTRAP of all ranks.",
            "Rule out the fast network: NCCL_IB_DISABLE=1 (or NCCL_NET=Socket) on all hosts.",
        ),
        rule="NCCL warns from its network code, and no finer class fits.",
        rules_out={"net_connection_lost": "connections close when the process that met the error ends"},
        signatures=(
            Signature(
                "network-warning",
                (
                    "socket.c",
                    "net_ib",
                    "ibvwrap.c",
                    "bootstrap.c",
                    "net_socket.c",
                    "nccl_ofi",
                    "net.cc",
                    "WARN NET/",
                ),
                r"(?:\bsocket\.cc?|net_ib[\w./]*\.cc?|ibvwrap\.cc?|bootstrap\.cc?|nccl_ofi\w*\.\w+|\bnet\.cc?|"
                r"nccl-net-ofi\S*):\d+(?: \(\w+\))? (?:R?NCCL )?WARN (?P<message>.*?"
                + _ERRNO
                + r".*)|WARN NET/(?:OFI|IB|Socket|Plugin) ?:? ?(?P<other>.*?"
                + _ERRNO
                + r".*)",
                "all",
                "misc/socket.cc, transport/net*.cc, bootstrap.cc, aws-ofi-nccl",
                "NCCL's network code says: [{message}][{other}]",
                Role.ROOT,
                SUGGESTS,
                unless=("No such file", "Failed to open libibverbs", "Could not find", "falling back"),
            ),
            Signature(
                "ofi-old-warning",
                ("WARN: Function: ",),
                r"WARN: Function: \w+ Line: \d+: NET/OFI (?P<message>.*?" + _ERRNO + r".*)",
                "aws-ofi-nccl 1.0",
                "aws-ofi-nccl",
                "The network plugin says: {message}",
                confidence=SUGGESTS,
            ),
            Signature(
                "kernel-ib",
                ("infiniband ",),
                r"\binfiniband (?P<hca>\w+): (?P<message>Failed .+)",
                "any kernel",
                "kernel log",
                "The kernel says of adapter {hca}: {message}",
                confidence=SUGGESTS,
            ),
            Signature(
                "rendezvous-failed",
                ("connection to the C10d store has failed", "connection to the C10d store failed"),
                r"The connection to the C10d store (?:has )?failed",
                "torch 1.9+",
                "torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py",
                "The launcher could not reach the store of the rendezvous: look at its endpoint (--rdzv-endpoint).",
                confidence=SUGGESTS,
            ),
            Signature(
                "device-not-opened",
                ("Unable to open device",),
                r"NET/IB ?: ?Unable to open device (?P<hca>[\w-]+)",
                "all",
                "transport/net_ib.cc",
                "NCCL could not open the adapter {hca}, which the other hosts may have.",
                Role.ROOT,
                SUGGESTS,
            ),
            Signature(
                "libfabric",
                ("<warn>", "libfabric:"),
                r"libfabric:\d+:[^\n]{0,200}?<warn> (?P<message>err: \d+, message: [\w ]{1,200}?(?= My EFA|\s*$|,)"
                r"|.{0,200}output empty list)"
                r"(?:.{0,300}?My host id: (?P<host>\S+))?(?:.{0,300}?Peer host id: (?P<other>\S+))?",
                "aws-ofi-nccl",
                "libfabric, prov/efa",
                "libfabric says: {message}[ between {host} and {other}].",
                Role.ROOT,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "name-not-resolved",
                (
                    "Name or service not known",
                    "Temporary failure in name resolution",
                    "No address associated with hostname",
                ),
                r"(?:addresses of \((?P<store>[^,()\s]+), (?P<port>\d+)\) cannot be retrieved.*|host not found: "
                r".*|Unable to resolve "
                r"hostname .*|"
                r"getaddrinfo.*|gai error.*|socket\.gaierror.*)(?:Name or service not known|Temporary failure in name "
                r"resolution|No address associated with hostname)",
                "all",
                "socket.cpp, Python's socket",
                "The name[ {store} (port {port})] cannot be resolved to an address.",
                Role.ROOT,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "network-return-code",
                ("socket.cc:", "transport/net", "bootstrap.cc:", "ibvwrap.cc:"),
                r"(?P<file>misc/socket\.cc|transport/net\w*(?:/\w+)?\.cc|bootstrap\.cc|misc/ibvwrap\.cc):\d+ -> 2\b",
                "all",
                "NCCLCHECK",
                "{file} of NCCL returned a system error (2), without a warning that says why.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
        ),
    ),
)
