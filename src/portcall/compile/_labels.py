# SPDX-License-Identifier: Apache-2.0
"""Which nodes of an ONNX model each call of its program computes.

The importer names variables after nodes. Such names last until operators are fused, which forgets them; so the steps
before are compared with those inside of the fused functions, by function and arguments.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax

from portcall.compile._program import Call, Program, is_constant

_MARK = re.compile(r"onnx(\d+)_")
_NO_NAME = re.compile(r"\W+", re.ASCII)
_LONG = 80  # characters of a name
_FEW = 16  # elements of a constant that tell it from others


class _Step(int):
    """A step before fusion, by its number."""


class _Several(tuple[Any, ...]):
    """The results of a function, each as a key."""


class Labels:
    """Labels such as ``Conv /stem/Conv``: an operator and a node's name, or that of its result if it has none.

    Parameters:
        model: as it was given: nodes that are put in the place of others are called as these.
    """

    def __init__(self, model: Any) -> None:
        self._of_value = {
            value: f"{node.op_type} {node.name or node.output[0]}" for node in model.graph.node for value in node.output
        }
        self._outputs = [value.name for value in model.graph.output]
        self.forget()

    def forget(self) -> None:
        """Begin anew: the model is imported once more."""
        self._marked: list[str] = []
        self._labels: list[int | None] = []  # of the steps before fusion: places in _marked
        self._steps: dict[object, deque[_Step]] = defaultdict(deque)  # by function and arguments
        self._calls: list[tuple[str, list[int]]] = []  # after it: functions, and the steps that they do

    def mark(self, value: str) -> str:
        """Return the name of a variable for a value of the model; empty if no node of the model makes that."""
        if value not in self._of_value:
            return ""
        self._marked.append(self._of_value[value])
        return f"onnx{len(self._marked) - 1}_"

    def around(self, fusion: Any) -> list[Any]:
        """Return a pass that fuses operators, with passes before and after it that look."""

        def watch(look: Any) -> Any:
            def run(module: Any, context: Any) -> Any:
                look(module)
                return module

            return tvm.transform.module_pass(run, opt_level=0, name="Labels")

        return [watch(self._look_before), fusion, watch(self._look_after)]

    def give(self, program: Program) -> None:
        """Give the calls of a lowered program their labels."""
        place = 0
        for call in program.calls:
            later = range(place, len(self._calls)) if call.function else ()
            here = next((k for k in later if self._calls[k][0] == call.function), None)
            if here is None:
                continue  # a view, or made later
            place = here
            found = {self._labels[step] for step in self._calls[place][1]}
            call.nodes = [self._marked[label] for label in sorted(label for label in found if label is not None)]
            place += 1

    def names(self) -> dict[str, str]:
        """Return a name for each function of a lowered module that computes nodes of the model, as C and TVM allow it.

        It is that of the first node, such as ``Conv_stem_conv``; a function may compute others as well.
        """
        found: dict[str, str] = {}
        for function, steps in self._calls:
            labels = sorted(label for label in map(self._labels.__getitem__, steps) if label is not None)
            if labels:
                found.setdefault(function, _NO_NAME.sub("_", self._marked[labels[0]])[:_LONG])
        return found

    def _look_before(self, module: Any) -> None:
        keys: dict[Any, object] = {}
        users: dict[_Step, _Step] = {}  # the first of each step
        for variable, value in _bindings(module["main"]):
            key = _key(value, keys)
            if isinstance(value, relax.TupleGetItem):
                keys[variable] = key
                continue
            keys[variable] = step = _Step(len(self._labels))
            self._steps[key].append(step)
            for each in _steps_in(key):
                users.setdefault(each, step)
            mark = _MARK.match(str(variable.name))
            self._labels.append(int(mark[1]) if mark else None)
        self._label_results(_flat(module["main"].body.body, keys))
        for step in map(_Step, reversed(range(len(self._labels)))):  # one without a label is a part of what needs it
            if self._labels[step] is None and step in users:
                self._labels[step] = self._labels[users[step]]

    def _label_results(self, results: list[object]) -> None:
        for name, step in zip(self._outputs, results, strict=False):
            if isinstance(step, _Step) and self._labels[step] is None and name in self._of_value:
                self._labels[step] = len(self._marked)
                self._marked.append(self._of_value[name])

    def _look_after(self, module: Any) -> None:
        keys: dict[Any, object] = {}
        for variable, value in _bindings(module["main"]):
            function = value.op if isinstance(value, relax.Call) else None
            if isinstance(function, tvm.ir.GlobalVar):
                fused = module[function]
                inside = dict(zip(fused.params, (_key(each, keys) for each in value.args), strict=True))
                steps = [self._take(part, inside, made) for made, part in _bindings(fused)]
                made = _flat(fused.body.body, inside)
                keys[variable] = made[0] if len(made) == 1 else _Several(made)
                self._calls.append((str(function.name_hint), [step for step in steps if step is not None]))
            elif isinstance(value, relax.TupleGetItem):
                keys[variable] = _key(value, keys)
            else:
                step = self._take(value, keys, variable)
                self._calls.append((_function_of(value), [] if step is None else [step]))

    def _take(self, value: Any, keys: dict[Any, object], variable: Any) -> _Step | None:
        """Return the step that a call is, and note it for the variable."""
        key = _key(value, keys)
        waiting = None if isinstance(value, relax.TupleGetItem) else self._steps.get(key)
        step = waiting.popleft() if waiting else None
        unknown = step is None and not isinstance(value, relax.TupleGetItem)
        keys[variable] = object() if unknown else key if step is None else step  # keys of keys would grow and grow
        return step


def labels_of(call: Call) -> list[str]:
    """Return the labels of a call and of those that passes have moved into it."""
    parts = [*call.joined, *(part for part, _ in call.behind)]
    return list(dict.fromkeys([*(label for part in parts for label in labels_of(part)), *call.nodes]))


def _bindings(function: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(function.body, relax.SeqExpr):
        for block in function.body.blocks:
            for binding in block.bindings:
                if isinstance(binding, relax.VarBinding):
                    yield binding.var, binding.value


def _function_of(value: Any) -> str:
    if not isinstance(value, relax.Call):
        return ""
    called = value.args[0] if len(value.args) and isinstance(value.args[0], tvm.ir.GlobalVar) else value.op
    return str(getattr(called, "name_hint", getattr(called, "name", "")))


def _key(value: Any, keys: dict[Any, object]) -> Any:
    """Return what tells a value from others: a step by its number, a call by its function and arguments."""
    if isinstance(value, relax.Var):
        return keys.get(value, ("variable", str(value.name)))
    if isinstance(value, relax.TupleGetItem):
        whole = _key(value.tuple_value, keys)
        return whole[value.index] if isinstance(whole, _Several) else ("part", whole, value.index)
    if isinstance(value, relax.Tuple):
        return tuple(_key(part, keys) for part in value.fields)
    if isinstance(value, relax.Call):
        made = "" if _reads(value) else str(value.ty_args)  # such as numbers from 0 on, for one extent or another
        return (_function_of(value), made, *(_key(each, keys) for each in value.args))
    if is_constant(value):
        array = value.value.numpy()
        return ("constant", array.shape, array.reshape(-1)[:_FEW].tobytes())
    return str(value) if isinstance(value, relax.ShapeExpr) else type(value).__name__


def _reads(call: Any) -> bool:
    """Tell whether a call reads tensors."""
    return any(len(part.fields) if isinstance(part, relax.Tuple) else isinstance(part, relax.Var) for part in call.args)


def _flat(value: Any, keys: dict[Any, object]) -> list[object]:
    """Return the keys of a result, one by one."""
    return [_key(part, keys) for part in (value.fields if isinstance(value, relax.Tuple) else [value])]


def _steps_in(key: object) -> Iterator[_Step]:
    if isinstance(key, tuple):
        for part in key:
            yield from _steps_in(part)
    elif isinstance(key, _Step):
        yield key
