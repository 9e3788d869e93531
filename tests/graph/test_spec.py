# SPDX-License-Identifier: Apache-2.0
"""Graph JSON of every era is read; what is wrong is refused with place and reason; what is written is what was read."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portcall import errors
from portcall.graph._spec import Graph, Value

# A text as the compilers lay it out, with a space behind each comma.
# x -> split -> (a, b); a is reshaped, and added to b.
COMPILED = """{
  "nodes": [
    {
      "op": "null",
      "name": "x",
      "inputs": []
    },
    {
      "op": "tvm_op",
      "name": "tvmgen_default_fused_split",
      "attrs": {
        "num_outputs": "2",
        "num_inputs": "1",
        "flatten_data": "0",
        "hash": "b42046847df8cb7b",
        "func_name": "tvmgen_default_fused_split"
      },
      "inputs": [
        [
          0,
          0,
          0
        ]
      ]
    },
    {
      "op": "tvm_op",
      "name": "reshape_nop",
      "attrs": {
        "num_outputs": "1",
        "num_inputs": "1",
        "flatten_data": "0",
        "func_name": "__nop"
      },
      "inputs": [
        [
          1,
          0,
          0
        ]
      ]
    },
    {
      "op": "tvm_op",
      "name": "tvmgen_default_fused_add",
      "attrs": {
        "num_outputs": "1",
        "num_inputs": "2",
        "flatten_data": "0",
        "func_name": "tvmgen_default_fused_add"
      },
      "inputs": [
        [
          2,
          0,
          0
        ],
        [
          1,
          1,
          0
        ]
      ]
    }
  ],
  "arg_nodes": [0],
  "heads": [
    [
      3,
      0,
      0
    ]
  ],
  "attrs": {
    "dltype": [
      "list_str",
      [
        "float32",
        "float32",
        "float32",
        "float32",
        "float32"
      ]
    ],
    "device_index": [
      "list_int",
      [1, 1, 1, 1, 1]
    ],
    "storage_id": [
      "list_int",
      [0, 1, 2, 1, 3]
    ],
    "shape": [
      "list_shape",
      [
        [4, 2],
        [2, 2],
        [4],
        [4],
        [4]
      ]
    ]
  },
  "node_row_ptr": [0, 1, 3, 4, 5]
}""".replace(",\n", ", \n")


def compiled() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(COMPILED)
    return document


def read(document: Any) -> Graph:
    return Graph.from_json(json.dumps(document))


def test_from_json_reads_values_and_nodes() -> None:
    graph = Graph.from_json(COMPILED)
    assert [node.name for node in graph.nodes] == [
        "x", "tvmgen_default_fused_split", "reshape_nop", "tvmgen_default_fused_add",
    ]  # fmt: skip
    assert [node.inputs for node in graph.nodes] == [(), (0,), (1,), (3, 2)]
    assert [list(node.outputs) for node in graph.nodes] == [[0], [1, 2], [3], [4]]
    assert [node.function for node in graph.nodes][:2] == ["", "tvmgen_default_fused_split"]
    assert graph.nodes[1].attrs["hash"] == "b42046847df8cb7b"
    assert graph.inputs == (0,)
    assert graph.outputs == (4,)
    assert graph.values[1] == Value((2, 2), graph.values[0].dtype, 1, 1)
    assert str(graph.values[0].dtype) == "float32"
    assert graph.values[0].nbytes == 32
    assert graph.owners() == [0, 1, 1, 2, 3]


def test_to_json_equals_the_compilers_file() -> None:
    assert Graph.from_json(COMPILED).to_json() == COMPILED


def test_to_json_lays_out_long_lists_as_compilers_do() -> None:
    document = chain(10)
    text = read(document).to_json()
    assert '"node_row_ptr": [\n    0, \n    1, \n' in text
    assert '"arg_nodes": [0], ' in text
    assert json.loads(text) == document


def chain(length: int) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = [{"op": "null", "name": "x", "inputs": []}]
    nodes += [call(f"n{k}", [[k - 1, 0, 0]]) for k in range(1, length)]
    return {
        "nodes": nodes,
        "arg_nodes": [0],
        "heads": [[length - 1, 0, 0]],
        "attrs": {
            "dltype": ["list_str", ["float32"] * length],
            "storage_id": ["list_int", [k and 1 + k % 2 for k in range(length)]],
            "shape": ["list_shape", [[3]] * length],
        },
        "node_row_ptr": list(range(length + 1)),
    }


def call(name: str, inputs: list[list[int]], function: str = "", outputs: int = 1) -> dict[str, Any]:
    counts = {"num_outputs": str(outputs), "num_inputs": str(len(inputs))}
    attrs = {**counts, "flatten_data": "0", "func_name": function or name}
    return {"op": "tvm_op", "name": name, "attrs": attrs, "inputs": inputs}


# ---- old forms -------------------------------------------------------------------------------------------------------


def nnvm_era() -> dict[str, Any]:
    """As nnvm and TVM 0.5 wrote it: attr, inputs of two numbers, dtype as list_int, another order of keys."""
    attr = {"func_name": "fuse_relu", "flatten_data": "1", "num_inputs": "1", "num_outputs": "1"}
    return {
        "nodes": [
            {"op": "null", "name": "x", "inputs": []},
            {"op": "tvm_op", "name": "relu0", "attr": attr, "inputs": [[0, 0]], "control_deps": [0]},
        ],
        "arg_nodes": [0],
        "node_row_ptr": [0, 1, 2],
        "heads": [[1, 0]],
        "attrs": {
            "storage_id": ["list_int", [1, 0]],
            "dtype": ["list_int", [0, 0]],
            "dltype": ["list_str", ["float", "float32"]],
            "shape": ["list_shape", [[1, 3, 20], [1, 3, 20]]],
            "op_count": ["size_t", 1],
        },
    }


def test_from_json_reads_nnvm_era_forms() -> None:
    graph = read(nnvm_era())
    assert graph.nodes[1].flatten_data
    assert graph.nodes[1].function == "fuse_relu"
    assert graph.nodes[1].control_deps == (0,)
    assert str(graph.values[0].dtype) == "float32"
    written = json.loads(graph.to_json())
    expected = nnvm_era()
    expected["nodes"][1]["attrs"] = expected["nodes"][1].pop("attr")
    expected["nodes"][1]["inputs"] = [[0, 0, 0]]
    expected["heads"] = [[1, 0, 0]]
    expected["attrs"]["dltype"][1][0] = "float32"
    assert written == expected
    assert list(written["attrs"]) == list(expected["attrs"])
    assert Graph.from_json(graph.to_json()) == graph


def change(**places: Any) -> dict[str, Any]:
    document = compiled()
    document.update(places)
    return document


def test_from_json_keeps_metadata() -> None:
    document = change(metadata={"signature": [1, 2.5, None]}, behind="whatever")
    written = json.loads(read(document).to_json())
    del document["behind"]
    assert written == document
    assert list(written)[-1] == "metadata"


def test_from_json_reads_flat_memory_scopes() -> None:
    document = compiled()
    document["attrs"]["storage_scope"] = ["list_str", ["", "global", "", "", ""]]
    assert json.loads(read(document).to_json()) == document


def test_from_json_without_storage_ids() -> None:
    document = compiled()
    del document["attrs"]["storage_id"]
    graph = read(document)
    assert graph.values[0].storage_id is None
    assert json.loads(graph.to_json()) == document


def test_from_json_takes_bytes() -> None:
    assert Graph.from_json(COMPILED.encode()) == Graph.from_json(COMPILED)


def test_from_json_accepts_any_names() -> None:
    document = compiled()
    for node in document["nodes"]:
        node["name"] = "größe" if node["op"] == "tvm_op" else "入力"
    graph = read(document)
    assert [node.name for node in graph.nodes] == ["入力", "größe", "größe", "größe"]
    assert Graph.from_json(graph.to_json()) == graph


def test_from_json_accepts_repeated_and_placeholder_heads() -> None:
    graph = read(change(heads=[[3, 0, 0], [0, 0, 0], [3, 0, 0], [1, 1, 0]]))
    assert graph.outputs == (4, 0, 4, 2)


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [("float32", 4), ("int", 4), ("bool", 1), ("uint1", 1), ("int4", 1), ("int8x4", 4), ("bfloat16", 2), ("handle", 8)],
)
def test_from_json_elements_below_a_byte_take_one(name: str, nbytes: int) -> None:
    document = chain(2)
    document["attrs"]["dltype"][1] = [name, name]
    assert [value.nbytes for value in read(document).values] == [3 * nbytes] * 2


# ---- malformed graphs ------------------------------------------------------------------------------------------------

Place = tuple[Any, ...]
REMOVE = object()


def altered(place: Place, value: Any) -> str:
    document = compiled()
    inner: Any = document
    for part in place[:-1]:
        inner = inner[part]
    if value is REMOVE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return json.dumps(document)


# (what is put where, path of the error, words of it)
MALFORMED: list[tuple[Place, Any, str, str]] = [
    # top level
    (("nodes",), REMOVE, "", "no nodes"),
    (("arg_nodes",), REMOVE, "", "no arg_nodes"),
    (("heads",), REMOVE, "", "no heads"),
    (("attrs",), REMOVE, "", "no attrs"),
    (("node_row_ptr",), REMOVE, "", "no node_row_ptr"),
    (("version",), 3, "", "unknown key 'version'"),
    (("nodes",), {}, "nodes", "a list expected, got {}"),
    (("attrs",), [], "attrs", "an object expected"),
    # nodes
    (("nodes", 1), None, "nodes[1]", "an object expected, got None"),
    (("nodes", 1, "op"), REMOVE, "nodes[1]", "no op"),
    (("nodes", 1, "name"), REMOVE, "nodes[1]", "no name"),
    (("nodes", 1, "inputs"), REMOVE, "nodes[1]", "no inputs"),
    (("nodes", 1, "colour"), "red", "nodes[1]", "unknown key 'colour'"),
    (("nodes", 1, "attr"), {}, "nodes[1]", "attr and attrs"),
    (("nodes", 1, "op"), "conv2d", "nodes[1].op", "was the model compiled?"),
    (("nodes", 1, "op"), 7, "nodes[1].op", "7 is neither"),
    (("nodes", 1, "name"), 7, "nodes[1].name", "a text expected, got 7"),
    (("nodes", 1, "name"), "\ud800", "nodes[1].name", "half of a surrogate pair"),
    (("nodes", 1), {"op": "null", "name": "x", "inputs": []}, "nodes[1].name", "'x': node 0 is a placeholder of that"),
    (("nodes", 0, "inputs"), [[0, 0, 0]], "nodes[0].inputs[0]", "node 0 is not before node 0"),
    (("nodes", 2), {"op": "null", "name": "y", "inputs": [[0, 0, 0]]}, "nodes[2].inputs", "reads nothing"),
    (("nodes", 0, "attrs"), {"num_outputs": "2"}, "nodes[0].attrs.num_outputs", "has one output"),
    (("nodes", 0, "attrs"), {"T": 3}, "nodes[0].attrs.T", "a text expected, got 3"),
    # inputs
    (("nodes", 1, "inputs"), "x", "nodes[1].inputs", "a list expected"),
    (("nodes", 1, "inputs", 0), 0, "nodes[1].inputs[0]", "[node, output, version] expected, got 0"),
    (("nodes", 1, "inputs", 0), [0], "nodes[1].inputs[0]", "expected, got [0]"),
    (("nodes", 1, "inputs", 0), [0, 0, 0, 0], "nodes[1].inputs[0]", "expected, got"),
    (("nodes", 1, "inputs", 0), [0.0, 0, 0], "nodes[1].inputs[0]", "got [0.0, 0, 0]"),
    (("nodes", 1, "inputs", 0), [False, 0, 0], "nodes[1].inputs[0]", "got [False, 0, 0]"),
    (("nodes", 1, "inputs", 0), [9, 0, 0], "nodes[1].inputs[0]", "there is no node 9; there are 4"),
    (("nodes", 1, "inputs", 0), [-1, 0, 0], "nodes[1].inputs[0]", "there is no node -1"),
    (("nodes", 1, "inputs", 0), [3, 0, 0], "nodes[1].inputs[0]", "node 3 is not before node 1"),
    (("nodes", 1, "inputs", 0), [10**30, 0, 0], "nodes[1].inputs[0]", "there is no node 1000"),
    (("nodes", 3, "inputs", 1), [1, 2, 0], "nodes[3].inputs[1]", "has no output 2; it has 2"),
    (("nodes", 3, "inputs", 1), [1, -1, 0], "nodes[3].inputs[1]", "has no output -1"),
    (("nodes", 1, "control_deps"), [1], "nodes[1].control_deps[0]", "a node before node 1 expected, got 1"),
    # attributes of nodes
    (("nodes", 1, "attrs"), REMOVE, "nodes[1].attrs", "no func_name"),
    (("nodes", 1, "attrs"), [], "nodes[1].attrs", "an object expected"),
    (("nodes", 1, "attrs", "func_name"), REMOVE, "nodes[1].attrs", "no func_name"),
    (("nodes", 1, "attrs", "num_inputs"), REMOVE, "nodes[1].attrs", "no num_inputs"),
    (("nodes", 1, "attrs", "num_outputs"), REMOVE, "nodes[1].attrs", "no num_outputs"),
    (("nodes", 1, "attrs", "flatten_data"), REMOVE, "nodes[1].attrs", "no flatten_data"),
    (("nodes", 1, "attrs", "func_name"), "", "nodes[1].attrs.func_name", "empty"),
    (("nodes", 1, "attrs", "num_inputs"), 1, "nodes[1].attrs.num_inputs", "a text expected, got 1"),
    (("nodes", 1, "attrs", "num_inputs"), "2", "nodes[1].attrs.num_inputs", "2, but the node has 1 inputs"),
    (("nodes", 1, "attrs", "num_inputs"), "one", "nodes[1].attrs.num_inputs", "a number as a text expected"),
    (("nodes", 1, "attrs", "num_outputs"), "-1", "nodes[1].attrs.num_outputs", "got '-1'"),
    (("nodes", 1, "attrs", "num_outputs"), "9" * 50, "nodes[1].attrs.num_outputs", "got '999"),
    (("nodes", 1, "attrs", "num_outputs"), "²", "nodes[1].attrs.num_outputs", "got '²'"),
    (("nodes", 1, "attrs", "num_outputs"), "900000000", "node_row_ptr[2]", "900000001 expected"),
    (("nodes", 1, "attrs", "flatten_data"), "yes", "nodes[1].attrs.flatten_data", "'0' or '1' expected"),
    (("nodes", 2, "attrs", "num_outputs"), "2", "node_row_ptr[3]", "5 expected"),
    # built-in functions
    (("nodes", 3, "attrs", "func_name"), "__copy", "nodes[3]", "not 2 inputs and 1 outputs"),
    (
        ("attrs", "shape", 1, 3),
        [5],
        "nodes[2]",
        "__nop from a value of float32 [2, 2] to one of float32 [5]; both must be of one size",
    ),
    (
        ("attrs", "dltype", 1),
        ["float32", "int4", "float32", "int8", "float32"],
        "nodes[2]",
        "__nop from a value of int4 [2, 2] to one of int8 [4]; both must be of one size",
    ),
    (("attrs", "device_index", 1), [1, 1, 1, 2, 2], "nodes[2]", "__nop moves nothing between devices"),
    # lists
    (("node_row_ptr",), [0, 1, 3, 4], "node_row_ptr", "4 elements, but 5"),
    (("node_row_ptr", 0), 1, "node_row_ptr[0]", "0 expected"),
    (("node_row_ptr", 2), 2, "node_row_ptr[2]", "3 expected, as many outputs as the nodes before it have, got 2"),
    (("node_row_ptr", 2), True, "node_row_ptr[2]", "got True"),
    (("arg_nodes",), [], "arg_nodes", "node 0, the placeholder 'x', is missing"),
    (("arg_nodes",), [0, 0], "arg_nodes[1]", "node 0 a second time"),
    (("arg_nodes",), [1], "arg_nodes[0]", "node 1 is a call"),
    (("arg_nodes",), [4], "arg_nodes[0]", "a node from 0 to 3 expected, got 4"),
    (("arg_nodes",), ["x"], "arg_nodes[0]", "got 'x'"),
    (("heads",), 3, "heads", "a list expected"),
    (("heads", 0), [4, 0, 0], "heads[0]", "there is no node 4"),
    (("heads", 0), [3, 1, 0], "heads[0]", "has no output 1; it has 1"),
    # attributes of the graph
    (("attrs", "shape"), REMOVE, "attrs", "no shape"),
    (("attrs", "dltype"), REMOVE, "attrs", "no dltype"),
    (("attrs", "shape"), [[4]], "attrs.shape", "a pair of list_shape"),
    (("attrs", "shape"), ["list_int", []], "attrs.shape[0]", "list_shape expected, got 'list_int'"),
    (("attrs", "shape", 1), [[4]], "attrs.shape[1]", "1 elements, but 5 entries"),
    (("attrs", "shape", 1, 2), 4, "attrs.shape[1][2]", "a list expected, got 4"),
    (("attrs", "shape", 1, 2), [-1], "attrs.shape[1][2][0]", "-1: an extent that is known at run time only"),
    (("attrs", "shape", 1, 2), ["n"], "attrs.shape[1][2][0]", "'n': an extent that is known at run time only"),
    (("attrs", "shape", 1, 2), [4.5], "attrs.shape[1][2][0]", "a whole number from 0 expected, got 4.5"),
    (("attrs", "shape", 1, 2), [10**20, 0], "attrs.shape[1][2]", "takes more than 2**56 bytes"),
    (("attrs", "shape", 1, 2), [1] * 65, "attrs.shape[1][2]", "65 dimensions; 64 are the most"),
    (("attrs", "shape", 1, 2), [2**31, 2**31], "attrs.shape[1][2]", "takes more than 2**56 bytes"),
    (("attrs", "dltype", 1, 2), "float33", "attrs.dltype[1][2]", "'float33': elements of 33 bits"),
    (("attrs", "dltype", 1, 2), "int3", "attrs.dltype[1][2]", "elements of 3 bits"),
    (("attrs", "dltype", 1, 2), "void", "attrs.dltype[1][2]", "no size"),
    (("attrs", "dltype", 1, 2), "text", "attrs.dltype[1][2]", "unknown data type 'text'"),
    (("attrs", "dltype", 1, 2), 2, "attrs.dltype[1][2]", "a text expected, got 2"),
    (("attrs", "dltype", 1, 2), ["int8"], "attrs.dltype[1][2]", "a text expected"),
    (("attrs", "storage_id", 1, 2), -1, "attrs.storage_id[1][2]", "a shape known at run time only), got -1"),
    (("attrs", "storage_id", 1, 2), 2**63, "attrs.storage_id[1][2]", "a number from 0 expected"),
    (("attrs", "storage_id", 1, 2), None, "attrs.storage_id[1][2]", "got None"),
    (("attrs", "storage_id", 1), [0, 1], "attrs.storage_id[1]", "2 elements, but 5 entries"),
    (("attrs", "device_index", 1, 2), 0, "attrs.device_index[1][2]", "a DLPack device type, from 1, expected, got 0"),
    (("attrs", "device_index", 1, 2), 2**31, "attrs.device_index[1][2]", "a DLPack device type"),
    (
        ("attrs", "storage_scope"),
        ["list_str", ["", "global.texture", "", "", ""]],
        "attrs.storage_scope[1][1]",
        "only flat memory",
    ),
    (("attrs", "storage_scope"), ["list_str", [""]], "attrs.storage_scope[1]", "1 elements, but 5"),
    (("attrs", "layout"), ["list_str", []], "attrs.layout[0]", "list_int or size_t expected, got 'list_str'"),
    (("attrs", "layout"), ["list_int", ["NCHW"]], "attrs.layout[1]", "list_int holds whole numbers"),
    (("attrs", "layout"), ["size_t", 1.5], "attrs.layout[1]", "size_t holds whole numbers"),
    (("attrs", "layout"), "NCHW", "attrs.layout", "a pair of list_int or size_t"),
]


@pytest.mark.parametrize(("place", "value", "path", "words"), MALFORMED)
def test_from_json_refuses_malformed_graphs_with_place_and_reason(
    place: Place, value: Any, path: str, words: str
) -> None:
    with pytest.raises(errors.GraphError) as caught:
        Graph.from_json(altered(place, value))
    assert caught.value.path == path
    assert words in str(caught.value)
    assert str(caught.value).startswith(path)


def test_from_json_error_names_the_node() -> None:
    with pytest.raises(errors.GraphError) as caught:
        Graph.from_json(altered(("nodes", 1, "attrs", "num_inputs"), "2"))
    assert caught.value.node == "tvmgen_default_fused_split"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "an object with nodes, arg_nodes, node_row_ptr, heads, attrs expected, got []"),
        ("null", "an object with nodes"),
        ("[" * 200_000, "not JSON"),
        (b"\xff\xfe\xfa", "not JSON"),
        ('{"nodes": NaN}', "NaN is not a number"),
        ('{"nodes": [], "nodes": []}', "the key 'nodes' occurs twice"),
        (COMPILED.replace('"num_inputs": "1"', '"num_inputs": "1", "num_inputs": "1"'), "'num_inputs' occurs twice"),
        (COMPILED[:-1], "not JSON"),
        (COMPILED + "}", "not JSON"),
        ('{"nodes": ' + "9" * 5000 + "}", "not JSON"),
        ('{"nodes": 1e999}', "no arg_nodes"),
    ],
)
def test_from_json_refuses_other_text(text: str | bytes, words: str) -> None:
    with pytest.raises(errors.GraphError, match=words.replace("[", r"\[")):
        Graph.from_json(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, place: Place = ()) -> list[Place]:
    """Every place in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(each for key, inner in items for each in places(inner, (*place, key)))]


@given(st.sampled_from(places(compiled())[1:]), JSON | st.just(REMOVE))
def test_from_json_of_any_change_is_a_graph_or_a_graph_error(place: Place, value: Any) -> None:
    try:
        graph = Graph.from_json(altered(place, value))
    except errors.GraphError:
        return
    assert Graph.from_json(graph.to_json()) == graph


def test_from_json_does_not_change_its_argument() -> None:
    graph = Graph.from_json(COMPILED)
    before = copy.deepcopy(graph)
    graph.to_json()
    assert graph == before


def steps(read_one: Callable[[], Graph]) -> int:
    """Return how many lines of the reader run."""
    import sys

    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        read_one()
    finally:
        sys.settrace(previous)
    return count


def test_from_json_is_linear() -> None:
    small, large = (json.dumps(chain(length)) for length in (100, 1000))
    assert steps(lambda: Graph.from_json(large)) < 11 * steps(lambda: Graph.from_json(small))
