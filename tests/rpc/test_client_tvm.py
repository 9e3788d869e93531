# SPDX-License-Identifier: Apache-2.0
"""Our client and apache-tvm's server: what is peculiar to that server. What both servers do is in test_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from portcall import errors, rpc, toolchain
from rpc.serving import serving

pytestmark = pytest.mark.peers


@pytest.fixture
def remote(tvm_port: int) -> Iterator[rpc.Session]:
    with rpc.connect("127.0.0.1", tvm_port, key="k", call_timeout=300) as session:
        yield session


def test_connect_to_a_busy_tvm_server_times_out(tvm_port: int) -> None:
    with rpc.connect("127.0.0.1", tvm_port, key="k") as first:
        with pytest.raises(errors.SessionTimeoutError, match="the server's answer"):
            rpc.connect("127.0.0.1", tvm_port, key="k", timeout=1)
        assert first["demo.add"](1, 2) == 3


def test_session_with_tvm_names_features_of_portcall_servers(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    with pytest.raises(errors.FunctionNotFoundError, match=r"tvm\.rpc\.server\.listdir"):
        remote.listdir()
    remote.upload(libraries["elementwise"], "kernels.so")
    with pytest.raises(errors.FunctionNotFoundError, match="TVM servers lack those of portcall"):
        remote.load_module("kernels.so").get_source()


def test_upload_to_tvm_checks_no_library(remote: rpc.Session, tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int f(void) { return 1; }")
    library = toolchain.create_shared(tmp_path / "a.c", tmp_path / "k.so", target="riscv64-linux-gnu")
    assert remote.machine() is None
    before = remote.stats()["requests"]
    remote.upload(library)
    remote.upload(library, "k.o")
    assert remote.stats()["requests"] == before + 4  # its own upload is looked up, and called
    assert remote.download("k.so") == library.read_bytes()


def test_connect_does_not_send_a_token_to_tvm(tvm_port: int) -> None:
    with pytest.raises(errors.AuthenticationError, match="did not prove that it knows the token"):
        rpc.connect("127.0.0.1", tvm_port, key="k", token="s3cret")


def test_remote_tensor_frees_travel_with_the_next_request(remote: rpc.Session) -> None:
    before = remote.stats()["requests"]
    for _ in range(600):
        remote.empty((1000,))
    assert remote.stats()["requests"] == before + 600
    np.testing.assert_array_equal(remote.tensor(np.arange(3)).numpy(), np.arange(3))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float64"])
def test_remote_tensor_round_trip_of_every_type_with_tvm(remote: rpc.Session, dtype: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    np.testing.assert_array_equal(remote.tensor(array).numpy(), array)
    np.testing.assert_array_equal(remote.tensor(array[:, ::2, ::-1]).numpy(), array[:, ::2, ::-1])
    np.testing.assert_array_equal(remote["testing.echo"](array).numpy(), array)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_remote_tensor_round_trip_of_empty_arrays_with_tvm(remote: rpc.Session, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, "float32")
    fetched = remote.tensor(array).numpy()
    assert fetched.shape == shape
    np.testing.assert_array_equal(fetched, array)


def test_remote_tensor_large_copy_with_tvm(remote: rpc.Session) -> None:
    array = np.random.default_rng(0).integers(0, 256, 5_000_003, "uint8")
    np.testing.assert_array_equal(remote.tensor(array).numpy(), array)


def test_remote_device_attributes_with_tvm(remote: rpc.Session) -> None:
    assert remote.cpu().exist
    assert not remote.device("cuda").exist
    assert remote.cpu().device_name is None
    with pytest.raises(errors.RemoteError):
        remote.empty((3,), device="cuda:0")


def test_connect_chain_through_our_server_to_tvms(tvm_port: int) -> None:
    with serving("--key", "k") as server:
        further = ["rpc.Connect", "127.0.0.1", tvm_port, "k", False]
        with rpc.connect(server.address, key="k", session_constructor_args=further) as session:
            assert session["demo.add"]("one", "hop") == "onehop"
            np.testing.assert_array_equal(session.tensor(np.arange(5.0)).numpy(), np.arange(5.0))
            with pytest.raises(errors.RemoteError) as raised:
                session["demo.fail"]("far away")
            assert raised.value.message == "far away"
            with pytest.raises(TypeError, match="cannot go on"):
                session["demo.add"](lambda: None, "one")
            assert session["demo.add"]("still", "there") == "stillthere"


def test_connect_chain_through_tvms_server_to_ours(tvm_port: int) -> None:
    with serving("--key", "ours") as server:
        further = ["rpc.Connect", "127.0.0.1", server.port, "ours", False]
        with rpc.connect("127.0.0.1", tvm_port, key="k", session_constructor_args=further) as session:
            assert session["demo.scale"](3, 4) == 12
            tensor = session.tensor(np.arange(5.0))
            np.testing.assert_array_equal(tensor.numpy(), np.arange(5.0))
            session["demo.fill"](tensor, 2.0)
            np.testing.assert_array_equal(tensor.numpy(), np.full(5, 2.0))
            with pytest.raises(ValueError, match="far away") as raised:
                session["demo.fail"]("far away")
            assert isinstance(raised.value, errors.RemoteError)
            assert raised.value.message == "far away"
