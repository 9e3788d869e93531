# SPDX-License-Identifier: Apache-2.0
"""A farm beside TVM's tracker, in the same run: ``python benchmarks/farm.py``. Other load disturbs both."""

from __future__ import annotations

import json
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from portcall.farm import connect
from portcall.farm._state import State

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "scripts" / "tvm_farm.py"
TVM_TRACKER = """
import sys, time
from tvm.rpc.tracker import Tracker
tracker = Tracker("127.0.0.1", 9290, 9999, silent=True)
print(tracker.port, flush=True)
sys.stdin.read()
tracker.terminate()
"""


def start(*command: object) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def stop(process: subprocess.Popen[str], by_itself: bool = False) -> None:
    """End a process; one that ends ``by_itself`` with its standard input is given time to end its own children."""
    assert process.stdin is not None
    process.stdin.close()
    if not by_itself:
        process.terminate()
    process.wait(30)


class Raw:
    """A peer of the tracker's protocol that writes each message at once."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(b"\x71\xf2\x02\x00")
        self.sock.recv(4)

    def ask(self, value: object) -> object:
        data = json.dumps(value).encode()
        self.sock.sendall(struct.pack("<i", len(data)) + data)
        head = self.sock.recv(4, socket.MSG_WAITALL)
        return json.loads(self.sock.recv(struct.unpack("<i", head)[0], socket.MSG_WAITALL))


def grants(port: int, count: int) -> float:
    """Return the median seconds of a request that is granted at once."""
    server, client = Raw(port), Raw(port)
    server.ask([5, {"key": "server:b", "addr": [None, 1]}])
    took = []
    for number in range(count):
        server.ask([3, "b", [1, f"b:{number}"], None])
        begin = time.perf_counter()
        client.ask([4, "b", "", 1])
        took.append(time.perf_counter() - begin)
    return statistics.median(took)


def tvm_sessions(port: int, count: int) -> float:
    """Return the seconds of so many sessions of TVM's client with TVM's server."""
    server, _ = start(sys.executable, SCRIPT, "server", "127.0.0.1", port, "k")
    try:
        client, line = start(sys.executable, SCRIPT, "client", "127.0.0.1", port, "k", count)
        client.wait()
        return float(line.split()[1]) * count / (count - 1)
    finally:
        stop(server, by_itself=True)


def portcall_leases(address: str, count: int) -> tuple[float, float]:
    """Return the median seconds of a lease on a warm connection, and of a lease with a session."""
    board, _ = start(sys.executable, "-m", "portcall", "serve", "--farm", address, "--key", "k", "--silent")
    leases, sessions = [], []
    try:
        with connect(address, token="") as farm:
            for number in range(count):
                begin = time.perf_counter()
                with farm.lease("k") as lease:
                    leases.append(time.perf_counter() - begin)
                    if number % 5 == 0:
                        with lease.session():
                            sessions.append(time.perf_counter() - begin)
    finally:
        stop(board)
    return statistics.median(leases), statistics.median(sessions)


def decisions(places: int, waiting: int, wants: int, count: int) -> tuple[float, float]:
    """Return the median seconds of a release with the decision after it, and of one more request.

    In the state machine alone. The requests ask for so many different things; every place has all of them.
    """
    state = State()
    for number in range(places):
        state.register(f"board{number}", ["k"], {"size": wants})
    for number in range(places + waiting):
        state.request(f"k & size>{number % wants}", f"user{number % 500}", hopeless=True, ttl=1e9)
    released, asked = [], []
    for number in range(count):
        place = state.places[f"board{number * 7 % places}"]
        state.accepted(place.id, place.fence)
        begin = time.perf_counter()
        state.release(place.lease)
        state.cleaned(place.id, place.fence)
        released.append(time.perf_counter() - begin)
        assert place.state == "offered"
        begin = time.perf_counter()
        state.request(f"k & size>{number % wants}", "another", hopeless=True, ttl=1e9)
        asked.append(time.perf_counter() - begin)
        for done in (state.effects, state.events, state.changed):
            done.clear()
    return statistics.median(released), statistics.median(asked)


def pump(source: socket.socket, sink: socket.socket, size: int) -> float:
    """Return the seconds of so many bytes from one socket to another."""
    block = bytes(1 << 20)

    def send() -> None:
        for _ in range(size // len(block)):
            source.sendall(block)

    thread = threading.Thread(target=send)
    into, got = bytearray(1 << 20), 0
    begin = time.perf_counter()
    thread.start()
    while got < size:
        got += sink.recv_into(into)
    thread.join()
    return time.perf_counter() - begin


def joined(port: int, text: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(struct.pack("<ii", 0xFF271, len(text)) + text.encode())
    return sock


def pair(port: int) -> tuple[socket.socket, socket.socket]:
    """Return a server and a client that the farm brought together."""
    server, client = joined(port, "server:pump"), joined(port, "client:pump")
    server.recv(8 + len("client:pump"), socket.MSG_WAITALL)
    client.recv(8 + len("server:pump"), socket.MSG_WAITALL)
    return server, client


def proxied(port: int, pid: int, size: int, times: int) -> tuple[float, float, float, float]:
    """Return the seconds through the farm, and those of a socket, with the farm's and the socket's CPU time.

    All are the least of so many each, in turns: the one in which others took the least.
    """
    server, client = pair(port)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        two, _ = listener.accept()
    through, direct, farm, own = [], [], [], []
    for _ in range(times):
        begin = cpu_seconds(pid)
        through.append(pump(client, server, size))
        farm.append(cpu_seconds(pid) - begin)
        begin = time.process_time()
        direct.append(pump(one, two, size))
        own.append(time.process_time() - begin)
    for sock in (server, client, one, two):
        sock.close()
    return min(through), min(direct), min(farm), min(own)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process's first thread so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def slow_reader(port: int, pid: int, size: int) -> float:
    """Return by how many MB the farm's memory grows at most while so many bytes go to a slow reader."""
    server, client = pair(port)
    thread = threading.Thread(target=client.sendall, args=(bytes(size),))
    before, most, got, into = memory(pid, "VmRSS"), 0.0, 0, bytearray(1 << 20)
    thread.start()
    while got < size:
        time.sleep(0.01)
        got += server.recv_into(into)
        most = max(most, memory(pid, "VmRSS"))
    thread.join()
    server.close()
    client.close()
    return most - before


