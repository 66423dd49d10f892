"""DCGM's values, from the text of a dcgm-exporter that the test serves."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from diag.collectors import dcgm
from diag.collectors.dcgm import Exporter, values_in
from diag.collectors.machine import readings
from diag.collectors.policy import RECORDING

A, B, ELSEWHERE = "GPU-1d82f4df-3cf9-150d-088b-52f18f8654e1", "GPU-94168100-c5d5-1c05-9005-26953dd598e7", "GPU-0"
_A = f'gpu="0",UUID="{A}",pci_bus_id="00000000:07:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3"'
_B = f'gpu="1",UUID="{B}",device="nvidia1",POD_UUID="x",Hostname="node {{1}}, \\"east\\"",pod="train-0"'
TEXT = f"""\
# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{{{_A}}} 79
DCGM_FI_DEV_XID_ERRORS{{{_B},err_code="0",err_msg="No Error"}} 0
DCGM_FI_DEV_POWER_USAGE{{{_A}}} 512.334000
DCGM_FI_DEV_POWER_VIOLATION{{{_A}}} 3000000000
DCGM_FI_DEV_THERMAL_VIOLATION{{{_A}}} 9223372036854775794
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{{{_B}}} 225 1764288000000
DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{_B}}} 2
DCGM_FI_PROF_SM_ACTIVE{{{_B}}} 0.929260
DCGM_FI_PROF_TENSOR_UTIL_RATIO{{{_A}}} 0.5
DCGM_FI_PROF_DRAM_ACTIVE{{{_A}}} 140737488355328.000000
DCGM_FI_PROF_DRAM_ACTIVE{{{_B}}} NaN
DCGM_FI_PROF_SM_ACTIVE{{gpu="0",UUID="{A}",GPU_I_PROFILE="1g.5gb",GPU_I_ID="13"}} 1
DCGM_FI_PROF_SM_ACTIVE{{gpu="0",UUID="{ELSEWHERE}"}} 0.25
DCGM_FI_DEV_SOMETHING_NEW_HERTZ{{{_A}}} 1
DCGM_FI_PROF_SM_ACTIVE{{gpu="0",UUID="{A}
DCGM_FI_PROF_SM_ACTIVE 1
go_goroutines 12
"""
VALUES = {
    f"dcgm.{A}.xid": 79,
    f"dcgm.{B}.xid": 0,
    f"dcgm.{A}.power_mw": 512_334,
    f"dcgm.{A}.power_violation_ns": 3_000_000_000,
    f"dcgm.{B}.nvlink_bytes_a_second": 225_000_000,
    f"dcgm.{B}.pcie_replays": 2,
    f"dcgm.{B}.sm_active_ppm": 929_260,
    f"dcgm.{A}.tensor_active_ppm": 500_000,
    f"dcgm.{A}:13.sm_active_ppm": 1_000_000,
}


def test_values_of_these_gpus_are_read_and_blank_ones_left_out() -> None:
    assert values_in(TEXT, [A, B]) == VALUES
    assert values_in(TEXT, [ELSEWHERE]) == {f"dcgm.{ELSEWHERE}.sm_active_ppm": 250_000}
    assert values_in(TEXT, []) == values_in("\x00" * 99 + "{" * 9999, [A]) == {}


class _Served:
    asked = 0
    status = 200
    text = TEXT


@contextmanager
def served() -> Iterator[tuple[_Served, str]]:
    """An exporter, and where it answers."""
    about = _Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            about.asked += 1
            self.send_response(about.status if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(about.text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield about, f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def asking(address: str) -> Exporter:
    return Exporter({dcgm.ADDRESS_VARIABLE: address})


def test_an_exporter_is_asked_for_the_gpus_that_nvml_shows() -> None:
    gpus = SimpleNamespace(read=lambda: iter([("gpu.x.memory_used", 1)]), uuids=[A, B])
    with served() as (about, address):
        for given in (address, f"http://{address}/metrics"):
            found = readings(gpus=gpus, exporter=asking(given))  # type: ignore[arg-type]
            assert {name: value for name, value in found.items() if name.startswith("dcgm.")} == VALUES
        assert about.asked == 2
        assert asking(address).read([]) == {}  # no GPU: nobody is asked
        assert Exporter({dcgm.ADDRESS_VARIABLE: "off"}).read([A]) == {}
        assert about.asked == 2


def test_what_does_not_answer_is_asked_less_and_less_often() -> None:
    with served() as (about, address):
        about.status = 503
        exporter = asking(address)
        for _ in range(1 + 2 * RECORDING.exporter_longest_pause):
            assert exporter.read([A]) == {}
        assert about.asked == 7  # 1, 3, 7, 15, 31 and 63 readings were left out between them
        about.status = 200
        while not exporter.read([A]):
            pass
        assert exporter.read([A])
        assert about.asked == 9


@pytest.mark.parametrize(
    "address", ["no such host", "127.0.0.1:1", "127.0.0.1:99999", "127.0.0.1:x", "[", "ftp://x:1/"]
)
def test_an_address_without_an_exporter_is_not_known(address: str) -> None:
    assert asking(address).read([A]) == {}


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (5 << 20)])
def test_another_server_at_the_port_is_not_known(says: bytes) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.recv(1 << 16)
                with suppress(OSError):  # it is read no further
                    connection.sendall(says)

        thread = threading.Thread(target=answer)
        thread.start()
        assert asking(f"127.0.0.1:{server.getsockname()[1]}").read([A]) == {}
        thread.join()


def test_an_exporter_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcgm, "RECORDING", SimpleNamespace(exporter_patience_s=0.05, exporter_longest_pause=63))
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        assert asking(f"127.0.0.1:{server.getsockname()[1]}").read([A]) == {}
