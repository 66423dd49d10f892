"""Sockets: interfaces that are missing or wrong, peers that cannot be reached, connections that end."""

from __future__ import annotations

from diag.hang.model import Role
from diag.hang.signatures.base import NAMES_AN_EFFECT, SUGGESTS, FaultClass, Signature

_PEER = r"(?P<peer>[^\s<>]+<\d+>)"

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
                ("Bootstrap : no socket interface found",),
                r"Bootstrap : no socket interface found",
                "all",
                "bootstrap.cc:130",
                "NCCL_SOCKET_IFNAME matches no interface of this host.",
            ),
            Signature(
                "net-no-interface",
                ("NET/Socket : no interface found",),
                r"NET/Socket : no interface found",
                "all",
                "transport/net_socket.cc:62",
                "NCCL_SOCKET_IFNAME matches no interface of this host.",
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
                ("returned Connection timed out", "returned No route to host"),
                rf"connect (?:to {_PEER} )?returned (?:Connection timed out|No route to host)(?P<final>, exceeded)?",
                "all; with the address from 2.24",
                "misc/socket.cc:470 (v2.18.3), os/linux.cc:221",
                "A connection got no answer.",
                Role.ROOT,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "exceeded-timeouts",
                ("exceeded timeouts",),
                r"socket(?:Start|Poll)Connect: exceeded timeouts",
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
                ("failed : Connection timed out", "failed : No route to host", "failed : Network is unreachable"),
                rf"Connect to {_PEER} failed : (?:Connection timed out|No route to host|Network is unreachable)",
                "all",
                "misc/socket.cc",
                "{peer} does not answer.",
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
                r"socket(?:Start|Poll)Connect: exceeded retries",
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
                "A connection was refused to the end.",
            ),
            Signature(
                "connect-failed-refused",
                ("failed : Connection refused",),
                rf"Connect to {_PEER} failed : Connection refused",
                "all",
                "misc/socket.cc",
                "{peer} refuses.",
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
                ("Call to recv from", "Call to send to"),
                rf"Call to (?:recv from|send to) {_PEER} failed : (?P<error>Connection timed out|Connection reset|"
                r"Broken pipe|No route to host)",
                "2.16+",
                "misc/socket.cc:289 (ProgressOpt)",
                "The connection to {peer} ended: {error}.",
                Role.ROOT,
                SUGGESTS,
            ),
            Signature(
                "closed-by-peer",
                ("Connection closed by remote peer",),
                rf"Connection closed by remote peer {_PEER}",
                "2.12+",
                "misc/socket.cc:35",
                "{peer} closed the connection.",
                Role.ROOT,
                SUGGESTS,
            ),
        ),
    ),
)
