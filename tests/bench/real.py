# SPDX-License-Identifier: Apache-2.0
"""Real comparisons and real disturbances of this machine, whose truth is known; how often the judge is wrong is kept.

    PYTHONPATH=tests python tests/bench/real.py compare [COUNT]    # hours: goes on where the last run ended
    PYTHONPATH=tests python tests/bench/real.py disturb [COUNT]    # minutes: runs of each disturbance, 20
    PYTHONPATH=tests python tests/bench/real.py show               # the tables of what is kept

``real.json`` has each comparison of this method: another text of the two files that are the method begins anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import portcall
from portcall import toolchain
from portcall.bench import Comparison, compare, measure
from portcall.bench import _compare as procedure
from portcall.bench import _comparison as statistics
from portcall.rpc import PopenSession

RECORD = Path(__file__).with_name("real.json")
BLOCK_S = 0.01  # a fifth of what people get, which is harder, and takes a quarter of the time
QUIET = 0.05  # share of the cores that others may use beside a quiet comparison
KERNELS = """
#include <portcall/portcall.h>
#include <cmath>
using portcall::TensorView;
PORTCALL_EXPORT_TYPED(spin, [](int64_t steps) {
  double value = 0.5;  // from 1 on it would stay there, as compilers know
  for (int64_t i = 0; i < steps; ++i) value = value * 0.999 + 0.001;
  return value;
})
static void AddOne(TensorView x, TensorView y) {
  for (size_t i = 0; i < x.numel(); ++i) y.data<float>()[i] = x.data<float>()[i] + 1;
}
PORTCALL_EXPORT_TYPED(add_one, AddOne)
static void Roots(TensorView x, TensorView y) {
  for (size_t i = 0; i < x.numel(); ++i) y.data<float>()[i] = std::sqrt(x.data<float>()[x.numel() - 1 - i]);
}
PORTCALL_EXPORT_TYPED(roots, Roots)
"""
PROGRAM = """
#include <portcall/rpc.h>
#include <cstdlib>
using portcall::Module, portcall::Registry;
PORTCALL_REGISTER_GLOBAL("tvm.rpc.server.load_module").set_body_typed([](const std::string& path) {
  return Registry::GetRequired("ffi.ModuleLoadFromFile")(path).cast<Module>();
});
int main(int, char** arguments) {
  portcall::rpc::ServeOptions options;
  options.offer = {"*"};
  return !portcall::rpc::Serve(std::atoi(arguments[1]), std::atoi(arguments[2]), options);
}
"""  # started for each run: in a hundredth of the time of Python
WORK = 20_000  # steps of spin, and elements that the others take
KINDS = ("alone", "alone", "beside a neighbour")  # of A against A, in turns; 200 and 100 of 300
AGAINST = {"5 % more": 1.05, "the same": 1.0}
EVERY = 15  # so often one side has 5 % more to do


def main(command: str = "", count: str = "") -> int:
    with tempfile.TemporaryDirectory() as folder:
        if command == "show":
            show(load())
        elif command in ("compare", "disturb"):
            source = Path(folder, "kernels.cc")
            source.write_text(KERNELS)
            library = toolchain.create_shared(source, source.with_suffix(".so"))
            if command == "compare":
                source = Path(folder, "serve.cc")
                source.write_text(PROGRAM)
                compare_all(toolchain.create_executable(source, source.with_suffix("")), library, int(count or 320))
            else:
                disturb_all(library, int(count or 20))
        else:
            print(__doc__)
            return 2
    return 0


def load() -> dict[str, Any]:
    """Return what was found so far with the method as it is."""
    text = inspect.getsource(procedure) + inspect.getsource(statistics)
    method = hashlib.sha256(text.encode()).hexdigest()[:16]
    found: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return found if found.get("method") == method else {"method": method, "comparisons": []}


# ---- Comparisons ----


def compare_all(program: Path, library: Path, count: int) -> None:
    record = load()
    while len(record["comparisons"]) < count:
        number = len(record["comparisons"])
        truth = "5 % more" if number % EVERY == EVERY - 1 else "the same"
        kind = KINDS[number % len(KINDS)] if truth == "the same" else "alone"
        kernel = ("spin", "add_one", "roots")[number // len(KINDS) % 3]
        with neighbour() if kind != "alone" else contextlib.nullcontext():
            before, began = used(), time.monotonic()
            found = compare(
                lambda kernel=kernel, truth=truth: side(program, library, kernel, round(WORK * AGAINST[truth])),  # type: ignore[misc]
                lambda kernel=kernel: side(program, library, kernel, WORK),  # type: ignore[misc]
                block_s=BLOCK_S,
            )
            seconds = time.monotonic() - began
            others = (used() - before) / seconds / (os.cpu_count() or 1)
        record["comparisons"].append(row(found, truth, kind, kernel, seconds, others))
        part = RECORD.with_suffix(".part")
        part.write_text(text_of(record))
        part.replace(RECORD)
        print(number + 1, json.dumps(record["comparisons"][-1]), flush=True)
    show(record)


def text_of(record: dict[str, Any]) -> str:
    """Return the record with a line for each comparison."""
    rows = ",\n".join(map(json.dumps, record["comparisons"]))
    return f'{{"method": "{record["method"]}", "comparisons": [\n{rows}\n]}}\n'


def row(found: Comparison, truth: str, kind: str, kernel: str, seconds: float, others: float) -> dict[str, Any]:
    low, high = found.interval
    return {
        "date": time.strftime("%Y-%m-%d"), "truth": truth, "kind": kind, "kernel": kernel, "verdict": found.verdict,
        "ratio": round(found.ratio, 5), "interval": [round(low, 5), round(high, 5)], "runs": len(found.ratios),
        "seconds": round(seconds, 1), "others": round(others, 3),
    }  # fmt: skip


@contextlib.contextmanager
def side(program: Path, library: Path, kernel: str, work: int) -> Iterator[procedure.Timer]:
    """Open a kernel in a process of its own."""
    with PopenSession(program) as session:
        loaded = session.load_module(os.fspath(library))
        arguments = [work] if kernel == "spin" else [session.empty((work,), "float32") for _ in range(2)]

        def timer(number: int) -> float:
            timed = loaded.time_evaluator(kernel, session.cpu(), number, 1)(*arguments)
            return float(timed.results[0]) * number

        yield timer


@contextlib.contextmanager
def neighbour(task: Callable[[], None] | None = None) -> Iterator[None]:
    """Let another process work all the time."""
    process = multiprocessing.get_context("fork").Process(target=task or busy, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def busy() -> None:
    while True:
        pass


def used() -> float:
    """Return the seconds of processor time that other processes than this one and its children have used."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    working = sum(ticks[at] for at in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return working - sum(each.ru_utime + each.ru_stime for each in own)