def memory(pid: int, what: str = "VmHWM") -> float:
    """Return the memory of a process in MB: the greatest so far, or with ``VmRSS`` what it has now."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{what}:")[2].split()[0]) / 1024


def load(address: str, pid: int, *words: object) -> str:
    """Return words on many agents and clients at a farm."""
    command = [sys.executable, ROOT / "benchmarks" / "farm_load.py", address, pid, *words]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    rate, median, cost, share, failed = map(float, done.stdout.split())
    return (f"{rate:.0f} grants/s, median {median:.1f} ms; {cost:.2f} ms of the farm's CPU time for each, which had "
            f"{share:.0%} of a CPU; {failed:.0f} failed")  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = (sys.executable, "-m", "portcall", "farm", "--port", 0, "--store", f"{folder}/farm.db", "--silent")
        farm, line = start(*command)
        tracker, tracker_port = start(sys.executable, "-c", TVM_TRACKER)
        try:
            address = line.split()[-1]
            port = int(address.rpartition(":")[2])
            ours, theirs = grants(port, 300), grants(int(tracker_port), 50)
            print(f"grant, tracker's protocol      {ours * 1e3:8.3f} ms   TVM's tracker {theirs * 1e3:8.3f} ms")
            lease, session = portcall_leases(address, 100)
            print(f"lease, portcall's client       {lease * 1e3:8.3f} ms   with a session {session * 1e3:8.3f} ms")
            ours, theirs = tvm_sessions(port, 10), tvm_sessions(int(tracker_port), 10)
            print(
                f"ten sessions of TVM's ends     {ours:8.3f} s    TVM's tracker {theirs:8.3f} s  {ours / theirs:.2f} x"
            )
            for places, wants in ((1, 1), (1000, 100)):
                freed, asked = decisions(places, 10_000, wants, 500)
                print(f"10,000 wait for {wants:3} wants, {places:4} places   decision {freed * 1e3:8.3f} ms   "
                      f"request {asked * 1e3:8.3f} ms")  # fmt: skip
            through, direct, cpu, own = proxied(port, farm.pid, 256 << 20, 40)
            print(f"256 MiB through the farm       {0.25 / through:8.2f} GiB/s  a socket {0.25 / direct:8.2f} GiB/s  "
                  f"{direct / through:.2f} x; CPU time {cpu * 1e3:.0f} ms, socket {own * 1e3:.0f} ms")  # fmt: skip
            print(f"256 MiB to a slow reader       {slow_reader(port, farm.pid, 256 << 20):8.1f} MB more in the farm")
            print(f"1,000 agents, 2,000 clients    {load(address, farm.pid, 1000, 2000, 20, 500)}")
            print(f"greatest memory of the farm    {memory(farm.pid):8.0f} MB")
        finally:
            stop(farm)
            stop(tracker, by_itself=True)


if __name__ == "__main__":
    main()
