# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="comparison-overlap, no-untyped-call"
"""Parameter blobs: read, written, and exchanged with apache-tvm."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors
from portcall.graph import _params

ARRAYS: dict[str, Any] = {
    "weight": np.arange(6, dtype="float32").reshape(2, 3) / 7,
    "scalar": np.array(-2.5),
    "": np.array([1, -2], dtype="int8"),
    "mask": np.array([[True], [False]]),
    "empty": np.zeros((0, 3), "int64"),
    "größe:0": np.array([2**63], dtype="uint64"),
    "half": np.array([1.5, -0.0, np.inf], dtype="float16"),
}


def bfloat16(values: list[float]) -> portcall.Tensor:
    """A tensor of the upper halves of float32 numbers."""
    tensor = portcall.empty((len(values),), "bfloat16")
    _params.bytes_of(tensor)[:] = np.array(values, "float32").view("uint16")[1::2].tobytes()
    return tensor


def assert_equal(found: Any, wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert isinstance(found[name], np.ndarray)
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


# ---- Both ways -------------------------------------------------------------------------------------------------------


def test_save_params_and_load_params_keep_arrays(tmp_path: Path) -> None:
    blob = _params.save_params(ARRAYS)
    assert_equal(_params.load_params(blob), ARRAYS)
    assert_equal(_params.load_params(bytearray(blob)), ARRAYS)
    _params.save_params_to_file(ARRAYS, tmp_path / "m.params")
    assert (tmp_path / "m.params").read_bytes() == blob
    assert_equal(_params.load_params_from_file(tmp_path / "m.params"), ARRAYS)


def test_load_params_arrays_are_aligned_and_writable() -> None:
    blob = _params.save_params(ARRAYS)
    first, second = _params.load_params(blob), _params.load_params(blob)
    for name in ARRAYS:
        assert first[name].ctypes.data % 64 == 0
    first["weight"][:] = 0
    assert_equal(second, ARRAYS)


def test_save_params_takes_strided_arrays() -> None:
    array = np.arange(12, dtype="int32").reshape(3, 4)
    strided = {"t": array.T, "s": array[:, ::2], "r": array[::-1]}
    assert_equal(_params.load_params(_params.save_params(strided)), strided)


def test_load_params_elements_that_numpy_lacks_are_tensors() -> None:
    blob = _params.save_params({"w": bfloat16([1, -2, 0.5])})
    tensor = _params.load_params(blob)["w"]
    assert isinstance(tensor, portcall.Tensor)
    assert (tensor.dtype, tensor.shape) == ("bfloat16", (3,))
    assert _params.save_params({"w": tensor}) == blob


def test_save_params_packs_types_below_a_byte() -> None:
    tensor = portcall.empty((3,), "int4")
    _params.bytes_of(tensor)[:] = b"\x21\x03"
    blob = _params.save_params({"q": tensor})
    assert blob.endswith(struct.pack("<q", 3) + b"\x21\x03\x00")
    assert bytes(_params.bytes_of(_params.load_params(blob)["q"])) == b"\x21\x03"
    assert _params.param_infos(blob)["q"].nbytes == 2


def test_load_params_reads_uint1_as_bool() -> None:
    blob = _params.save_params({"mask": np.array([True, False, True])})
    at = blob.rindex(bytes([6, 8, 1, 0]))
    old = blob[:at] + bytes([1, 1]) + blob[at + 2 :]
    assert_equal(_params.load_params(old), {"mask": np.array([True, False, True])})


@pytest.mark.usefixtures("fake_device")
def test_save_params_takes_device_tensors() -> None:
    host = np.arange(5, dtype="float32")
    there = portcall.tensor(host, device="ext_dev:0")
    assert _params.save_params({"w": there}) == _params.save_params({"w": host})


def test_save_params_refuses_vectors() -> None:
    with pytest.raises(errors.GraphError, match=r"'w' has elements of type float32x4: .* an axis of their own"):
        _params.save_params({"w": portcall.empty((2,), "float32x4")})


def test_save_params_refuses_other_values_and_names() -> None:
    with pytest.raises(errors.ArgumentError, match="expected an array"):
        _params.save_params({"w": "text"})
    with pytest.raises(TypeError, match="the name of a parameter is text, not 3"):
        _params.save_params({3: np.zeros(1)})  # type: ignore[dict-item]


# ---- apache-tvm ------------------------------------------------------------------------------------------------------


@pytest.mark.peers
def test_save_params_bytes_equal_tvms() -> None:
    from tvm import runtime

    theirs = bytes(runtime.save_param_dict({name: runtime.tensor(array) for name, array in ARRAYS.items()}))
    assert _params.save_params(ARRAYS) == theirs
    assert_equal(_params.load_params(theirs), ARRAYS)


@pytest.mark.peers
def test_save_params_is_read_by_tvm(tmp_path: Path) -> None:
    from tvm import runtime

    theirs = runtime.load_param_dict(bytearray(_params.save_params(ARRAYS)))
    assert set(theirs) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(theirs[name].numpy(), array)
    _params.save_params_to_file(ARRAYS, tmp_path / "m.params")
    assert set(runtime.load_param_dict_from_file(str(tmp_path / "m.params"))) == set(ARRAYS)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_save_params_small_floats_are_exchanged_with_tvm(name: str) -> None:
    import ml_dtypes
    from tvm import runtime

    array = np.array([1.5, -2, 0], dtype=getattr(ml_dtypes, name))
    theirs = bytes(runtime.save_param_dict({"w": runtime.tensor(array)}))
    tensor = _params.load_params(theirs)["w"]
    assert tensor.dtype == name
    assert tensor.numpy().tobytes() == array.tobytes()
    assert _params.save_params({"w": tensor}) == theirs
    assert _params.save_params({"w": array}) == theirs


# ---- Files -----------------------------------------------------------------------------------------------------------


def test_load_params_from_file_lists_without_reading_data(tmp_path: Path) -> None:
    path = tmp_path / "m.params"
    _params.save_params_to_file(ARRAYS, path)
    params = _params.load_params_from_file(path)
    assert len(params) == len(ARRAYS)
    info = params.infos["weight"]
    assert (info.dtype, info.shape, info.nbytes) == ("float32", (2, 3), 24)
    assert path.read_bytes()[info.offset : info.offset + info.nbytes] == ARRAYS["weight"].tobytes()
    assert params.tensor("weight").data_ptr % 64 == 0
    assert "missing" not in params
    with pytest.raises(KeyError):
        params["missing"]
    assert repr(params) == f"<portcall.graph.ParamFile '{path}' of 7 tensors>"


def test_load_params_from_file_that_changed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.params"
    _params.save_params_to_file(ARRAYS, path)
    params = _params.load_params_from_file(path)
    _params.save_params_to_file({"weight": np.zeros((2, 3), "float32")}, path)
    with pytest.raises(errors.GraphError, match=r"m\.params' has changed since its parameters were listed; open it ag"):
        params["weight"]


def test_load_params_from_file_truncated_meanwhile_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(10))
    with (tmp_path / "short").open("rb") as file:
        source = _params._File(file)
        with pytest.raises(errors.GraphError, match="ends at byte 10: it was cut while it was read"):
            source.read(4, 8)
        with pytest.raises(errors.GraphError, match="byte 10"):
            source.read_into(4, memoryview(bytearray(8)))


def test_save_params_to_file_is_atomic(tmp_path: Path) -> None:
    with pytest.raises(errors.ArgumentError):
        _params.save_params_to_file({"good": np.zeros(3), "bad": None}, tmp_path / "m.params")
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        _params.load_params_from_file(tmp_path / "m.params")


def test_save_params_to_file_takes_params_of_a_file(tmp_path: Path) -> None:
    _params.save_params_to_file(ARRAYS, tmp_path / "a")
    _params.save_params_to_file(_params.load_params_from_file(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# Prints by how much loading all tensors and keeping them raised the peak of resident memory.
LOADING = """
import pathlib, sys
from portcall.graph import _params

