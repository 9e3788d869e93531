# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, call-arg"
"""Pictures of graphs: read back as XML, and judged as a reader would: what is there, where, and what covers what."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from dataclasses import dataclass

import pytest
from hypothesis import given, settings

from graph.interpreter import random_graphs
from graph.models import Model, f32, many_json, mlp_json, mlp_params, two_devices_json
from portcall import errors, graph

SVG = "{http://www.w3.org/2000/svg}"


@dataclass
class Box:
    left: float
    top: float
    width: float
    height: float
    fill: str
    lines: list[str]
    title: str
    links: list[str]

    def apart(self, other: Box) -> bool:
        beside = self.left + self.width <= other.left or other.left + other.width <= self.left
        return beside or self.top + self.height <= other.top or other.top + other.height <= self.top


def boxes(svg: str) -> dict[str, Box]:
    """Return each box by its anchor: n and the node's number, o and the output's."""
    found = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        sides = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        lines = [str(text.text) for text in group.findall(f"{SVG}text")]
        links = [link.attrib["href"] for link in group.iter(f"{SVG}a")]
        title = str(group.findtext(f"{SVG}title"))
        found[group.attrib["id"]] = Box(*sides, rect.attrib["fill"], lines, title, links)
    return found


def edges(svg: str) -> list[str]:
    return [
        str(path.findtext(f"{SVG}title")) for path in ET.fromstring(svg).iter(f"{SVG}path") if "class" in path.attrib
    ]


def legend(svg: str) -> list[str]:
    return [str(text.text) for text in ET.fromstring(svg).findall(f"{SVG}text")]


def test_draw_shows_every_kind_of_node() -> None:
    svg = graph.draw(many_json())
    found = boxes(svg)
    assert found["n2"].lines == ["halves", "halves", "float32[2,3]", "float32[2,3]"]
    assert found["n3"].lines == ["total", "add_flat", "float32[2,3]"]
    assert found["n4"].lines == ["reshape_nop", "float32[3,2]"]
    assert found["o1"].lines == ["output 1", "floor", "int32[2,3]"]
    assert found["n3"].title.splitlines() == [
        "node 3: total", "add_flat", "reads halves:0 float32[2,3]", "reads y float32[2,3]", "gives float32[2,3]",
    ]  # fmt: skip
    assert legend(svg) == ["2 input", "4 call", "1 view (no copy)", "6 output"]
    assert sorted(edges(svg)) == sorted(
        ["x float32[2,6]", "halves:0 float32[2,3]", "y float32[2,3]", "total float32[2,3]",
         "reshape_nop float32[3,2]", "halves:1 float32[2,3]", "doubled float32[3,2]", "floor int32[2,3]",
         "halves:1 float32[2,3]", "halves:0 float32[2,3]", "doubled float32[3,2]", "y float32[2,3]"]
    )  # fmt: skip


def test_draw_colours_kinds_and_separates_parameters_from_inputs() -> None:
    found = boxes(graph.draw(mlp_json(), mlp_params()))
    kinds = {box.fill for box in (found["n0"], found["n1"], found["n3"], found["o0"])}
    assert len(kinds) == 4
    assert {found[f"n{k}"].fill for k in (1, 2, 5, 6)} == {found["n1"].fill}
    assert legend(graph.draw(mlp_json(), mlp_params()))[:2] == ["1 input", "4 parameter"]
    assert legend(graph.draw(mlp_json()))[0] == "5 input"


def test_draw_names_devices() -> None:
    found = boxes(graph.draw(two_devices_json()))
    assert found["n2"].lines == ["to", "float32[8,4]", "on ext_dev"]
    assert found["n1"].lines[-1] == "on cpu"


def check_places(picture: str, made: graph.Graph) -> None:
    found = boxes(picture)
    assert len(found) == len(made.nodes) + len(made.outputs)
    for one, other in itertools.combinations(found.values(), 2):
        assert one.apart(other)
    owners = made.owners()
    for number, node in enumerate(made.nodes):
        for entry in node.inputs:
            assert found[f"n{owners[entry]}"].top < found[f"n{number}"].top
    for index, entry in enumerate(made.outputs):
        assert found[f"n{owners[entry]}"].top < found[f"o{index}"].top
    root = ET.fromstring(picture)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in found.values():
        assert min(box.left, box.top) >= 0
        assert box.left + box.width <= width
        assert box.top + box.height <= height


@settings(max_examples=40)
@given(random_graphs(most_nodes=30))
def test_draw_places_boxes_apart_and_below_their_inputs(builder: graph.GraphBuilder) -> None:
    made = builder.graph()
    picture = graph.draw(made)
    check_places(picture, made)
    assert graph.draw(made.to_json()) == picture


def test_draw_escapes_and_shortens_texts() -> None:
    m = Model()
    name = "<script>alert('&\"')</script>\x07" + "y" * 60
    svg = graph.draw(m.json(m.call("f]]><g>", [m.input("</svg>", (2, 2))], f32(2, 2), name=name)))
    found = boxes(svg)
    assert found["n0"].lines[0] == "</svg>"
    assert found["n1"].lines[1] == "f]]><g>"
    assert len(found["n1"].lines[0]) == 30
    assert found["n1"].lines[0].startswith("<script>alert(")
    assert name.replace("\x07", "\ufffd") in found["n1"].title
    assert "<script" not in svg


def test_draw_shows_long_edges_as_links() -> None:
    m = Model()
    x = m.input("x", (2, 2))
    value = x
    for k in range(60):
        value = m.call("add", [value, x], f32(2, 2), name=f"n{k}")
    svg = graph.draw(m.json(value))
    found = boxes(svg)
    assert found["n10"].links == []
    assert found["n60"].links == ["#n0"]
    check_places(svg, graph.Graph.from_json(m.json(value)))
    assert sum(title.startswith("x ") for title in edges(svg)) < 30


@pytest.mark.parametrize("inputs", [0, 1])
def test_draw_accepts_tiny_graphs(inputs: int) -> None:
    m = Model()
    heads = [m.input(f"x{k}", ()) for k in range(inputs)]
    svg = graph.draw(m.json(*heads))
    assert list(boxes(svg)) == ["n0", "o0"][: 2 * inputs]
    check_places(svg, graph.Graph.from_json(m.json(*heads)))


def test_draw_refuses_other_values() -> None:
    with pytest.raises(errors.GraphError, match="not JSON"):
        graph.draw("x")
