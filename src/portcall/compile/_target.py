# SPDX-License-Identifier: Apache-2.0
"""What the rules for kernels ask about a machine: its vectors, registers and caches.

A target is written ``native``, ``wasm32``, or as a triple such as ``aarch64-linux-gnu``; a colon may be followed by the
name of a processor that LLVM knows: ``native:haswell``, ``aarch64-linux-gnu:cortex-a72``.
"""

from __future__ import annotations

import contextlib
import difflib
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tvm
from tvm.target import codegen

_KIB = 1024
_SMALLEST_L2, _USUAL_L2 = 256 * _KIB, 512 * _KIB
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# The machines that are compiled for: LLVM's triple, the processor if none is named, and further words for LLVM.
_MACHINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    # Level 3 takes LLVM longer (a fifth, for the kernels of one network), and made none of eight models faster.
    "x86_64": ("x86_64-linux-gnu", "x86-64-v3", {"opt-level": 2}),
    "aarch64": ("aarch64-linux-gnu", "generic", {"mattr": ["+neon"]}),
    # Without the hard-float ABI, floats are passed in other registers than the runtime's compiler uses.
    "arm": ("armv7l-linux-gnueabihf", "cortex-a9", {"mattr": ["+neon"], "mfloat-abi": "hard"}),
    "riscv64": ("riscv64-linux-gnu", "generic-rv64", {"mattr": ["+m", "+a", "+f", "+d", "+c"], "mabi": "lp64d"}),
    "wasm32": ("wasm32-unknown-unknown-wasm", "generic", {"mattr": ["+simd128"], "vector-width": 128}),
}
_WEBGPU = {"kind": "webgpu", "max_num_threads": 256}  # a group's, on every device
_TUNING = ("fast-", "slow-", "false-deps-", "prefer-")  # with which LLVM's names of what is only faster begin
_ALIASES = {"amd64": "x86_64", "arm64": "aarch64", "armv7l": "arm", "armv7": "arm"}
# Passes of TVM's, by name.
_DONE_BY_LLVM = (
    "s_tir.StmtSimplify", "tirx.RemoveNoOp", "s_tir.HoistIfThenElse", "s_tir.InsertHoistIfThenElse",
    "s_tir.RenormalizeSplitPattern", "tirx.CommonSubexprElim",
)  # fmt: skip
_MAKES_SMALL = "s_tir.CompactBufferAllocation"


@dataclass(frozen=True)
class Target:
    """A machine to compile for.

    Attributes:
        name: as it was asked for.
        machine: the kind of processor: x86_64, aarch64, arm, riscv64 or wasm32.
        triple: machine-system-abi for the linker; empty for this machine.
        cpu: the processor, by LLVM's name.
        lanes: how many float32 a vector has.
        registers: how many vector registers there are.
        l2_nbytes: the second-level cache of a core.
        tvm: the same for TVM.
    """

    name: str
    machine: str
    triple: str
    cpu: str
    lanes: int
    registers: int
    l2_nbytes: int
    tvm: Any

    @property
    def runs_here(self) -> bool:
        """Whether this machine, with its system and processor, runs what is compiled for the target."""
        if self.name == "native":
            return True
        if self.triple not in ("", _MACHINES.get(_kind_of(platform.machine()), ("",))[0]):
            return False
        native = tvm.target.Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()})
        needed = {str(each) for each in codegen.llvm_get_cpu_features(self.tvm)}
        return {each for each in needed if not each.startswith(_TUNING)} <= set(
            map(str, codegen.llvm_get_cpu_features(native))
        )

    @property
    def accumulators(self) -> int:
        """How many registers a tile of results may take: the rest holds what is multiplied, and addresses."""
        return self.registers - 4

    @property
    def tile_rows(self) -> int:
        return 14 if self.registers >= 32 else 6

    @property
    def tile_vectors(self) -> int:
        return 4 if self.registers >= 32 else 3

    def passes(self, *, ours: bool) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which TVM makes machine code.

        On processors, passes are left out that do what LLVM does as well. They make no kernel faster, and took a third
        of the time of a network, half of one with extents that are not known.

        Parameters:
            ours: no function has schedules of others, which may rely on what makes their working memory small.
        """
        if self.name == "webgpu":
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = tvm.transform.PassContext(
            disabled_pass=[*_DONE_BY_LLVM, *([_MAKES_SMALL] if ours else [])]
        )
        return context


def find_target(name: str, *, gpu: bool = False) -> Target:
    """Return the target of a name.

    Parameters:
        gpu: a GPU may be meant: ``webgpu``, which a tab has.

    Raises:
        ValueError: no such machine is known, or LLVM knows no such processor.
    """
    if name == "webgpu":
        if not gpu:
            raise ValueError(f"target '{name}' is for modules of TVM's Relax alone: portcall.compile.relax")
        host = find_target("wasm32")
        return replace(host, name=name, tvm=tvm.target.Target({**_WEBGPU, "host": dict(host.tvm.export())}))
    where, _, cpu = name.partition(":")
    machine = platform.machine() if where == "native" else where.partition("-")[0]
    machine = _kind_of(machine)
    if machine not in _MACHINES:
        known = ", ".join(triple for triple, _, _ in _MACHINES.values())
        raise ValueError(f"unknown target '{name}'; known are native, {known}, each with or without :CPU after it")
    triple, usual_cpu, words = _MACHINES[machine]
    native = where == "native"
    cpu = cpu or (codegen.llvm_get_system_cpu() if native else usual_cpu)
    if not codegen.llvm_is_valid_cpu(cpu, triple):
        of_triple = tvm.target.Target({"kind": "llvm", "mtriple": triple})
        near = difflib.get_close_matches(cpu, map(str, codegen.llvm_get_cpu_archlist(of_triple)), n=3)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"target '{name}': LLVM knows no processor '{cpu}' for {triple}{meant}")
    # These names are LLVM's own, and TVM would start LLVM with them as they are.
    keys = (
        {"kind": "llvm", "mcpu": cpu, **words} if native else {"kind": "llvm", "mtriple": triple, "mcpu": cpu, **words}
    )
    made = tvm.target.Target(keys)
    lanes, registers = _vectors(machine, made)
    return Target(name, machine, "" if native else where, cpu, lanes, registers, _l2(native), made)


def _kind_of(machine: str) -> str:
    """Return the name by which a kind of processor is known here."""
    return _ALIASES.get(machine.lower(), machine.lower())


def _vectors(machine: str, target: Any) -> tuple[int, int]:
    """Return the float32 of a vector, and the number of vector registers."""
    if machine == "x86_64":
        if codegen.llvm_cpu_has_features("avx512f", target):
            return 16, 32
        return (8, 16) if codegen.llvm_cpu_has_features("avx2", target) else (4, 16)
    if machine == "wasm32":  # it has no registers; of the 16 of an x86 processor, engines need some themselves
        return 4, 12
    return (4, 32) if machine == "aarch64" else (4, 16)


def _l2(native: bool) -> int:
    """Return the bytes of the second-level cache; a usual size where it is not known."""
    for cache in _CACHES.glob("index*") if native else ():
        with contextlib.suppress(OSError, ValueError):
            if (cache / "level").read_text().strip() == "2":
                return max(_SMALLEST_L2, int((cache / "size").read_text().strip().removesuffix("K")) * _KIB)
    return _USUAL_L2
