# SPDX-License-Identifier: Apache-2.0
"""A farm under load and under fire, and then a look for what was lost, given twice or left.

    python tests/farm/soak.py --clients 200 --boards 20 --seconds 600

Most boards and clients are light ones, in this process; two boards are servers, whose clients are processes. Meanwhile
servers, sessions, agents, clients and the farm itself are killed, peers send garbage and half requests, or do not read;
the disk of the farm's store is full now and then; nobody reads the farm's log. A place never has sessions of two leases
at once, every request ends, all boards come back, and the farm neither grows nor keeps descriptors or threads.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from farm.garbage import throw
from farm.light import LOST, Board, Channel, Client, Facts, RefusedError
from rpc.soak import marked

KEYS = ["k0", "k1", "k2", "k3"]
REAL = 2  # boards that are servers
FUNCTIONS = """
import fcntl, os, time
from portcall import register_func

@register_func("soak.hold")
def hold(path, lease):
    "Be the only session of a lease that is not ours, as long as this process lives; returns the other's lease."
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.05)  # until the other has written its name
        return os.pread(file, 100, 0).decode()
    os.truncate(file, 0)
    os.pwrite(file, lease.encode(), 0)
    return ""
"""
CLIENT = """
import random, sys, time
import portcall.farm
from portcall import errors
farm, folder = sys.argv[1:]
while True:
    try:
        with portcall.farm.connect(farm, user="real") as lab, lab.lease("real", wait=20, ttl=10) as lease:
            with lease.session(timeout=10) as session:
                other = session["soak.hold"](f"{folder}/{lease.place}", lease.id)
                print("conflict" if other and other != lease.id else "done", lease.place, lease.id, other, flush=True)
                time.sleep(random.uniform(0.1, 1))
    except (errors.RPCError, OSError) as error:
        print("error", type(error).__name__, getattr(error, "reason", ""), flush=True)
        time.sleep(0.2)
