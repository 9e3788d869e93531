# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type"
"""Arguments written on the command line: what each form means, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import Result

import portcall
from portcall.cli._arguments import make_arguments, read_value

Reader = Callable[[str], object]


@pytest.fixture
def read() -> Reader:
    return lambda text: read_value(text, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-7", -7),
        ("+2", 2),
        ("2.5", 2.5),
        ("1e-3", 1e-3),
        ("int:3", 3),
        ("float:3", 3.0),
        ("bool:true", True),
        ("bool:false", False),
        ("str:hello", "hello"),
        ("str:", ""),
        ("str:3:4", "3:4"),
        ("none", None),
        ("int64:-3", -3),
        ("float16:2.5", 2.5),
        ("bfloat16:2.5", 2.5),
        ("uint8:255", 255),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_read_value_gives_a_scalar_the_type_of_its_spelling(read: Reader, text: str, value: object) -> None:
    made = read(text)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("zeros:float32[2,3]", np.zeros((2, 3), "float32")),
        ("ones:int8[4]", np.ones(4, "int8")),
        ("range:int32[2, 3]", np.arange(6, dtype="int32").reshape(2, 3)),
        ("out:float64[2]", np.zeros(2)),
        ("ones:float32[]", np.ones((), "float32")),
        ("zeros:bool[0,5]", np.zeros((0, 5), "bool")),
        ("ones:bfloat16[2]", np.ones(2, ml_dtypes.bfloat16)),
        ("ones:float8_e4m3fn[2]", np.ones(2, ml_dtypes.float8_e4m3fn)),
    ],
)
def test_read_value_makes_arrays_of_type_shape_and_values(read: Reader, text: str, array: np.ndarray) -> None:
    made = read(text)
    assert isinstance(made, np.ndarray)
    assert (made.dtype, made.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(made, array)


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8", "uint8", "int64", "bool", "bfloat16"])
def test_read_value_random_repeats_with_its_seed(name: str) -> None:
    text = f"random:{name}[1000]"
    made = read_value(text, np.random.default_rng(1))
    np.testing.assert_array_equal(made, read_value(text, np.random.default_rng(1)))
    wide = made.astype("float64")
    assert wide.min() >= 0
    assert wide.max() <= (1 if name.startswith(("float", "bfloat", "bool")) else 99)
    assert len(set(wide.tolist())) >= 2


def test_read_value_loads_npy_files(read: Reader, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    np.savez(tmp_path / "one.npz", only=np.arange(4))
    np.savez(tmp_path / "two.npz", a=np.arange(5), b=np.arange(6))
    assert len(read(f"@{tmp_path}/x.npy")) == 3
    assert len(read(f"@{tmp_path}/one.npz")) == 4
    assert len(read(f"@{tmp_path}/two.npz:b")) == 6
    assert len(read(f"{tmp_path}/x.npy")) == 3
    assert len(read(f"{tmp_path}/two.npz:b")) == 6
    assert read("str:x.npy") == "x.npy"
    with pytest.raises(ValueError, match=r"has no array ''; it has a, b: write @.*:KEY"):
        read(f"@{tmp_path}/two.npz")
    with pytest.raises(FileNotFoundError):
        read(f"@{tmp_path}/missing.npy")


def test_read_value_names_a_damaged_npy_file(read: Reader, tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", a=np.arange(100))
    np.save(tmp_path / "whole.npy", np.arange(100))
    (tmp_path / "text.npy").write_text("text")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:200])
    (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:200])
    damaged = bytearray((tmp_path / "whole.npz").read_bytes())
    damaged[300] ^= 1  # in the middle of the array, which has a checksum
    (tmp_path / "damaged.npz").write_bytes(damaged)
    np.save(tmp_path / "objects.npy", np.array([{}]))
    for name, said in [
        ("text.npy", "is neither a .npy nor a .npz file"),
        ("empty.npy", "is neither a .npy nor a .npz file"),
        ("cut.npz", "cannot read '.*cut.npz': "),
        ("cut.npy", "cannot read '.*cut.npy': "),
        ("damaged.npz", "cannot read '.*damaged.npz': .*CRC"),
        ("objects.npy", "cannot read '.*objects.npy': Object arrays"),
    ]:
        with pytest.raises(ValueError, match=said):
            read(f"@{tmp_path}/{name}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "cannot read 'hello': for text write str:hello; else give random:float32"),
        ("int:2.5", "cannot read 'int:2.5'"),
        ("int64:2.5", "2.5 is no int64"),
        ("uint8:-1", "-1 is no uint8"),
        ("int65:1", "unknown element type 'int65'"),
        ("bool:yes", "cannot read 'bool:yes'"),
        ("float:x", "cannot read"),
        ("", "cannot read ''"),
        ("ones:floot32[2]", "unknown element type 'floot32'"),
        ("ones:object[2]", "'object' is not supported in tensors"),
        ("ones:f4[2]", "'f4' is not supported in tensors"),
        ("ones:str[2]", "not supported in tensors"),
    ],
)
def test_read_value_refuses_malformed_values(read: Reader, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(text)


@pytest.mark.parametrize("text", ["random:float32", "zeros:float32[a]", "out:[3]", "range:int32[-1]"])
def test_run_malformed_array_is_a_usage_error(invoke: Callable[..., Result], text: str) -> None:
    result = invoke("run", "k.so", "f", "--arg", text)
    assert result.exit_code == 2
    assert f"'{text}'" in result.stderr


@pytest.mark.parametrize("text", ["float32", "float32[", "out:float32", "random:float32[2]", ""])
def test_run_malformed_output_is_a_usage_error(invoke: Callable[..., Result], text: str) -> None:
    result = invoke("run", "k.so", "f", "--out", text)
    assert result.exit_code == 2
    assert f"'{text}' is not of the form TYPE[SHAPE]" in result.stderr


def test_make_arguments_makes_tensors_with_outputs_last() -> None:
    made = make_arguments(["ones:float32[2]", "3", "out:int8[1]"], ["out:float32[4]"], 0, portcall.tensor)
    assert [argument.output for argument in made] == [False, False, True, True]
    assert [isinstance(argument.value, portcall.Tensor) for argument in made] == [True, False, True, True]
    assert made[0].value.numpy().tolist() == [1, 1]