def show(record: dict[str, Any]) -> None:
    """Print how often each answer was given."""
    answers = ("faster", "slower", "no difference", "not enough data")
    print(f"| comparisons | count | {' | '.join(answers)} | runs | seconds |\n|{' --- |' * 8}")
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in record["comparisons"]:
        name = f"{each['truth']}, {each['kind']}"
        if each["kind"] == "alone":
            name += ", quiet" if each["others"] < QUIET else ", others at work"
        groups.setdefault(name, []).append(each)
    for name, rows in sorted(groups.items()):
        found = Counter(each["verdict"] for each in rows)
        middle = [sorted(each[what] for each in rows)[len(rows) // 2] for what in ("runs", "seconds")]
        print(f"| {name} | {len(rows)} | {' | '.join(str(found[each]) for each in answers)} | "
              f"{middle[0]} | {middle[1]:.0f} |")  # fmt: skip
    rows = [each for each in record["comparisons"] if each["truth"] == "the same"]
    wrong = sum(each["verdict"] in ("faster", "slower") for each in rows)
    print(f"\nwrong: {wrong} of {len(rows)} of the same against the same")


# ---- Disturbances ----


def disturb_all(library: Path, count: int) -> None:
    """Measure beside each disturbance, and count the verdicts and their reasons."""
    print(f"| disturbed by | runs | doubtful | reasons |\n|{' --- |' * 4}")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # and a neighbour's, which is started later
    for name, disturbance in DISTURBANCES.items():
        doubtful, reasons, others = 0, Counter[str](), []
        for _ in range(count):
            try:
                with disturbance():
                    before, began = used(), time.monotonic()
                    verdict = once(library)
                    others.append((used() - before) / (time.monotonic() - began))
            except OSError as error:
                print(f"| {name} | not allowed here: {error} | | |")
                break
            doubtful += not verdict.ok
            reasons.update(each.code for each in verdict.findings if not each.note)
        else:
            said = ", ".join(f"{code} {times}" for code, times in reasons.most_common())
            print(f"| {name} | {count} | {doubtful} | {said} |  others used {sum(others) / count:.0%} of a core",
                  flush=True)  # fmt: skip


def once(library: Path) -> portcall.bench.Verdict:
    loaded = portcall.load_module(library)
    return measure(lambda number, repeat: loaded.time_evaluator("spin", "cpu", number, repeat)(WORK)).verdict


def bursts() -> None:
    """Work for 30 ms of each 100."""
    while True:
        until = time.monotonic() + 0.03
        while time.monotonic() < until:
            pass
        time.sleep(0.07)


def copies() -> None:
    """Copy memory on another core."""
    os.sched_setaffinity(0, {0})
    data = bytearray(64 << 20)
    while True:
        bytes(data)


@contextlib.contextmanager
def stops() -> Iterator[None]:
    """Stop this process for 20 ms, five times a second."""
    target = os.getpid()

    def stop() -> None:
        while True:
            time.sleep(0.18)
            os.kill(target, signal.SIGSTOP)
            time.sleep(0.02)
            os.kill(target, signal.SIGCONT)

    with neighbour(stop):
        yield


@contextlib.contextmanager
def quota(pid: int | None = None) -> Iterator[None]:
    """Let a process, this one if none is given, have 70 % of a core, by a control group of version 1 or 2.

    Raises:
        OSError: it is not allowed here.
    """
    pid = pid or os.getpid()
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    one = "cpu" if "cpu" in own else "cpu,cpuacct"
    base = Path("/sys/fs/cgroup", *([one] if one in own else []))
    home = base / own.get(one, own.get("", "/")).lstrip("/")
    group = home / f"portcall-{pid}"
    group.mkdir()
    try:
        if one in own:
            (group / "cpu.cfs_quota_us").write_text("70000")
        else:
            (group / "cpu.max").write_text("70000 100000")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for each in (group / "cgroup.procs").read_text().split():
            (home / "cgroup.procs").write_text(each)
        group.rmdir()


DISTURBANCES: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "nothing": contextlib.nullcontext,
    "a neighbour on the same core": neighbour,
    "a neighbour there for 30 ms of each 100": lambda: neighbour(bursts),
    "one that copies memory on another core": lambda: neighbour(copies),
    "SIGSTOP for 20 ms, five times a second": stops,
    "a quota of 70 % of a core": quota,
}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
