# SPDX-License-Identifier: Apache-2.0
"""Where two executors of one graph begin to differ: their nodes' outputs, one after the other.

The second may run elsewhere, or use other kernels: the graphs need nodes alike in the same order, not the same
names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from portcall import errors
from portcall._compare import compare_arrays
from portcall.graph._debug import known_values, value_of
from portcall.graph._module import GraphModule
from portcall.graph._profile import as_text, text_table

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """How an output of a node differs.

    Attributes:
        index, name, function: the node, as the first executor has it.
        output: which of its outputs.
        value: type and shape, such as ``float32[4,16]``.
        ok: every element agrees.
        largest_error: the largest difference; None where shapes or types differ.
        message: one line; with the element that is furthest off where they differ.
    """

    index: int
    name: str
    function: str
    output: int
    value: str
    ok: bool
    largest_error: float | None
    message: str


@dataclass(frozen=True)
class GraphComparison:
    """How two executors differ. ``str`` gives a table, and the first difference in words.

    Attributes:
        nodes: each output of each node, in the order of execution, inputs and parameters among them.
    """

    nodes: tuple[NodeDifference, ...]

    @property
    def first(self) -> NodeDifference | None:
        """The first that differs; what differs after it may only be its consequence."""
        return next((node for node in self.nodes if not node.ok), None)

    @property
    def ok(self) -> bool:
        """Whether all agree."""
        return self.first is None

    @property
    def verdict(self) -> str:
        """The first difference in words, or that there is none."""
        if self.first is None:
            return f"all {len(self.nodes)} outputs of nodes agree"
        wrong = sum(not node.ok for node in self.nodes)
        more = f"; {wrong} of {len(self.nodes)} outputs of nodes differ" if wrong > 1 else ""
        return f"the first difference is in node {self.first.index}, {self.first.name!r}: {self.first.message}{more}"

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as dicts and lists."""
        return {"ok": self.ok, "verdict": self.verdict, "nodes": [asdict(node) for node in self.nodes]}

    def __rich__(self) -> Table:
        columns = ("#", "node", "function", "output", "value", "agrees", "largest error")
        rows = [
            (
                str(node.index), node.name, node.function or "(input)", str(node.output), node.value,
                "yes" if node.ok else "NO", "" if node.largest_error is None else f"{node.largest_error:.3g}",
            )
            for node in self.nodes
        ]  # fmt: skip
        return text_table(columns, rows, right=("#", "output", "largest error"))

    def __str__(self) -> str:
        return f"{as_text(self)}\n\n{self.verdict}"


def compare(
    a: GraphModule,
    b: GraphModule,
    rtol: float | None = None,
    atol: float | None = None,
    inputs: Mapping[str, Any] | None = None,
    **named: Any,
) -> GraphComparison:
    """Run two executors of one graph side by side and say where their values begin to differ.

    Parameters:
        a, b: here or in sessions; each with its parameters set. ``b`` is what ``a`` is measured by.
        rtol, atol: an element agrees when ``|a - b| <= atol + rtol * |b|``; by default what its type is good for.
        inputs, named: are set in both.

    Raises:
        GraphError: the graphs have other nodes; or an input was never set.
        ArgumentError: an input is not of the graph's type.
    """
    ours, theirs = a.plan.graph, b.plan.graph
    for executor in (a, b):
        executor.set_input(inputs, **named)
    if [len(node.outputs) for node in ours.nodes] != [len(node.outputs) for node in theirs.nodes]:
        raise errors.GraphError(
            f"the graphs differ, so that their nodes cannot be compared: one has {len(ours.nodes)} nodes with "
            f"{len(ours.values)} outputs, the other {len(theirs.nodes)} with {len(theirs.values)}"
        )
    there = set(known_values(b))
    both = [place for place in known_values(a) if place in there]
    found = []
    for index, output in both:
        node = ours.nodes[index]
        name = node.name if len(node.outputs) == 1 else f"{node.name}:{output}"
        mine, other = value_of(a, index, output), value_of(b, index, output)
        result = compare_arrays(name, mine.numpy(), other.numpy(), rtol, atol)
        value = str(ours.values[node.outputs[output]])
        found.append(
            NodeDifference(
                index, node.name, node.function, output, value, result.ok, result.largest_error, result.message
            )
        )
    return GraphComparison(tuple(found))
