# SPDX-License-Identifier: Apache-2.0
"""A picture of a graph: SVG that a browser shows and scrolls, the same bytes for the same graph.

The layout is that of layers, as Sugiyama, Tagawa and Toda described it (1981): a node lies below all that it reads;
long edges pass each layer in their own place; a few sweeps order the layers by the means of neighbours, and then
place them, each layer as close to its neighbours as the order allows (isotonic regression by pooling adjacent
violators). Time grows with nodes and edges. An edge across many layers is not drawn: the reader names its source, and
links to it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

from portcall import Device
from portcall.graph._module import GraphSource, output_names, read_graph
from portcall.graph._spec import COPY, NOP, PLACEHOLDER, Graph, Node

_CHARACTER, _LINE, _PADDING = 7.3, 16.0, 8.0  # of the type, in pixels
_GAP, _STEP, _MARGIN = 18.0, 44.0, 20.0  # between boxes, between layers, around all
_EDGE_WIDTH = 10.0  # what a passing edge takes of a layer
_LIGHT = 0.02  # the weight of what stands beside the calls
_LONGEST_TEXT = 30
_MOST_LAYERS = 24  # that an edge is drawn across
_SWEEPS = 8
_LINKS = 3  # sources that a box names
_UNPRINTABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML cannot hold

# kind: (what the legend says, fill, border)
_COLOURS = {
    "input": ("input", "#d9efda", "#3f8f45"),
    "parameter": ("parameter", "#eeeeee", "#8a8a8a"),
    "call": ("call", "#dce9fb", "#3b6fb5"),
    "view": ("view (no copy)", "#fdf3cf", "#b8922a"),
    "copy": ("copy between devices", "#fbe0cf", "#c46a2b"),
    "output": ("output", "#e9defa", "#7a4fb5"),
}


_FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"
 font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12">
<style>
a text {{ fill: #3b6fb5; }}
.n:hover rect, .n:target rect {{ stroke-width: 3; }}
.e {{ fill: none; stroke: #777; }}
.e:hover {{ stroke: #d0342c; stroke-width: 3; }}
.f {{ font-weight: bold; }}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0,0 L8,4 L0,8 z" fill="#777"/></marker></defs>
<rect width="100%" height="100%" fill="#ffffff"/>
{parts}
</svg>
"""


@dataclass
class _Box:
    """What is placed in a layer: a node, an output of the graph, or the passage of an edge (without a kind)."""

    layer: int
    kind: str = ""
    lines: tuple[str, ...] = ()
    title: str = ""
    anchor: str = ""
    links: list[tuple[str, str]] = field(default_factory=list)  # of edges that are not drawn: (anchor, name)
    width: float = _EDGE_WIDTH
    height: float = 0.0
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    weight: float = 4.0  # how much its neighbours, and the places of others, give way; passing edges are to be straight
    x: float = 0.0  # the middle
    y: float = 0.0  # the upper end


@dataclass
class _Edge:
    """A line through boxes, from its source to its reader."""

    path: list[int]
    title: str


def draw(graph_json: GraphSource, parameters: Collection[str] = ()) -> str:
    """Return a graph as SVG.

    Parameters:
        graph_json: as for ``create``.
        parameters: the names of the placeholders that are parameters, which a graph itself does not tell.

    Raises:
        GraphError: the text is not a graph.
    """
    graph = read_graph(graph_json)
    return _Picture(graph, frozenset(parameters)).svg()


