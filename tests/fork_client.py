"""Stands for a Python that has imported PyTorch already. Called as ``python -IS fork_client.py ADDRESS``, it takes what
Python takes (``-c CODE``, ``-m MODULE`` or a script, and arguments), has tests/fork_server.py fork a process that runs
it with this one's streams, environment and current folder, passes signals on, and ends as that process did.

Imports little: that is its point.
"""

import os
import signal
import socket
import struct
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FORKS = "DIAG_TESTS_FORKS"  # the environment's: `diag` with this address starts its processes there as well
ENDED = struct.Struct("i")  # the status, as waitpid returns it


def ask(address: str, words: list[str], environment: dict[str, str], folder: str, streams: list[int]) -> socket.socket:
    """Asks for a process. The server answers with its number, and when it ends with its status; it kills a process
    whose connection is closed before."""
    import marshal

    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    request = marshal.dumps((words, environment, folder))
    socket.send_fds(connection, [ENDED.pack(len(request))], streams)
    connection.sendall(request)
    return connection


def answer(connection: socket.socket) -> int:
    """The next number of the server. Raises EOFError where it has ended."""
    read = b""
    while len(read) < ENDED.size:
        more = connection.recv(ENDED.size - len(read))
        if not more:
            raise EOFError("the server of forks has ended")
        read += more
    number: int = ENDED.unpack(read)[0]
    return number


def main() -> None:
    connection = ask(sys.argv[1], sys.argv[2:], dict(os.environ), os.getcwd(), [0, 1, 2])  # noqa: PTH109
    process = answer(connection)
    for number in PASSED_ON:
        signal.signal(number, lambda sent, _frame: os.kill(process, sent))
    code = os.waitstatus_to_exitcode(answer(connection))
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
