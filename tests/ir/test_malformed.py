# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type"
"""What is read of files that nobody vouches for: a value, or ValueError that says where and why."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import portcall
from portcall import ir


@portcall.register_object("test.malformed.Expr")
class Expr(portcall.Object):
    pass


@portcall.register_object("test.malformed.Leaf")
class Leaf(Expr):
    value: int


@portcall.register_object("test.malformed.Add")
class Add(Expr):
    lhs: Expr
    rhs: Expr
    span: str = ""


LEAF = '{"test.malformed.Leaf": {"value": 1}}'


def document(nodes: str = "", root: str = "null", version: str = "1") -> str:
    return f'{{"portcall_json": {version}, "nodes": [{nodes}], "root": {root}}}'


def leaf(value: str) -> str:
    return document(f'{{"test.malformed.Leaf": {{"value": {value}}}}}')


def root(value: str) -> str:
    return document(root=value)


def tensor(dtype: str = '"float32"', shape: str = "[1]", data: str = '"AAAAAA=="') -> str:
    return document(f'{{"ffi.Tensor": {{"dtype": {dtype}, "shape": {shape}, "data": {data}}}}}')


# An Array that holds another one twice, 60 deep.
TWICE = '{"ffi.Array": [1]}, ' + "".join(f'{{"ffi.Array": [{{"ref": {i}}}, {{"ref": {i}}}]}}, ' for i in range(60))

# What is read, where it is wrong, and why.
MALFORMED = {
    "nothing": ("", "", "expected '{', got the end of the text"),
    "blanks": (" \n ", "", "expected '{', got the end of the text"),
    "no object": ("[]", "", "expected '{', got '['"),
    "cut short": (document()[:-1], "", "expected ',' or '}', got the end of the text"),
    "more after the end": (document() + "x", "", "there is more after the end: 'x'"),
    "a byte order mark": ("\ufeff" + document(), "", "expected '{', got byte 239"),
    "no version": ('{"nodes": [], "root": null}', "", '"portcall_json", the version, is missing'),
    "no nodes": ('{"portcall_json": 1, "root": null}', "", '"nodes" are missing'),
    "no root": ('{"portcall_json": 1, "nodes": []}', "", '"root" is missing'),
    "a newer version": (document(version="2"), "", "version 2 of the format; this portcall reads version 1"),
    "a version that is text": (document(version='"1"'), "", "the version is an integer"),
    "a version that is a float": (document(version="1.0"), "", "the version is an integer, got a float"),
    "two versions": ('{"portcall_json": 1, "portcall_json": 1}', "", 'a second "portcall_json"'),
    "two roots": ('{"portcall_json": 1, "root": 1, "root": 2, "nodes": []}', "", 'a second "root"'),
    "an unknown member": ('{"portcall_json": 1, "node": []}', "", 'an unknown "node"'),
    "nodes that are not a list": ('{"portcall_json": 1, "nodes": {}}', "", "expected '[', got '{'"),
    "a node that is a number": (document("5"), "nodes[0]", "expected '{', got '5'"),
    "a node without a type": (document("{}"), "nodes[0]", "expected '\"', got '}'"),
    "an unknown type": (document(f'{LEAF}, {{"test.Nobody": {{}}}}'), "nodes[1]", 'the type "test.Nobody" is unknown'),
    "a type of values": (document('{"ffi.Function": {}}'), "nodes[0]", 'no node is made of the type "ffi.Function"'),
    "a node of two types": (
        document(LEAF[:-1] + ', "x": {}}'), "nodes[0] (test.malformed.Leaf)", "expected '}', got ','"
    ),
    "a comma too many": (document(LEAF + ","), "nodes[1]", "expected '{', got ']'"),
    "an unknown field": (
        document('{"test.malformed.Leaf": {"valu": 1}}'), "nodes[0] (test.malformed.Leaf)", 'has no field "valu"'
    ),
    "a field twice": (
        document('{"test.malformed.Leaf": {"value": 1, "value": 2}}'), "nodes[0] (test.malformed.Leaf).value",
        "is given twice",
    ),
    "a missing field": (
        document('{"test.malformed.Leaf": {}}'), "nodes[0] (test.malformed.Leaf)", "needs a value for 'value'"
    ),
    "a field of the wrong type": (
        leaf('"1"'), "nodes[0] (test.malformed.Leaf)", "test.malformed.Leaf.value: expected int, got str"
    ),
    "an object of the wrong type": (
        document('{"ffi.Array": []}, {"test.malformed.Add": {"lhs": {"ref": 0}, "rhs": {"ref": 0}}}'),
        "nodes[1] (test.malformed.Add)", "test.malformed.Add.lhs: expected test.malformed.Expr, got Array",
    ),
    "a reference to itself": (
        document('{"test.malformed.Add": {"lhs": {"ref": 0}}}'), "nodes[0] (test.malformed.Add).lhs",
        "refers to node 0, which does not come before it",
    ),
    "a cycle": (
        document('{"ffi.List": [{"ref": 1}]}, {"ffi.List": [{"ref": 0}]}'), "nodes[0] (ffi.List)[0]",
        "refers to node 1, which does not come before it",
    ),
    "a reference below zero": (root('{"ref": -1}'), "root", "which does not come before it"),
    "a reference that is text": (root('{"ref": "0"}'), "root", "a reference is an integer, got '\"'"),
    "a root that refers to nothing": (document(LEAF, '{"ref": 1}'), "root", "refers to node 1"),
    "a list in place": (document('{"ffi.Array": [1, [2]]}'), "nodes[0] (ffi.Array)[1]", "a list stands in a node"),
    "a key without a value": (document('{"ffi.Map": [["k"]]}'), "nodes[0] (ffi.Map)[0].value", "expected ',', got ']'"),
    "a key twice": (document('{"ffi.Dict": [["k", 1], ["k", 2]]}'), "nodes[0] (ffi.Dict)", "a key stands there twice"),
    "a key with more ways into it than can be gone": (
        document(TWICE + '{"ffi.Map": [[{"ref": 60}, 1]]}'), "nodes[61] (ffi.Map)", "a key of more than 1024 values",
    ),
    "a map as an object": (document('{"ffi.Map": {"k": 1}}'), "nodes[0] (ffi.Map)", "expected '[', got '{'"),
    "an unknown kind": (root('{"set": []}'), "root", 'an unknown kind of value, "set"'),
    "an empty object": (root("{}"), "root", "an empty {}"),
    "a float that is not a number": (root('{"float": "1"}'), "root", '"nan", "inf" or "-inf", got "1"'),
    "NaN as others write it": (leaf("NaN"), "nodes[0] (test.malformed.Leaf).value", "expected a value, got 'N'"),
    "a number that starts with 0": (leaf("01"), "nodes[0] (test.malformed.Leaf).value", "a number that starts with 0"),
    "a number with a plus": (leaf("+1"), "nodes[0] (test.malformed.Leaf).value", "expected a value, got '+'"),
    "a point without digits": (leaf("1."), "nodes[0] (test.malformed.Leaf).value", "without digits after its point"),
    "an exponent without digits": (leaf("1e"), "nodes[0] (test.malformed.Leaf).value", "digits in its exponent"),
    "an integer too wide": (leaf("1" * 30), "nodes[0] (test.malformed.Leaf).value", "an integer beyond 64 bits"),
    "a float too large": (leaf("1e999"), "nodes[0] (test.malformed.Leaf).value", "beyond the range of doubles"),
    "a wide integer without digits": (root('{"int": "0x"}'), "root", 'written as "0x…" or "-0x…"'),
    "a wide integer in decimal": (root('{"int": "12"}'), "root", 'written as "0x…" or "-0x…"'),
    "a text without an end": (root('"abc'), "", "a text without an end"),
    "a newline in a text": (root('"a\nb"'), "", "a control character in a text"),
    "an unknown escape": (root('"\\q"'), "", "an unknown escape in a text"),
    "a short escape": (root('"\\u12"'), "", "\\u needs four digits"),
    "half a surrogate pair": (root('"\\ud800"'), "", "half a surrogate pair in a text"),
    "the other half": (root('"\\udc00x"'), "", "half a surrogate pair in a text"),
    "bytes that are not base64": (root('{"bytes": "a*aa"}'), "root", "is not base64"),
    "base64 without padding": (root('{"bytes": "YQ"}'), "root", "is not base64"),
    "base64 with idle bits": (root('{"bytes": "YR=="}'), "root", "is not base64"),
    "an unknown data type": (root('{"dtype": "float33x"}'), "root", "unknown data type 'float33x'"),
    "a data type of two numbers": (root('{"dtype": [1, 2]}'), "root", "a data type is a name, or [code, bits, lanes]"),
    "a device of three numbers": (root('{"device": [1, 0, 0]}'), "root", "a device is [kind, number]"),
    "a device beyond numbers": (root('{"device": [1, 9999999999]}'), "root", "no device has such numbers"),
    "a shape of floats": (root('{"shape": [1.5]}'), "root", "an extent is an integer, got a float"),
    "a tensor without data": (
        document('{"ffi.Tensor": {"dtype": "int8", "shape": []}}'), "nodes[0] (ffi.Tensor)", "needs dtype, shape"
    ),
    "a tensor with more": (
        document('{"ffi.Tensor": {"device": 1}}'), "nodes[0] (ffi.Tensor)", 'one shape and one data, got "device"'
    ),
    "too few elements": (tensor(shape="[2]"), "nodes[0] (ffi.Tensor)", "data has 4 bytes, the shape needs 8"),
    "elements that are not base64": (tensor(data='"AAA*AA=="'), "nodes[0] (ffi.Tensor)", "data is not base64"),
    "a negative extent": (tensor(shape="[-1]"), "nodes[0] (ffi.Tensor)", "a tensor with the extent -1"),
    "a huge tensor": (tensor(shape="[4294967296, 4294967296]"), "nodes[0] (ffi.Tensor)", "the tensor is too large"),
    "many dimensions": (tensor(shape=str([1] * 65)), "nodes[0] (ffi.Tensor)", "65 dimensions; 64 are the most"),
    "a tensor of addresses": (
        tensor('"handle"', "[1]", '"AAAAAAAAAAA="'), "nodes[0] (ffi.Tensor)", "no tensor is read with elements of type"
    ),
    "brackets without end": ('{"root": ' + "[" * 100_000, "", "brackets nested too deeply"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "path", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_load_json_refuses_malformed_json_with_path_and_reason(text: str, path: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        ir.load_json(text)
    message = str(caught.value)
    assert message.startswith(f"{path}: " if path else "")
    assert path or not message.startswith(("nodes[", "root"))
    assert re.search(r" \(line \d+, column \d+\)$", message)


def test_load_json_refuses_text_that_is_not_utf8() -> None:
    for bad in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82"):
        with pytest.raises(ValueError, match="a text that is not UTF-8"):
            ir.load_json(root(f'"{bad.decode("utf-8", "surrogateescape")}"'))


def test_load_json_accepts_members_in_any_order() -> None:
    add = '{"test.malformed.Add": {"span": "here", "rhs": {"ref": 0}, "lhs": {"ref": 0}}}'
    loaded = ir.load_json(f'{{"root": {{"ref": 1}}, "nodes": [{LEAF}, {add}], "portcall_json": 1}}')
    assert (loaded.span, loaded.lhs.value) == ("here", 1)
    assert loaded.lhs == loaded.rhs
    sorted_keys = json.dumps(json.loads(ir.save_json(loaded)), sort_keys=True, indent=3)
    assert ir.structural_equal(ir.load_json(sorted_keys), loaded)


def test_load_json_missing_field_takes_its_default() -> None:
    loaded = ir.load_json(
        document(f'{LEAF}, {{"test.malformed.Add": {{"lhs": {{"ref": 0}}, "rhs": {{"ref": 0}}}}}}', '{"ref": 1}')
    )
    assert loaded.span == ""


def test_load_limits_nodes_and_depth() -> None:
    graph = Add(Add(Leaf(1), Leaf(2)), Leaf(3))
    for load, saved in (
        (ir.load_json, ir.save_json(graph)),
        (ir.from_bytes, ir.to_bytes(graph)),
    ):
        assert ir.structural_equal(load(saved, max_nodes=5, max_depth=3), graph)
        with pytest.raises(ValueError, match="has more than 4 nodes, the limit that was given"):
            load(saved, max_nodes=4)
        with pytest.raises(ValueError, match="is more than 2 objects deep, the limit that was given"):
            load(saved, max_depth=2)


@given(st.binary(max_size=60), st.booleans())
def test_from_bytes_of_any_bytes_is_a_value_or_an_error_with_position(data: bytes, with_magic: bool) -> None:
    with pytest.raises(ValueError, match=r"^byte \d+"):
        ir.from_bytes(b"\x89pcg\x01" + data if with_magic else data)


def test_from_bytes_refuses_a_newer_version() -> None:
    saved = bytearray(ir.to_bytes(Leaf(1)))
    saved[4] += 1
    with pytest.raises(ValueError, match=r"^byte 5: version 2 of the format; this portcall reads version 1$"):
        ir.from_bytes(bytes(saved))


@given(st.data())
def test_from_bytes_refuses_changed_bytes(data: st.DataObject) -> None:
    saved = bytearray(ir.to_bytes(Add(Leaf(1), Leaf(2), "a longer text")))
    at = data.draw(st.integers(0, len(saved) - 1))
    saved[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match=r"^byte \d+"):
        ir.from_bytes(bytes(saved))


@given(st.data())
def test_load_json_of_damaged_json_is_a_value_or_an_error(data: st.DataObject) -> None:
    text = ir.save_json(Add(Leaf(1), Leaf(2), "é"))
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.text(max_size=2)) + text[at + data.draw(st.integers(0, 3)) :]
    with contextlib.suppress(ValueError):
        ir.load_json(changed)