class _Picture:
    def __init__(self, graph: Graph, parameters: Collection[str]) -> None:
        self.graph = graph
        self.owners = graph.owners()
        self.several_devices = len({value.device_type for value in graph.values}) > 1
        self.boxes: list[_Box] = []
        self.edges: list[_Edge] = []
        layers = _layers_of(graph, self.owners)
        for number, node in enumerate(graph.nodes):
            self._add_node(number, node, layers[number], parameters)
        for index, name in enumerate(output_names(graph)):
            self._add_output(index, name, graph.outputs[index], layers)
        self._connect()

    # ---- What there is ----

    def _add_node(self, number: int, node: Node, layer: int, parameters: Collection[str]) -> None:
        values = [str(self.graph.values[entry]) for entry in node.outputs]
        function = "" if node.function in (NOP, COPY) else node.function
        device = self._device(node)
        if node.op == PLACEHOLDER:
            kind = "parameter" if node.name in parameters else "input"
        else:
            kind = {NOP: "view", COPY: "copy"}.get(node.function, "call")
        shown = values if len(values) <= 2 else [*values[:1], f"… {len(values)} outputs"]
        lines = tuple(_shortened(line) for line in (node.name, function, *shown, device) if line)
        facts = [f"node {number}: {node.name}", f"{function or _COLOURS[kind][0]} {device}".rstrip()]
        facts += [f"reads {self._source(entry)} {self.graph.values[entry]}" for entry in node.inputs]
        facts += [f"gives {value}" for value in values]
        self._add(_Box(layer, kind, lines, "\n".join(facts), f"n{number}"))

    def _add_output(self, index: int, name: str, entry: int, layers: Sequence[int]) -> None:
        value = str(self.graph.values[entry])
        lines = (_shortened(f"output {index}"), _shortened(name), value)
        title = f"output {index}: {name}\nis {self._source(entry)} {value}"
        self._add(_Box(layers[self.owners[entry]] + 1, "output", lines, title, f"o{index}"))

    def _device(self, node: Node) -> str:
        """Return where its first output is, in a graph of several devices."""
        kind = self.graph.values[node.outputs[0]].device_type if node.outputs else None
        return f"on {Device(kind).kind}" if kind is not None and self.several_devices else ""

    def _add(self, box: _Box) -> None:
        box.width = max(map(len, box.lines)) * _CHARACTER + 2 * _PADDING
        box.height = len(box.lines) * _LINE + _PADDING
        box.weight = _LIGHT if box.kind in ("input", "parameter", "output") else 1.0
        self.boxes.append(box)

    def _source(self, entry: int) -> str:
        node = self.graph.nodes[self.owners[entry]]
        return node.name if len(node.outputs) == 1 else f"{node.name}:{entry - node.outputs.start}"

    def _connect(self) -> None:
        nodes = len(self.graph.nodes)
        pairs = [(entry, reader) for reader, node in enumerate(self.graph.nodes) for entry in node.inputs]
        pairs += [(entry, nodes + index) for index, entry in enumerate(self.graph.outputs)]
        for entry, reader in dict.fromkeys(pairs):
            source = self.owners[entry]
            first, last = self.boxes[source].layer, self.boxes[reader].layer
            if last - first > _MOST_LAYERS:
                self.boxes[reader].links.append((self.boxes[source].anchor, self._source(entry)))
                continue
            path = [source]
            for layer in range(first + 1, last):
                path.append(len(self.boxes))
                self.boxes.append(_Box(layer))
            path.append(reader)
            for upper, lower in pairwise(path):
                self.boxes[upper].below.append(lower)
                self.boxes[lower].above.append(upper)
            self.edges.append(_Edge(path, f"{self._source(entry)} {self.graph.values[entry]}"))

    # ---- Where it lies ----

    def _arrange(self) -> tuple[float, float]:
        """Place all boxes, and return the width and the height of the picture."""
        layers: list[list[int]] = [[] for _ in range(max((box.layer for box in self.boxes), default=0) + 1)]
        for number, box in enumerate(self.boxes):
            layers[box.layer].append(number)
        self._order(layers)
        self._place(layers)
        left = min((box.x - box.width / 2 for box in self.boxes), default=0.0)
        y = _MARGIN + 2 * _LINE
        for layer in layers:
            for number in layer:
                self.boxes[number].x += _MARGIN - left
                self.boxes[number].y = y
            linked = any(self.boxes[number].links for number in layer)
            y += max(self.boxes[number].height for number in layer) + _STEP + linked * _LINE if layer else 0
        right = max((box.x + box.width / 2 for box in self.boxes), default=0.0)
        return right + _MARGIN, y - _STEP + _MARGIN

    def _order(self, layers: list[list[int]]) -> None:
        """Sort each layer by the mean place of its neighbours, downwards and upwards by turns."""
        place = [0.0] * len(self.boxes)

        def number(layer: list[int]) -> None:
            for position, box in enumerate(layer):
                place[box] = position / len(layer)

        for layer in layers:
            number(layer)
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            for layer in layers if down else reversed(layers):
                means = {}
                for box in layer:
                    near = self._beside(box, down)
                    means[box] = sum(place[other] for other in near) / len(near) if near else place[box]
                layer.sort(key=means.__getitem__)  # sort keeps the order of equals
                number(layer)

    def _place(self, layers: list[list[int]]) -> None:
        """Move each layer to the mean of its neighbours, without overlaps, downwards and upwards by turns."""
        for layer in layers:
            self._spread(layer, [0.0] * len(layer))
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            for layer in layers if down else reversed(layers):
                wanted = []
                for box in layer:
                    near = [self.boxes[k] for k in self._beside(box, down) or [box]]
                    wanted.append(sum(other.x * other.weight for other in near) / sum(other.weight for other in near))
                self._spread(layer, wanted)

    def _beside(self, box: int, down: bool) -> list[int]:
        return self.boxes[box].above if down else self.boxes[box].below

    def _spread(self, layer: Sequence[int], wanted: Sequence[float]) -> None:
        """Give the boxes of a layer the places nearest to those wanted, by the sum of squares, that keep them apart."""
        offsets = [0.0] * len(layer)
        for k in range(1, len(layer)):
            one, other = self.boxes[layer[k - 1]], self.boxes[layer[k]]
            offsets[k] = offsets[k - 1] + (one.width + other.width) / 2 + _GAP
        blocks: list[tuple[float, float, int]] = []  # weighted sum, weight, boxes
        for k, box in enumerate(layer):
            weight = self.boxes[box].weight
            total, weights, count = weight * (wanted[k] - offsets[k]), weight, 1
            while blocks and blocks[-1][0] * weights > total * blocks[-1][1]:
                before = blocks.pop()
                total, weights, count = total + before[0], weights + before[1], count + before[2]
            blocks.append((total, weights, count))
        k = 0
        for total, weights, count in blocks:
            for _ in range(count):
                self.boxes[layer[k]].x = total / weights + offsets[k]
                k += 1

    # ---- What it looks like ----

    def svg(self) -> str:
        width, height = self._arrange()
        legend = list(self._legend())
        width = max(width, _MARGIN + sum(_legend_width(text) for _, text in legend))
        parts = [
            *self._legend_lines(legend),
            *(self._edge(edge) for edge in self.edges),
            *(self._box(box) for box in self.boxes if box.kind),
        ]
        return _FRAME.format(width=f"{width:.0f}", height=f"{height:.0f}", parts="\n".join(parts))

    def _legend(self) -> Iterator[tuple[str, str]]:
        counts = Counter(box.kind for box in self.boxes)
        return ((kind, f"{counts[kind]} {text}") for kind, (text, *_) in _COLOURS.items() if counts[kind])

    def _legend_lines(self, legend: Sequence[tuple[str, str]]) -> Iterator[str]:
        x = _MARGIN
        for kind, text in legend:
            _, fill, border = _COLOURS[kind]
            yield (
                f'<rect x="{x:.1f}" y="{_MARGIN:.1f}" width="12" height="12" rx="3" fill="{fill}" stroke="{border}"/>'
                f'<text x="{x + 18:.1f}" y="{_MARGIN + 10:.1f}">{escape(text)}</text>'
            )
            x += _legend_width(text)

    def _edge(self, edge: _Edge) -> str:
        """Draw a curve that leaves and enters boxes upright, and goes straight through layers."""
        source, reader = self.boxes[edge.path[0]], self.boxes[edge.path[-1]]
        points = [(source.x, source.y + source.height)]
        for number in edge.path[1:-1]:
            points.append((self.boxes[number].x, self.boxes[number].y))
        points.append((reader.x, reader.y - 2))
        words = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
        for (x0, y0), (x1, y1) in pairwise(points):
            middle = (y0 + y1) / 2
            words.append(f"C{x0:.1f},{middle:.1f} {x1:.1f},{middle:.1f} {x1:.1f},{y1:.1f}")
        return f'<path class="e" marker-end="url(#tip)" d="{" ".join(words)}"><title>{_text(edge.title)}</title></path>'

    def _box(self, box: _Box) -> str:
        _, fill, border = _COLOURS[box.kind]
        left = box.x - box.width / 2
        place = f'x="{left:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
        parts = [
            f'<g class="n" id="{box.anchor}"><title>{_text(box.title)}</title>',
            f'<rect {place} rx="5" fill="{fill}" stroke="{border}"/>',
        ]
        for number, line in enumerate(box.lines):
            y = box.y + (number + 1) * _LINE - 1
            bold = ' class="f"' if number == 0 else ""
            parts.append(f'<text{bold} x="{box.x:.1f}" y="{y:.1f}" text-anchor="middle">{_text(line)}</text>')
        for number, (anchor, name) in enumerate(box.links[:_LINKS]):
            y = box.y + box.height + (number + 1) * _LINE - 3
            parts.append(
                f"<a href={quoteattr('#' + anchor)}>"
                f'<text x="{left:.1f}" y="{y:.1f}">↑ {_text(_shortened(name))}</text></a>'
            )
        return "".join([*parts, "</g>"])


def _layers_of(graph: Graph, owners: Sequence[int]) -> list[int]:
    """Return the layer of each node: calls below all that they read, placeholders just above their first reader."""
    layers = [0] * len(graph.nodes)
    readers: dict[int, int] = {}
    for number, node in enumerate(graph.nodes):
        if node.op == PLACEHOLDER:
            continue
        sources = [owners[entry] for entry in node.inputs]
        layers[number] = 1 + max((layers[source] for source in sources), default=0)
        for source in sources:
            if graph.nodes[source].op == PLACEHOLDER:
                readers[source] = min(readers.get(source, layers[number]), layers[number])
    for source, layer in readers.items():
        layers[source] = layer - 1
    return layers


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[: half - 1]}…{text[-half:]}"


def _text(text: str) -> str:
    return escape(_UNPRINTABLE.sub("\ufffd", text))


def _legend_width(text: str) -> float:
    return len(text) * _CHARACTER + 40
