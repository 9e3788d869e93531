# SPDX-License-Identifier: Apache-2.0
"""Write a program as a graph: its calls with their kernels, its constants as parameters."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from portcall.compile._kernels import Kernel, Rules
from portcall.compile._labels import labels_of
from portcall.compile._program import Call, Program, Value
from portcall.compile._weights import aligned, give_back
from portcall.errors import ModelError
from portcall.graph import ORIGIN, Entry, Graph, GraphBuilder

Array = Any
_LARGE = 1 << 20  # bytes


def emit(
    program: Program, rules: Rules, outputs: Sequence[str], metadata: Mapping[str, Any]
) -> tuple[Graph, dict[str, Array]]:
    """Return the graph and its parameters.

    Parameters:
        outputs: the names of the model's results; nodes that make them are called so.
        metadata: kept in the graph.
    """
    emitter = _Emitter(program, rules, outputs)
    emitter.run()
    builder = emitter.builder
    return dataclasses.replace(builder.graph(), metadata=dict(metadata)), builder.params


def _check_elements(call: Call) -> None:
    """Refuse to read elements of what has none, such as a Gather from an empty table."""
    if any(0 in value.shape for value in call.inputs):
        what = (labels_of(call) or [call.function])[0]
        text = f"{what}: it reads elements of a value that has none"
        raise ModelError(text, problems=[text])


class _Emitter:
    def __init__(self, program: Program, rules: Rules, outputs: Sequence[str]) -> None:
        self.program, self.rules = program, rules
        self.builder = GraphBuilder()
        self._entries: dict[Value, Entry] = {}
        self._params: dict[object, Entry] = {}
        self._outputs = list(zip(outputs, program.outputs, strict=True))
        self._reserved = {name for name, _ in self._outputs} | {value.name for value in program.inputs}
        self._names: set[str] = set()
        self._last: Counter[str] = Counter()  # the last number that each stem got

    def run(self) -> None:
        for value in self.program.inputs:
            self._entries[value] = self.builder.input(value.name, value.shape, value.dtype)
        own = self._own_names()
        left = Counter(value for call in self.program.calls for value in call.inputs)
        left.update(self.program.outputs)
        for call in self.program.calls:
            if not call.function:
                (made,) = call.outputs
                name = own.get(made) or self._free("reshape")
                self._entries[made] = self.builder.reshape(self._entry(call.inputs[0]), made.shape, name=name)
                continue
            _check_elements(call)
            kernel = self.rules.choose(call)
            inputs = [self._input(kernel, place, value) for place, value in enumerate(call.inputs)]
            several, nodes = len(call.outputs) > 1, labels_of(call)
            stem = nodes[0].partition(" ")[2] if nodes else kernel.name
            name = self._free(stem) if several else own.get(call.outputs[0]) or self._free(stem)
            made = self.builder.call(
                kernel.name, inputs, [value.shape for value in call.outputs] if several else call.outputs[0].shape,
                [value.dtype for value in call.outputs] if several else call.outputs[0].dtype,
                name=name, flatten_data=kernel.flat, attrs={ORIGIN: "\n".join(nodes)} if nodes else None,
            )  # fmt: skip
            left.subtract(call.inputs)
            for value in call.inputs:
                if not left[value]:
                    large = value.data is not None and value.data.nbytes >= _LARGE
                    value.data = None  # what was packed is not kept twice
                    if large:
                        give_back()
            for value, entry in zip(call.outputs, made if several else [made], strict=True):
                self._entries[value] = entry
        for name, value in self._outputs:
            entry = self._entry(value)
            self.builder.output(
                entry if own.get(value) == name else self.builder.reshape(entry, value.shape, name=name)
            )

    def _own_names(self) -> dict[Value, str]:
        """Return the values whose nodes are called as the model's results are; other results become views."""
        single = {call.outputs[0] for call in self.program.calls if len(call.outputs) == 1}
        found: dict[Value, str] = {}
        for name, value in self._outputs:
            if value in single:
                found.setdefault(value, name)
        return found

    def _input(self, kernel: Kernel, place: int, value: Value) -> Entry:
        pack = kernel.packs.get(place)
        if pack is None:
            return self._entry(value)
        key = (value, kernel.name, place)
        if key not in self._params:
            self._params[key] = self.builder.param(self._free("p"), aligned(pack(value.data)))
        return self._params[key]

    def _entry(self, value: Value) -> Entry:
        if value not in self._entries:
            assert value.data is not None, "a value is a constant or was made before"
            self._entries[value] = self.builder.param(self._free("p"), aligned(value.data))
        return self._entries[value]

    def _free(self, stem: str) -> str:
        """Return a name that no node and no result has."""
        name = stem
        while name in self._names or name in self._reserved:
            self._last[stem] += 1
            name = f"{stem}_{self._last[stem]}"
        self._names.add(name)
        return name
