# SPDX-License-Identifier: Apache-2.0
"""The executable of TVM's Relax VM in a library, in words: signatures, functions, constants, instructions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from portcall.bench import format_size
from portcall.cli._output import counted, listed, print_facts, print_line

if TYPE_CHECKING:
    from portcall.inspect import LibraryReport
    from portcall.vm import CacheInfo, ExecutableInfo, Signature

MOST_ITEMS = 4  # of a tuple whose types are shown


@dataclass(frozen=True)
class ExecutableReport:
    """An executable, and what is known of the functions that it calls.

    Attributes:
        kernels: those of the library.
        others: those of the runtime, or that somebody must register.
        missing: of these, the ones that nothing here has.
    """

    info: ExecutableInfo
    kernels: tuple[str, ...]
    others: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def cache(self) -> CacheInfo | None:
        """The cache of a language model."""
        from portcall.vm import read_cache

        return read_cache(self.info)

    @property
    def problems(self) -> list[str]:
        return [f"it calls the function '{name}', which must be registered first" for name in self.missing]

    def show(self, everything: bool) -> None:
        print_facts(self.facts(everything))
        for problem in self.problems:
            print_line(problem, "problem", "yellow")
        if everything:
            print_line("")
            print_line(self.info.listing.strip())

    def facts(self, everything: bool) -> Iterator[tuple[str, str]]:
        info = self.info
        called = [f for f in info.functions if f.kind != "packed"]
        kinds = sorted({f.kind for f in called})
        yield "executable", f"of TVM's Relax VM, {' and '.join(kinds) or 'without functions'}"
        yield (
            "functions",
            listed([str(each) if everything else in_short(each) for each in info.signatures.values()], everything)
            or "none",
        )
        count = sum(f.instructions for f in called)
        yield "instructions", f"{count:,}{'' if everything or not count else ' (--all lists them)'}"
        yield "kernels", listed(self.kernels if everything else counted(self.kernels), everything) or "none"
        yield "calls", listed(self.others, everything) or "nothing else"
        tensors = [constant for constant in info.constants if constant.type == "tensor"]
        size = format_size(sum(constant.nbytes for constant in tensors))
        if cache := self.cache:
            token, page = format_size(cache.bytes_per_token), format_size(16 * cache.bytes_per_token)
            yield (
                "cache",
                (
                    f"{cache.layers} layers, {cache.heads} heads, {cache.key_heads} of keys, of {cache.width} numbers "
                    f"({cache.dtype}): {token} a token, {page} a page of 16"
                ),
            )
        yield "constants", f"{len(info.constants)}, of them {len(tensors)} tensors with {size}"

    def to_dict(self) -> dict[str, object]:
        info = self.info
        return {
            "functions": [asdict(f) for f in info.functions],
            "signatures": {name: asdict(signature) for name, signature in info.signatures.items()},
            "constants": [asdict(constant) for constant in info.constants],
            "missing": list(self.missing),
            **({"cache": {**asdict(cache), "bytes_per_token": cache.bytes_per_token}} if (cache := self.cache) else {}),
            "listing": info.listing,
        }


def in_short(signature: Signature) -> str:
    """Return a signature as text, in which a tuple of many, such as a model's weights, is their number."""
    parameters = [
        replace(each, type=f"tuple of {len(each.items)}") if len(each.items) > MOST_ITEMS else each
        for each in signature.parameters
    ]
    return str(replace(signature, parameters=tuple(parameters)))


def open_executable(library: LibraryReport | None) -> ExecutableReport | None:
    """Read the executable in a library; None where there is none.

    Raises:
        ModuleLoadError: it is damaged.
    """
    from portcall import get_global_func, vm

    info = None if library is None else vm.read_embedded(library.path)
    if library is None or info is None:
        return None
    kernels = tuple(name for name in info.calls if name in library.functions)
    others = tuple(name for name in info.calls if name not in library.functions)
    get_global_func("portcall.LoadPlugin")("lm")  # built-in functions of language models
    known = [name for name in others if get_global_func(name, allow_missing=True) is not None]
    missing = () if len(library.modules) > 2 else tuple(name for name in others if name not in known)
    return ExecutableReport(info, kernels, others, missing)
