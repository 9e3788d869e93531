# SPDX-License-Identifier: Apache-2.0
"""Many agents and clients at one farm: ``python benchmarks/farm_load.py ADDRESS PID AGENTS CLIENTS SECONDS RATE``.

All are made up, in one process; the clients ask RATE times a second, if the farm answers so fast. Once all are there,
it prints grants a second, the median milliseconds of a request, the milliseconds of CPU time of the farm PID for each
grant, the share of its time for which the farm had a CPU, and the peers that failed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any


class Channel(asyncio.Protocol):
    """Commands to a farm, one after the other."""

    def __init__(self) -> None:
        self._data = b""
        self._answer: asyncio.Future[dict[str, Any]] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.partition(b"Content-Length: ")[2].split()[0]):
            self._data = b""
            assert self._answer is not None
            if not self._answer.done():
                self._answer.set_result(json.loads(body))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or EOFError())

    async def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        body = json.dumps({"do": what, "user": "load", **fields}).encode()
        head = "POST /api HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._answer
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


class Load:
    """Agents that accept and clean up at once, and clients that give back at once what they get."""

    def __init__(self, host: str, port: int) -> None:
        self._where = host, port
        self._numbers = itertools.count()
        self.grants = 0
        self.times: list[float] = []

    async def connect(self) -> Channel:
        _, channel = await asyncio.get_running_loop().create_connection(Channel, *self._where)
        return channel

    async def agent(self, number: int, ready: asyncio.Event) -> None:
        channel, name = await self.connect(), f"board{number}"
        secret = (await channel.ask("register", place=name, keys=[f"k{number % 10}"], host="127.0.0.1", port=9))[
            "agent"
        ]
        ready.set()
        done: list[dict[str, Any]] = []
        while True:
            orders = (await channel.ask("next", place=name, agent=secret, done=done, hold=15))["orders"]
            done = [{"what": "accepted" if o["do"] == "offer" else "cleaned", "fence": o["fence"]} for o in orders]

    async def client(self, number: int, share: float) -> None:
        """Ask, give back, and rest for so long that all clients together ask as often as is wanted."""
        await asyncio.sleep(share * (number % 997) / 997)
        channel = await self.connect()
        while True:
            begin, secret = time.perf_counter(), f"{next(self._numbers):064}"
            view = await channel.ask("request", want=f"k{number % 10}", secret=secret, hold=15)
            while view["state"] == "queued":
                view = await channel.ask("wait", lease=view["lease"], secret=secret, hold=15, seen=view["position"])
            self.times.append(time.perf_counter() - begin)
            self.grants += 1
            await channel.ask("release", lease=view["lease"], secret=secret)
            await asyncio.sleep(max(0.0, share - (time.perf_counter() - begin)))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main(address: str, pid: int, agents: int, clients: int, seconds: float, rate: float) -> None:
    host, _, port = address.rpartition(":")
    load = Load(host, int(port))
    ready = [asyncio.Event() for _ in range(agents)]
    tasks = []
    for number in range(agents):
        tasks.append(asyncio.create_task(load.agent(number, ready[number])))
        await ready[number].wait()
    tasks += [asyncio.create_task(load.client(number, clients / rate)) for number in range(clients)]
    await asyncio.sleep(clients / rate)
    load.grants, load.times = 0, []
    begin, used = time.perf_counter(), cpu_seconds(pid)
    await asyncio.sleep(seconds)
    took, used = time.perf_counter() - begin, cpu_seconds(pid) - used
    failed = [task for task in tasks if task.done()]
    median, grants = statistics.median(load.times) * 1e3, load.grants
    print(f"{grants / took:.0f} {median:.2f} {used / grants * 1e3:.3f} {used / took:.2f} {len(failed)}", flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:5]), *map(float, sys.argv[5:])))