def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])

params = _params.load_params_from_file(sys.argv[1])
for name in params:
    params.tensor(name)
    break
before = peak()
kept = [params.tensor(name) for name in params]
print(peak() - before)
"""


def test_load_params_from_file_memory_is_that_of_the_weights(tmp_path: Path) -> None:
    sizes = [1 << 10, 24 << 20, 8 << 20, 4 << 20]  # the largest one is most of it
    _params.save_params_to_file({f"w{n}": np.ones(n, "uint8") for n in sizes}, tmp_path / "m.params")
    done = subprocess.run(
        [sys.executable, "-c", LOADING, tmp_path / "m.params"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sum(sizes) * 0.9 < int(done.stdout) <= sum(sizes) * 1.1


# ---- Damage ----------------------------------------------------------------------------------------------------------

SOUND = _params.save_params({"ab": np.arange(6, dtype="int16").reshape(2, 3)})


def put(at: int, form: str, value: int) -> Callable[[bytes], bytes]:
    data = struct.pack(form, value)
    return lambda blob: blob[:at] + data + blob[at + len(data) :]


DAMAGES = {
    "no bytes": (lambda b: b"", "at byte 0: the mark of a blob takes 8 bytes, and 0 are left"),
    "other bytes": (lambda b: b"{}" * 40, "these bytes are not parameters"),
    "JSON": (lambda b: b'{"nodes": []}', "these bytes are not parameters"),
    "no reserved word": (lambda b: b[:12], "at byte 8: a reserved word takes 8 bytes, and 4 are left"),
    "names without end": (put(16, "<Q", 1 << 61), "2305843009213693952 names are announced"),
    "a name without end": (put(24, "<Q", 2**64 - 1), "at byte 32: a name takes 18446744073709551615 bytes"),
    "a name in no encoding": (put(32, "<B", 0xFF), "a name is not UTF-8: b'\\xffb'"),
    "fewer tensors": (put(34, "<Q", 0), "1 names and 0 tensors"),
    "more tensors": (put(34, "<Q", 2), "1 names and 2 tensors"),
    "no tensor": (put(42, "<Q", 1), "the tensor 'ab' does not begin before this byte"),
    "another device": (put(58, "<i", 2), "'ab' lies on a device of type 2, not on the host"),
    "negative axes": (put(66, "<i", -1), "'ab' has -1 axes"),
    "too many axes": (put(66, "<i", 65), "'ab' has 65 axes"),
    "pointers": (put(70, "<B", 3), "elements of no known type (code 3, 16 bits)"),
    "an unknown type": (put(70, "<B", 200), "elements of no known type (code 200, 16 bits)"),
    "elements without bits": (put(71, "<B", 0), "elements of no known type (code 0, 0 bits)"),
    "vectors": (put(72, "<H", 4), "vectors of 4 elements, which the format cuts"),
    "no lanes": (put(72, "<H", 0), "vectors of 0 elements"),
    "a negative extent": (put(74, "<q", -2), "has the shape (-2, 3)"),
    "another extent": (put(74, "<q", 3), "is said to have 12 bytes; its shape and type have 18"),
    "an endless extent": (put(74, "<q", 2**63 - 1), "is said to have 12 bytes"),
    "another size": (put(90, "<q", 11), "is said to have 11 bytes; its shape and type have 12"),
    "a negative size": (put(90, "<q", -1), "is said to have 18446744073709551615 bytes"),
    "data cut short": (lambda b: b[:-1], "at byte 98: the data of the tensor 'ab' takes 12 bytes, and 11 are left"),
    "bytes behind": (lambda b: b + b"x", "at byte 110: 1 bytes follow the end"),
    "a name twice": (
        lambda b: _params.save_params({"x": np.zeros(1), "y": np.zeros(1)}).replace(b"y", b"x", 1),
        "two tensors have the name 'x'",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_load_params_damaged_blob_error_has_the_position(kind: str, tmp_path: Path) -> None:
    damage, message = DAMAGES[kind]
    blob = damage(SOUND)
    with pytest.raises(errors.GraphError) as caught:
        _params.load_params(blob)
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)
    (tmp_path / "m.params").write_bytes(blob)
    with pytest.raises(errors.GraphError) as from_file:
        _params.load_params_from_file(tmp_path / "m.params")
    assert str(from_file.value) == f"'{tmp_path / 'm.params'}': {caught.value}"


def test_load_params_refuses_every_truncated_blob() -> None:
    blob = _params.save_params(ARRAYS)
    for size in range(len(blob)):
        with pytest.raises(errors.GraphError):
            _params.load_params(blob[:size])