"""


class FarmProcess:
    """A farm, which comes back after each kill, on the same port and store; nobody reads what it says."""

    def __init__(self, store: Path, mark: str) -> None:
        self._store, self._environment = store, {**os.environ, "SOAK": mark}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._unread, self._log = os.pipe()
        fcntl.fcntl(self._log, fcntl.F_SETPIPE_SZ, 4096)

    def start(self) -> None:
        """Start it.

        Raises:
            ChildProcessError: it ends at once.
        """
        words = [sys.executable, "-m", "portcall", "farm", "--port", str(self.port), "--store", str(self._store)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self._log, env=self._environment)
        assert self.process.stdout is not None
        with self.process.stdout as out:
            ready = out.readline().startswith(b"listening")
        if not ready:
            raise ChildProcessError(f"the farm did not start: it ended with {self.process.wait()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            os.close(self._unread)
            os.close(self._log)

    def figures(self) -> dict[str, int]:
        """Resident memory in KiB, threads and descriptors; none where it does not run."""
        with contextlib.suppress(OSError, ValueError):
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            ticks = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            return {"cpu seconds": sum(map(int, ticks)) // os.sysconf("SC_CLK_TCK"),
                    "rss": int(found["VmRSS"].split()[0]), "threads": int(found["Threads"]),
                    "descriptors": len(os.listdir(f"/proc/{self.process.pid}/fd"))}  # fmt: skip
        return {}


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """Mount a file system of a fixed size there; yields whether the system lets us."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Take all room that is left."""
    with contextlib.suppress(OSError), open(folder / "full", "wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 65536)


class Soak:
    """One run.

    Parameters:
        clients, boards: how many; two of the boards are servers, and with three clients processes of their own.
        seconds: how long; the farm is killed in the first half only, so that the second shows whether it grows.
    """

    def __init__(self, clients: int, boards: int, seconds: float, seed: int = 1, verbose: bool = True) -> None:
        self._clients, self._number, self._seconds = clients, boards, seconds
        self._draw = random.Random(seed)
        self._verbose = verbose
        self._facts = Facts()
        self._stop, self._calm = asyncio.Event(), asyncio.Event()
        self._mark = secrets.token_hex(8)
        self._real: dict[str, subprocess.Popen[bytes]] = {}
        self._away: set[asyncio.Task[Any]] = set()

    def say(self, text: str) -> None:
        if self._verbose:
            print(f"{time.monotonic() - self._begin:7.1f} s  {text}", flush=True)

    async def run(self) -> dict[str, Any]:
        """Soak, and return what was seen; ``failures`` is empty where all was as it should be."""
        self._begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="portcall-soak-") as name:
            self._folder = Path(name)
            disk = self._folder / "disk"
            disk.mkdir()
            with small_disk(disk, (32 << 20) + int(self._seconds * (1 << 18))) as full:
                self._disk = disk if full else None
                self._farm = FarmProcess(disk / "farm.db", self._mark)
                self._farm.start()
                try:
                    await self._shoot_and_look()
                finally:
                    for process in self._real.values():
                        process.kill()
                        process.wait()
                    code = self._farm.stop()
                    self.check(code == 0, f"the farm ended with {code}")
        await self.settle(lambda: not marked(self._mark), 20)
        left = [Path(f"/proc/{pid}/cmdline").read_bytes()[:80] for pid in marked(self._mark)]
        self.check(not left, f"processes are left: {left}")
        self.check(not self._facts.conflicts, f"given twice: {self._facts.conflicts}")
        summary = {"seconds": round(time.monotonic() - self._begin), "full disk": self._disk is not None}
        return {**summary, **self._figures, "count": dict(sorted(self._facts.count.items())),
                "failures": self._facts.failures}  # fmt: skip

    def check(self, good: bool, text: str) -> None:
        if not good:
            self._facts.failures.append(text)

    async def settle(self, condition: Any, patience: float) -> bool:
        until = time.monotonic() + patience
        while not condition():
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.2)
        return True

    # ---- The run ----

    async def _shoot_and_look(self) -> None:
        port, facts = self._farm.port, self._facts
        boards = {
            f"light{n}": Board(port, f"light{n}", [KEYS[n % len(KEYS)]], facts) for n in range(self._number - REAL)
        }
        self._boards, self._lives = boards, {name: self._spawn(board.run()) for name, board in boards.items()}
        (self._folder / "functions.py").write_text(FUNCTIONS)
        for number in range(REAL):
            self._start_server(f"real{number}")
        await self._wait_for_boards("at first")
        first = self._farm.figures()
        self.say(f"{self._number} boards are there: {first}")
        clients = [Client(port, n, boards, facts, KEYS) for n in range(self._clients - 3)]
        requests = [self._spawn(client.run(self._stop)) for client in clients]
        people = [self._spawn(self._follow(number)) for number in range(3)]
        others = [self._spawn(throw(port, self._calm, facts.count, n)) for n in range(20)]
        others += [self._spawn(work()) for work in (self._kill_peers, self._kill_farm, self._fill_disk, self._operate)]
        samples = await self._watch()
        self._calm.set()
        await asyncio.wait(others, timeout=30)
        self._stop.set()
        self.say("no more requests begin")
        _, late = await asyncio.wait(requests, timeout=120)
        doing = sorted(client.doing for client, task in zip(clients, requests, strict=True) if task in late)
        self.check(not late, f"{len(late)} clients have requests that do not end: {doing[:5]}")
        for task in people:
            task.cancel()
        await asyncio.wait(people)
        await self._wait_for_boards("at the end", idle=True)
        await self.settle(lambda: self._farm.figures().get("descriptors", 1 << 30) <= first["descriptors"] + 8, 40)
        self._compare(first, samples, self._farm.figures())
        for task in [*requests, *others, *self._lives.values()]:
            await _end(task)
        ended = await asyncio.gather(*requests, *others, *self._lives.values(), return_exceptions=True)
        broken = {repr(e) for e in ended if isinstance(e, Exception)}
        self.check(not broken, f"a light peer was answered in a way that it does not know: {sorted(broken)[:5]}")

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._away.add(task)
        task.add_done_callback(self._away.discard)
        return task

    async def _watch(self) -> list[dict[str, int]]:
        """Let it go on; return the farm's figures, second by second, since it was killed for the last time."""
        samples: list[dict[str, int]] = []
        pid, until, shown = 0, self._begin + self._seconds, 0.0
        while (now := time.monotonic()) < until:
            if self._farm.process.pid != pid:
                samples, pid = [], self._farm.process.pid
            self.check_farm()
            samples.append(self._farm.figures())
            if now - shown > 10:
                shown, count = now, self._facts.count
                self.say(f"{count['request done']} requests done, {count['sessions']} sessions, {samples[-1]}")
            await asyncio.sleep(1)
        return [sample for sample in samples if sample]

    def check_farm(self) -> None:
        code = self._farm.process.poll()
        if code not in (None, -signal.SIGKILL):
            self.check(False, f"the farm ended by itself with {code}")
            self._facts.count["farm ended by itself"] += 1
            self._farm.start()

    def _compare(self, first: dict[str, int], samples: list[dict[str, int]], last: dict[str, int]) -> None:
        """Compare the farm after its warm-up with the farm at the end."""
        warm = samples[len(samples) // 3] if samples else first
        self._figures = {"first": first, "warm": warm, "last": last, "most": max(s["rss"] for s in [*samples, last])}
        self.check(
            last["rss"] <= 1.25 * warm["rss"] + 16_000, f"the farm grows: {warm['rss']} KiB, then {last['rss']} KiB"
        )
        self.check(last["threads"] <= first["threads"] + 4, f"{last['threads']} threads, {first['threads']} at first")
        self.check(last["descriptors"] <= first["descriptors"] + 8,
                   f"{last['descriptors']} descriptors, {first['descriptors']} at first")  # fmt: skip

    async def _wait_for_boards(self, when: str, idle: bool = False) -> None:
        """Wait until all boards are there; at the end, that nobody has them or waits for them."""
        channel, until = Channel(self._farm.port, "soak"), time.monotonic() + 120
        ours, left, seen = {*self._boards, *self._real}, dict[str, str](), ""
        while time.monotonic() < until:
            with contextlib.suppress(RefusedError, *LOST):
                status = await channel.call("status")
                places = {p["place"]: p["state"] for p in status["places"] if p["place"] in ours}
                left = {name: places.get(name, "unknown") for name in ours if places.get(name) != "idle"}
                seen = f"{left}, {len(status['leases'])} leases, {status['waiting_total']} waiting"
                if not left and not (idle and (status["leases"] or status["waiting_total"])):
                    break
            await asyncio.sleep(0.5)
        else:
            self.check(False, f"{when} not all boards are idle: {seen}")
            for name, process in self._real.items():
                if name in left:
                    said = (self._folder / f"{name}.log").read_text().splitlines()[-10:]
                    self.check(False, f"{name} (exit code {process.poll()}) said at last: {said}")
        channel.close()

    # ---- What happens meanwhile ----

    def _start_server(self, name: str) -> None:
        words = [sys.executable, "-m", "portcall", "serve", "--farm", f"127.0.0.1:{self._farm.port}", "--key", "real",
                 "--place", name, "--import", str(self._folder / "functions.py")]  # fmt: skip
        with open(self._folder / f"{name}.log", "ab") as log:
            self._real[name] = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=log,
                                                env={**os.environ, "SOAK": self._mark})  # fmt: skip

    async def _follow(self, number: int) -> None:
        """Run a client of the servers, which is killed now and then."""
        words = [sys.executable, "-c", CLIENT, f"127.0.0.1:{self._farm.port}", str(self._folder)]
        while True:
            process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                                           env={**os.environ, "SOAK": self._mark})  # fmt: skip
            assert process.stdout is not None
            try:
                die_at = time.monotonic() + self._draw.uniform(5, 30)
                while time.monotonic() < die_at:
                    line = await asyncio.wait_for(process.stdout.readline(), 90)
                    if not line:
                        assert process.stderr is not None
                        said = (await process.stderr.read()).decode().splitlines()[-1:]
                        self.check(False, f"a real client ended by itself: {said}")
                        break
                    what = line.decode().split()
                    self._facts.count[f"real client: {' '.join(what[:3] if what[0] == 'error' else what[:1])}"] += 1
                    if what[0] == "conflict":
                        self._facts.conflict(line.decode())
            except asyncio.TimeoutError:
                self.check(False, "a real client waited for 90 s")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                self._facts.count["real client killed"] += 1

    async def _kill_peers(self) -> None:
        """Kill agents, servers, and what servers have started."""
        while not self._calm.is_set():
            await asyncio.sleep(self._draw.uniform(0.2, 1.5))
            if self._draw.random() < 0.9:
                name = self._draw.choice([*self._boards])
                await _end(self._lives[name])
                self._boards[name].die()
                self._facts.count["light board killed"] += 1
                self._lives[name] = self._spawn(self._boards[name].run())
            elif self._draw.random() < 0.5:
                name = self._draw.choice([*self._real])
                self._real[name].kill()
                self._real[name].wait()
                self._facts.count["server killed"] += 1
                self._start_server(name)
            else:
                children = [pid for pid in marked(self._mark) if _parent(pid) in {p.pid for p in self._real.values()}]
                if children:
                    self._facts.count["server's process killed"] += 1
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self._draw.choice(children), signal.SIGKILL)

    async def _kill_farm(self) -> None:
        while True:
            await asyncio.sleep(self._draw.uniform(0.1, 0.2) * min(self._seconds, 120))
            if time.monotonic() > self._begin + self._seconds / 2:
                return
            self._farm.kill()
            self._facts.count["farm killed"] += 1
            await asyncio.sleep(self._draw.uniform(0, 2))
            if self._disk is not None:
                (self._disk / "full").unlink(missing_ok=True)  # a farm does not start where nothing can be written
            await asyncio.to_thread(self._farm.start)

    async def _fill_disk(self) -> None:
        while self._disk is not None and not self._calm.is_set():
            await asyncio.sleep(self._draw.uniform(0.05, 0.2) * min(self._seconds, 120))
            await asyncio.to_thread(fill, self._disk)
            self._facts.count["disk full"] += 1
            await asyncio.sleep(self._draw.uniform(1, 4))
            (self._disk / "full").unlink(missing_ok=True)

    async def _operate(self) -> None:
        """Look at the farm, as people do, and say that boards are well that were killed too often."""
        channel = Channel(self._farm.port, "operator")
        while not self._calm.is_set():
            await asyncio.sleep(2)
            with contextlib.suppress(RefusedError, *LOST):
                for place in (await channel.call("status"))["places"]:
                    if place["health"] == "quarantined":
                        await channel.call("good", place=place["place"])
                        self._facts.count["said to be well"] += 1
        channel.close()


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it has ended: ``asyncio.wait_for`` may take an answer for the cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.2)


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def soak(clients: int, boards: int, seconds: float, seed: int = 1, verbose: bool = True) -> dict[str, Any]:
    """Run a soak, and return what was seen."""

    async def run() -> dict[str, Any]:
        return await Soak(clients, boards, seconds, seed, verbose).run()

    return asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--boards", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    summary = soak(given.clients, given.boards, given.seconds, given.seed)
    print(json.dumps(summary, indent=2))
    sys.exit(1 if summary["failures"] else 0)


if __name__ == "__main__":
    main()
