# SPDX-License-Identifier: Apache-2.0
"""What a Python value becomes on its way to C++, and what comes back. One law: what goes out comes back equal."""

from __future__ import annotations

import collections
import ctypes
import datetime
import decimal
import enum
import fractions
import math
import os
import pathlib
import sys
import types
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import portcall
from portcall import errors

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

echo = portcall.get_global_func("testing.echo")
apply = portcall.get_global_func("testing.apply")

pytestmark = pytest.mark.usefixtures("native")


def type_index(value: Any) -> int:
    index: int = portcall.get_global_func("portcall_test.type_index")(value)
    return index


def through_callback(value: Any) -> Any:
    """Hand a value to C++, which hands it to a Python function, which returns it."""
    return apply(lambda x: x, value)


def same(a: Any, b: Any) -> bool:
    """Equal, of one type, and NaN equal to itself."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, (list, tuple, portcall.Array)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (dict, portcall.Map)):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


# ---- Type indices ----------------------------------------------------------------------------------------------------


class Anything:
    pass


TYPE_INDICES = [
    (None, 0),
    (7, 1),
    (True, 2),
    (1.5, 3),
    (ctypes.c_void_p(16), 4),
    (portcall.dtype("int8"), 5),
    (portcall.cpu(), 6),
    ("12345678", 8),  # borrowed: the callee may copy it
    ("1234567", 11),
    (b"1234567", 12),
    ("with\0nul in it", 65),
    (b"12345678", 66),
    (ValueError("x"), 67),
    (len, 68),
    (portcall.Shape((1, 2)), 69),
    (np.zeros(3), 70),
    (portcall.empty(3), 70),
    ([1, 2], 71),
    ((1, 2), 71),
    ({"a": 1}, 72),
    (Anything(), 74),
    (2**63, 78),
]


@pytest.mark.parametrize(("value", "index"), TYPE_INDICES, ids=lambda x: type(x).__name__)
def test_python_types_have_their_abi_index(value: Any, index: int) -> None:
    assert type_index(value) == index


def test_module_is_passed_as_a_module(native: portcall.Module) -> None:
    assert type_index(native) == 73
    assert echo(native).same_as(native)
    assert isinstance(echo(native), portcall.Module)


# ---- None, integers, booleans, floats --------------------------------------------------------------------------------


def test_none_round_trip() -> None:
    assert echo(None) is None
    assert through_callback(None) is None


@pytest.mark.parametrize("value", [0, 1, -1, 255, INT64_MAX, INT64_MIN, 2**53 + 1])
def test_int64_round_trip(value: int) -> None:
    assert same(echo(value), value)
    assert same(through_callback(value), value)


@pytest.mark.parametrize(
    "value",
    [INT64_MAX + 1, INT64_MIN - 1, 2**64 - 1, 2**64, -(2**64), 2**127, -(2**127), 2**128 - 1, 10**300, -(10**300)],
)
def test_big_int_round_trip(value: int) -> None:
    assert same(echo(value), value)
    assert same(through_callback(value), value)


def test_big_int_is_refused_for_an_int64_parameter() -> None:
    with pytest.raises(portcall.errors.ArgumentError, match=r"expected int32, got int that does not fit in 64 bits"):
        portcall.get_global_func("portcall_test.add")(2**64, 1)


@pytest.mark.parametrize("value", [128, -129, 2**31])
def test_int_out_of_range_of_the_parameter_is_refused(value: int) -> None:
    with pytest.raises(portcall.errors.ArgumentError, match=rf"expected int8, got int {value}"):
        portcall.get_global_func("portcall_test.int8")(value)


def test_negative_int_is_refused_for_an_unsigned_parameter() -> None:
    with pytest.raises(portcall.errors.ArgumentError, match="expected uint, got int -1"):
        portcall.get_global_func("portcall_test.uint64")(-1)


def test_uint64_result_beyond_int64_is_an_overflow_error() -> None:
    with pytest.raises(OverflowError, match="18446744073709551615"):
        portcall.get_global_func("portcall_test.all_ones")()


def test_bool_and_int_keep_their_types() -> None:
    assert echo(True) is True
    assert echo(False) is False
    assert through_callback(True) is True
    assert type(echo(1)) is int


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, 1e308, 5e-324, math.inf, -math.inf, math.nan])
def test_float_round_trip_is_exact(value: float) -> None:
    for back in (echo(value), through_callback(value)):
        assert type(back) is float
        assert np.float64(back).tobytes() == np.float64(value).tobytes()


def test_float_is_refused_for_an_int_parameter() -> None:
    with pytest.raises(portcall.errors.ArgumentError, match="argument #1: expected int32, got float"):
        portcall.get_global_func("portcall_test.add")(1, 2.0)


# ---- Text ------------------------------------------------------------------------------------------------------------

TEXTS = [
    "",
    "a",
    "sevench",
    "eightcha",
    "nul\0in",
    "nul\0in a long one",
    "\0",
    "äöü",
    "äöüß",
    "日本",
    "日本語です",
    "🚀",
    "🚀🚀",
    "a" * 10_000,
    "\n\t\r",
]


@pytest.mark.parametrize("value", TEXTS)
def test_str_round_trip(value: str) -> None:
    assert same(echo(value), value)
    assert same(through_callback(value), value)


@pytest.mark.parametrize("value", TEXTS)
def test_str_is_utf8_in_cpp(value: str) -> None:
    assert portcall.get_global_func("portcall_test.text_of")(value) == value.encode()


@pytest.mark.parametrize("raw", [b"\xff", b"ok\xe9", b"a long one \xfe\xff", b"\xed\xa0\x80"])
def test_str_that_is_not_utf8_round_trips_from_cpp(raw: bytes) -> None:
    """As names of files do in Python: the bytes that are not UTF-8 are escaped as surrogates."""
    text = portcall.get_global_func("portcall_test.text_from")(raw)
    assert text == raw.decode(errors="surrogateescape")
    assert portcall.get_global_func("portcall_test.text_of")(text) == raw
    assert echo(text) == text


def test_str_with_surrogate_escapes_can_be_passed() -> None:
    name = os.fsdecode(b"/tmp/caf\xe9.so")
    assert echo(name) == name
    assert echo(type("Name", (str,), {})(name)) == name
    assert list(echo([name])) == [name]


@pytest.mark.parametrize("value", ["\ud800", "x\udfff", "long enough to be on the heap \ud912"])
def test_str_with_a_lone_surrogate_is_refused(value: str) -> None:
    with pytest.raises(
        portcall.errors.ArgumentError, match=r"testing.echo\(\): argument #0: expected .*UTF-8.*surrogate"
    ):
        echo(value)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 5000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_like_values_come_back_as_bytes(kind: Any, size: int) -> None:
    content = bytes(k % 256 for k in range(size))
    assert same(echo(kind(content)), content)
    assert same(through_callback(kind(content)), content)


def test_large_bytes_are_passed_without_a_copy() -> None:
    content = bytes(5000)
    before = sys.getrefcount(content)
    assert through_callback(content) is content
    kept = portcall.Array([content])
    assert sys.getrefcount(content) == before + 1
    assert kept[0] is content
    del kept
    assert sys.getrefcount(content) == before


def test_memoryview_with_steps_passes_its_bytes() -> None:
    assert echo(memoryview(b"abcdef")[::2]) == b"ace"


def test_str_and_bytes_are_not_interchangeable() -> None:
    with pytest.raises(portcall.errors.ArgumentError, match="expected str, got bytes"):
        portcall.get_global_func("portcall_test.text_of")(b"abc")
    with pytest.raises(portcall.errors.ArgumentError, match="expected bytes, got str"):
        portcall.get_global_func("portcall_test.text_from")("abc")


# ---- Data types, devices, pointers -----------------------------------------------------------------------------------

DTYPE_NAMES = [
    *(f"int{bits}" for bits in (1, 4, 8, 16, 32, 64)),
    *(f"uint{bits}" for bits in (1, 4, 8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64, 128)),
    "complex64", "complex128", "bool", "bfloat16", "handle", "void",
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
    "int8x4", "float32x16", "float4_e2m1fnx2", "bfloat16x8", "int32xvscalex4",
]  # fmt: skip


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_dtype_str_is_the_name_it_was_made_from(name: str) -> None:
    dtype = portcall.dtype(name)
    assert str(dtype) == name
    assert dtype == name
    assert repr(dtype) == f"portcall.dtype('{name}')"
    assert same(echo(dtype), dtype)
    assert same(through_callback(dtype), dtype)
    assert hash(echo(dtype)) == hash(dtype)


@pytest.mark.parametrize(
    ("text", "full"), [("int", "int32"), ("uint", "uint32"), ("float", "float32"), ("bfloat", "bfloat16"), ("", "void")]
)
def test_dtype_without_bits_has_the_usual_ones(text: str, full: str) -> None:
    assert portcall.dtype(text) == full


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.float32, "float32"),
        (np.dtype("int16"), "int16"),
        (float, "float64"),
        (bool, "bool"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.float8_e4m3fn), "float8_e4m3fn"),
        (portcall.dtype("int8x4"), "int8x4"),
    ],
)
def test_dtype_accepts_what_numpy_accepts(value: Any, name: str) -> None:
    assert portcall.dtype(value) == name


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("f32", "float32"),
        ("bf16", "bfloat16"),
        ("i64", "int64"),
        ("u16", "uint16"),
        ("c64", "complex64"),
        ("f16x4", "float16x4"),
        ("i8x4", "int8x4"),
        ("f8_e4m3fn", "float8_e4m3fn"),
        ("fp8_e5m2x4", "float8_e5m2x4"),
        ("f4_e2m1fn_x2", "float4_e2m1fnx2"),
    ],
)
def test_dtype_short_names_count_bits(short: str, full: str) -> None:
    assert portcall.dtype(short) == full
    assert portcall.empty(2, short).dtype == full


@pytest.mark.parametrize("short", ["i8", "u8", "f4", "f8", "c16", "bf32", "f32x", "x4", "f", "f32xvscale"])
def test_dtype_refuses_short_names_that_numpy_reads_in_bytes(short: str) -> None:
    with pytest.raises(ValueError, match=short):
        portcall.dtype(short)


@pytest.mark.parametrize("name", ["float32", "bool", "complex128", "bfloat16", "float8_e4m3fn"])
def test_dtype_is_accepted_by_numpy(name: str) -> None:
    ours, theirs = portcall.dtype(name), np.dtype(getattr(ml_dtypes, name, name))
    assert ours == theirs
    assert theirs == ours
    assert ours != np.dtype("int16")
    assert np.dtype("int16") != ours
    assert np.zeros(3, dtype=ours).dtype == theirs
    assert np.zeros(3, "uint8").astype(ours).dtype == theirs


def test_dtype_that_numpy_lacks_equals_none_of_numpys() -> None:
    assert portcall.dtype("float32x4") != np.dtype("float32")
    assert np.dtype("float32") != portcall.dtype("float32x4")
    assert portcall.dtype("float32") != np.dtype(">f4")
    with pytest.raises(TypeError):
        np.zeros(3, dtype=portcall.dtype("float32x4"))


ELEMENT_NAMES = ["float32", "bool", "int8", "bfloat16", "float8_e4m3fn"]


@pytest.mark.parametrize("name", ELEMENT_NAMES)
def test_dtype_argument_may_be_numpys(name: str) -> None:
    theirs = np.dtype(getattr(ml_dtypes, name, name))
    assert same(echo(theirs), portcall.dtype(name))
    assert same(echo([theirs])[0], portcall.dtype(name))


@pytest.mark.peers
def test_dtype_argument_may_be_torchs() -> None:
    import torch

    for name in ELEMENT_NAMES:
        assert same(echo(getattr(torch, name)), portcall.dtype(name))
        assert same(portcall.dtype(getattr(torch, name)), portcall.dtype(name))


def test_dtype_refuses_element_types_that_tensors_lack() -> None:
    for theirs in (np.dtype("O"), np.dtype(">f4"), np.dtype("M8[s]")):
        with pytest.raises(errors.ArgumentError) as caught:
            echo(theirs)
        assert (caught.value.function, caught.value.position) == ("testing.echo", 0)
        with pytest.raises(ValueError, match=r"object|byte order|datetime64"):
            portcall.dtype(theirs)


@pytest.mark.parametrize(
    "text", ["cpu:0", "cuda:3", "ext_dev:1", "opencl:0", "vulkan:2", "metal:0", "rocm:7", "hexagon:0", "webgpu:0"]
)
def test_device_round_trip(text: str) -> None:
    device = portcall.device(text)
    assert same(echo(device), device)
    assert str(through_callback(device)) == text


@pytest.mark.parametrize("address", [0, 1, 0xDEADBEEF, 2**64 - 1])
def test_pointer_round_trip(address: int) -> None:
    back = echo(ctypes.c_void_p(address))
    assert type(back) is ctypes.c_void_p
    assert (back.value or 0) == address


# ---- Subclasses, enums, NumPy scalars --------------------------------------------------------------------------------


class Celsius(int):
    pass


class Label(str):
    __slots__ = ()


class Ratio(float):
    pass


class Colour(enum.IntEnum):
    RED = 3


class Mode(str, enum.Enum):
    FAST = "fast mode"


class Flags(enum.IntFlag):
    A = 1
    B = 4


class Wrapped:
    def __index__(self) -> int:
        return 41


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Celsius(21), 21),
        (Celsius(2**70), 2**70),
        (Label("a label"), "a label"),
        (Label("short"), "short"),
        (Ratio(0.5), 0.5),
        (Colour.RED, 3),
        (Flags.A | Flags.B, 5),
        (Mode.FAST, "fast mode"),
        (Wrapped(), 41),
        (np.str_("numpy text"), "numpy text"),
        (np.bytes_(b"numpy bytes"), b"numpy bytes"),
        (np.True_, True),
        (np.False_, False),
        (np.datetime64("2024-02-03"), datetime.date(2024, 2, 3)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_subclass_values_arrive_as_plain_values(value: Any, plain: Any) -> None:
    assert same(echo(value), plain)
    assert same(through_callback(value), plain)


@pytest.mark.parametrize("code", "bBhHiIlLqQ")
def test_numpy_integer_arrives_as_int(code: str) -> None:
    for value in (np.iinfo(code).min, np.iinfo(code).max):
        assert same(echo(np.dtype(code).type(value)), int(value))


@pytest.mark.parametrize("code", "efdg")
def test_numpy_float_arrives_as_float(code: str) -> None:
    assert same(echo(np.dtype(code).type(0.25)), 0.25)
    assert math.isnan(echo(np.dtype(code).type("nan")))


@pytest.mark.parametrize("scalar_type", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_ml_dtypes_scalar_arrives_as_float(scalar_type: Any) -> None:
    assert same(echo(scalar_type(1.5)), 1.5)


@pytest.mark.parametrize("value", [np.complex64(1 + 2j), np.complex128(1j), 1 + 2j])
def test_complex_is_passed_as_a_python_object(value: Any) -> None:
    assert echo(value) == complex(value)


@pytest.mark.parametrize(
    "value",
    [
        Anything(),
        object(),
        {1, 2},
        frozenset({3}),
        range(3),
        slice(1, 2),
        decimal.Decimal("1.5"),
        fractions.Fraction(1, 3),
        datetime.datetime(2024, 1, 1),
        pathlib.PurePath("a/b"),
        types.SimpleNamespace(a=1),
        NotImplemented,
        Ellipsis,
        os,
        (x for x in ()),  # type: ignore[var-annotated]
    ],
    ids=lambda x: type(x).__name__,
)
def test_python_object_round_trip_is_the_same_object(value: Any) -> None:
    assert echo(value) is value
    assert through_callback(value) is value
    assert echo([value])[0] is value


def test_python_object_is_released_by_cpp() -> None:
    thing = Anything()
    gone = weakref.ref(thing)
    assert echo([thing, {"key": thing}])[1]["key"] is thing
    del thing
    assert gone() is None


def test_class_argument_is_a_function_that_makes_instances() -> None:
    made = echo(Anything)
    assert isinstance(made, portcall.PackedFunc)
    assert isinstance(made(), Anything)


# ---- Functions, exceptions -------------------------------------------------------------------------------------------


def test_python_function_comes_back_as_packed_func() -> None:
    func = echo(lambda a, b: a - b)
    assert isinstance(func, portcall.PackedFunc)
    assert func(5, 3) == 2
    assert echo(func).same_as(func)


def test_exception_as_a_value_is_the_same_object() -> None:
    error = ValueError("kept")
    assert echo(error) is error
    assert through_callback(error) is error
    assert echo([error])[0] is error


# ---- Laws ------------------------------------------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text | st.binary(max_size=20)
keys = st.integers() | text | st.binary(max_size=20) | st.booleans()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5), max_leaves=20
)


@given(values)
def test_nested_value_round_trip(value: Any) -> None:
    assert same(value, echo(value))


@given(values)
def test_nested_value_through_a_callback(value: Any) -> None:
    assert same(value, through_callback(value))


@given(values)
def test_nested_value_can_be_passed_again(value: Any) -> None:
    assert same(value, echo(echo(value)))


@given(values)
def test_value_inside_a_container_equals_the_value_outside(value: Any) -> None:
    assert same(echo([value])[0], echo(value))
    assert same(echo({"k": value})["k"], echo(value))


@given(st.lists(scalars, max_size=30))
def test_arguments_of_any_number_arrive_in_order(arguments: list[Any]) -> None:
    received: list[Any] = []
    apply(lambda *xs: received.extend(xs), *arguments)
    assert same(arguments, received)


@given(st.integers(1, 127), st.integers(1, 32767), st.sampled_from(["int", "uint", "float"]))
def test_dtype_str_round_trip(bits: int, lanes: int, base: str) -> None:
    dtype = portcall.dtype(f"{base}{bits}x{lanes}")
    assert portcall.dtype(str(dtype)) == dtype
    assert (dtype.bits, dtype.lanes) == (bits, lanes)


@given(st.lists(st.integers(INT64_MIN, INT64_MAX), max_size=20))
def test_shape_round_trip(extents: list[int]) -> None:
    shape = portcall.Shape(extents)
    assert same(echo(shape), shape)


def test_str_is_read_alike_for_each_representation(native: portcall.Module) -> None:
    assert collections.Counter(type_index(x) for x in ("short", "a long text", "with\0nul inside")).total() == 3
    assert native["apply"](lambda x: x, "a long text") == "a long text"
