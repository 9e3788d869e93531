# SPDX-License-Identifier: Apache-2.0
"""What a session can do, against a server of portcall and one of apache-tvm alike; then what only ours has."""

from __future__ import annotations

import builtins
import copy
import hashlib
import pickle
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors, rpc, toolchain
from portcall.rpc.client._connect import connect_without
from portcall.rpc.client._errors import remote_error
from rpc.conftest import CLIENT_FUNCTIONS
from rpc.serving import FUNCTIONS, Serving, serving


@pytest.fixture(scope="module", params=["portcall", pytest.param("apache-tvm", marks=pytest.mark.peers)])
def port(request: pytest.FixtureRequest) -> int:
    if request.param == "portcall":
        return int(request.getfixturevalue("serving_functions").port)
    return int(request.getfixturevalue("tvm_port"))


@pytest.fixture
def remote(port: int) -> Iterator[rpc.Session]:
    with rpc.connect("127.0.0.1", port, key="k", call_timeout=60) as session:
        yield session


@pytest.fixture
def ours(serving_functions: Serving) -> Iterator[rpc.Session]:
    with rpc.connect(serving_functions.address, key="k", call_timeout=60) as session:
        yield session


# ---- Values and functions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, -1, 2**63 - 1, -(2**63), 2.5, float("inf"), "", "a", "seven77", "eight888", "ünïcode " * 100,
     b"", b"\0", b"seven77", b"eight888", bytes(range(256)) * 50],
    ids=lambda v: repr(v)[:20],
)  # fmt: skip
def test_session_call_keeps_types_of_values(remote: rpc.Session, value: Any) -> None:
    answer = remote["testing.echo"](value)
    assert answer == value
    assert type(answer) is type(value)


def test_session_call_carries_large_bytes_and_strings(remote: rpc.Session) -> None:
    echo, add = remote["testing.echo"], remote["demo.add"]
    content, text = np.random.default_rng(0).bytes((3 << 20) + 7), "ünïcode " * 10_000
    answers = [echo(content), echo(text), echo(content[1 << 20 :]), add(content, content), add(content[:-5], b"few")]
    assert answers == [content, text, content[1 << 20 :], content + content, content[:-5] + b"few"]
    assert add(1, 2) == 3


def test_session_call_needs_memory_for_large_bytes_once_on_each_side(ours: rpc.Session) -> None:
    echo, peak = ours["testing.echo"], ours["demo.peak"]
    content = bytes(64 << 20)
    before = peak()
    Path("/proc/self/clear_refs").write_text("5")  # the peak of this process begins again
    here = peak_of_this_process()
    assert echo(content) == content
    assert peak_of_this_process() - here < 1.5 * len(content)
    assert peak() - before < 1.5 * len(content)


def peak_of_this_process() -> int:
    """Return the most memory that this process has had, in bytes."""
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def test_upload_that_is_to_be_compressed_works_with_any_server(remote: rpc.Session) -> None:
    remote.upload(b"abc" * 100_000, "packed", compress="zstd")
    assert remote.download("packed") == b"abc" * 100_000


def test_session_call_carries_data_types_and_devices(remote: rpc.Session) -> None:
    assert remote["testing.echo"](portcall.dtype("float16")) == portcall.dtype("float16")
    device = remote["testing.echo"](remote.cpu(0))
    assert (device.device_type, device.device_id) == (1, 0)


@pytest.mark.parametrize("value", [object(), [1, object()]], ids=["object", "object in a list"])
def test_session_call_refuses_unsupported_values_before_sending(remote: rpc.Session, value: Any) -> None:
    echo = remote["testing.echo"]
    before = remote.stats()["requests"]
    with pytest.raises(TypeError, match="argument #0"):
        echo(value)
    assert remote.stats()["requests"] == before


def test_get_function_names_a_missing_function_and_the_peer(remote: rpc.Session) -> None:
    with pytest.raises(
        errors.FunctionNotFoundError, match=r"127\.0\.0\.1:\d+ offers no function 'demo\.nothing'"
    ) as raised:
        remote.get_function("demo.nothing")
    assert raised.value.name == "demo.nothing"


def test_remote_function_result_is_called_on_the_server(remote: rpc.Session) -> None:
    add_three = remote["demo.adder"](3)
    assert isinstance(add_three, portcall.PackedFunc)
    assert [add_three(n) for n in range(3)] == [3, 4, 5]


def test_remote_tensor_result_is_fetched_viewed_and_passed_on(remote: rpc.Session) -> None:
    made = remote["demo.iota"](6)
    assert isinstance(made, rpc.RemoteTensor)
    assert (made.shape, str(made.dtype), made.nbytes) == ((6,), "float32", 24)
    np.testing.assert_array_equal(made.numpy(), np.arange(6))
    assert remote["demo.sum"](made) == 15
    np.testing.assert_array_equal(made.view((2,), byte_offset=16).numpy(), [4, 5])


def test_remote_tensor_echo_shares_and_keeps_its_memory(remote: rpc.Session) -> None:
    sent = remote.tensor(np.arange(3, dtype="float32"))
    same = remote["testing.echo"](sent)
    same.copyfrom(np.full(3, 7, "float32"))
    np.testing.assert_array_equal(sent.numpy(), [7, 7, 7])
    del sent
    remote["testing.nop"]()
    np.testing.assert_array_equal(same.numpy(), [7, 7, 7])


def test_remote_tensor_of_a_sent_array_stays_alive(remote: rpc.Session) -> None:
    back = remote["testing.echo"](np.arange(4, dtype="float32"))
    remote["testing.nop"]()
    np.testing.assert_array_equal(back.numpy(), np.arange(4))


def test_remote_object_is_passed_back(port: int) -> None:
    with connect_without(["values"], "127.0.0.1", port, key="k") as remote:
        items = remote["demo.array"]()
        assert isinstance(items, rpc.RemoteObject)
        assert remote["demo.length"](items) == 3


def test_remote_error_has_its_text_and_the_session_goes_on(remote: rpc.Session) -> None:
    with pytest.raises(errors.RemoteError, match="too bad") as raised:
        remote["demo.fail"]("too bad")
    assert raised.value.message == "too bad"
    assert raised.value.peer == remote.name
    assert remote["demo.add"](3, 4) == 7


# ---- Tensors ------------------------------------------------------------------------------------------------------


def test_remote_tensor_view_uses_its_own_offset(remote: rpc.Session) -> None:
    whole = remote.tensor(np.zeros((2, 3), "float32"))
    row = whole.view((3,), byte_offset=12)
    row.copyfrom(np.array([1, 2, 3], "float32"))
    np.testing.assert_array_equal(whole.numpy(), [[0, 0, 0], [1, 2, 3]])
    np.testing.assert_array_equal(row.numpy(), [1, 2, 3])
    remote["demo.fill"](row.view((1,), byte_offset=4), 9.0)
    np.testing.assert_array_equal(whole.numpy(), [[0, 0, 0], [1, 9, 3]])
    other = remote.empty((3,)).copyfrom(row)
    np.testing.assert_array_equal(other.numpy(), [1, 9, 3])


def test_session_call_copies_array_arguments_back(remote: rpc.Session) -> None:
    array = np.zeros((2, 3), "float32")
    remote["demo.fill"](array, 2.5)
    np.testing.assert_array_equal(array, np.full((2, 3), 2.5))


# ---- Libraries ----------------------------------------------------------------------------------------------------


@pytest.mark.peers
def test_upload_and_load_module_call_and_time_a_library(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    assert remote.upload(libraries["elementwise"], "kernels.so") == "kernels.so"
    library = remote.load_module("kernels.so")
    assert library.type_key == "rpc"
    x, y = remote.tensor(np.arange(5, dtype="float32")), remote.empty((5,))
    library["add_one"](x, y)
    np.testing.assert_array_equal(y.numpy(), np.arange(5) + 1)
    a, b = np.arange(5, dtype="float32"), np.zeros(5, "float32")
    library["add_one"](a, b)
    np.testing.assert_array_equal(b, a + 1)
    times = library.time_evaluator("add_one", remote.cpu(0), number=3, repeat=4)(x, y)
    assert len(times.results) == 4
    assert times.min >= 0
    with pytest.raises(errors.FunctionNotFoundError, match="no function 'nothing'"):
        library.get_function("nothing")
    with pytest.raises(errors.RemoteError):
        library["add_one"](x, remote.empty((4,)))
    seconds = remote.stats()["seconds"]
    assert all(seconds[clock] > 0 for clock in ("connect", "upload", "load", "copy", "run", "fetch"))


TWICE = """
struct Value { int type, zero; long long number; };
int __tvm_ffi_twice(void* self, const struct Value* args, int count, struct Value* result) {
  result->type = 1;
  result->number = 2 * args[0].number;
  return 0;
}
"""


@pytest.mark.parametrize("kind", ["o", "tar"])
def test_load_module_links_objects_and_archives_on_the_server(remote: rpc.Session, tmp_path: Path, kind: str) -> None:
    source, part = tmp_path / "twice.c", tmp_path / "twice.o"
    source.write_text(TWICE)
    subprocess.run([*toolchain.find_compiler("c").command, "-fPIC", "-c", source, "-o", part], check=True)
    with tarfile.open(tmp_path / "twice.tar", "w") as archive:
        archive.add(part, "twice.o")
    name = remote.upload(tmp_path / f"twice.{kind}")
    assert remote.load_module(name)["twice"](21) == 42


@pytest.mark.peers
def test_remote_module_import_module_finds_functions(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    for name in ("elementwise", "several"):
        remote.upload(libraries[name], f"{name}.so")
    parent, child = remote.load_module("elementwise.so"), remote.load_module("several.so")
    parent.import_module(child)
    assert parent.get_function("add_one") is not None


def test_upload_download_and_remove_files(remote: rpc.Session, tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes((9 << 20) + 7)
    (tmp_path / "data.bin").write_bytes(content)
    steps: list[tuple[int, int]] = []
    assert remote.upload(tmp_path / "data.bin", progress=lambda *step: steps.append(step)) == "data.bin"
    assert steps[-1] == (len(content), len(content))
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert remote.download("data.bin") == content
    remote.remove("data.bin")
    remote.remove("data.bin")
    with pytest.raises(errors.RemoteError):
        remote.download("data.bin")
    remote.upload(b"", "empty")
    assert remote.download("empty") == b""
    with pytest.raises(TypeError, match="needs a name"):
        remote.upload(b"bytes without a name")
    with pytest.raises(FileNotFoundError):
        remote.upload(tmp_path / "nothing")
    with pytest.raises(errors.RemoteError, match="cannot find file"):
        remote.load_module("nothing.so")


def test_system_lib_of_a_session_is_a_module(remote: rpc.Session) -> None:
    assert remote.system_lib().type_key == "rpc"


# ---- Life ---------------------------------------------------------------------------------------------------------


def test_connect_wrong_key_error_names_the_peer(port: int) -> None:
    with pytest.raises(
        errors.KeyMismatchError, match=r"127\.0\.0\.1:\d+: the server does not have the key 'wrong'"
    ) as raised:
        rpc.connect("127.0.0.1", port, key="wrong")
    assert raised.value.peer == f"127.0.0.1:{port}"


def test_connect_session_timeout_ends_the_session(port: int) -> None:
    with rpc.connect("127.0.0.1", port, key="k", session_timeout=0.5) as session:
        for _ in range(2):  # and later uses fail alike
            with pytest.raises(errors.SessionTimeoutError, match="session has expired") as raised:
                session["demo.nap"](100.0)
            assert raised.value.peer == session.name
        assert session.closed


def test_connect_twenty_sessions_in_a_row(port: int) -> None:
    for number in range(20):
        with rpc.connect("127.0.0.1", port, key="k") as session:
            assert session["demo.add"](number, 1) == number + 1


def test_connect_four_sessions_at_once_are_separate(port: int) -> None:
    def work(number: int) -> float:
        with rpc.connect("127.0.0.1", port, key="k", timeout=60) as session:
            session.upload(str(number).encode(), "mine.txt")
            tensor = session.tensor(np.full(1000, number, "float32"))
            total: float = session["demo.sum"](tensor)
            assert session.download("mine.txt") == str(number).encode()
            return total

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(8))) == [1000 * n for n in range(8)]


def test_session_closed_error_names_the_peer(remote: rpc.Session) -> None:
    tensor, function = remote.tensor([1.0]), remote["testing.echo"]
    items, module = remote["demo.array"](), remote.system_lib()
    remote.close()
    remote.close()
    assert remote.closed
    for use in (
        tensor.numpy, lambda: function(1), lambda: function(items), lambda: module.get_function("f"), remote.listdir,
        lambda: remote.empty((3,)), lambda: tensor.copyfrom([2.0]), remote.cpu().sync,
    ):  # fmt: skip
        with pytest.raises(errors.SessionClosedError, match=f"the session with {remote.name} is closed") as raised:
            use()
        assert raised.value.peer == remote.name
    assert tensor.shape == (1,)
    assert "closed" in repr(remote)


# ---- Only ours ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["ValueError", "KeyError", "TypeError", "OSError", "ZeroDivisionError", "TimeoutError"]
)
def test_remote_error_is_also_the_built_in_exception(ours: rpc.Session, kind: str) -> None:
    with pytest.raises(errors.RemoteError) as raised:
        ours["demo.raise"](kind, "what it says")
    error = raised.value
    assert isinstance(error, getattr(__import__("builtins"), kind))
    assert (error.kind, error.peer) == (kind, ours.name)
    assert "what it says" in error.message
    assert str(error) == f"{kind}: {error.message}"


def test_remote_error_of_an_unknown_class_keeps_its_text(ours: rpc.Session) -> None:
    with pytest.raises(errors.RemoteError, match="strange"):
        ours["demo.odd"]("strange")


@pytest.mark.parametrize(
    "kind", sorted(n for n, c in vars(builtins).items() if isinstance(c, type) and issubclass(c, BaseException))
)
def test_remote_error_accepts_the_name_of_any_built_in_exception(kind: str) -> None:
    made = remote_error(f"{kind}: what it says", "a peer")
    assert isinstance(made, errors.RemoteError)
    assert (str(made), made.kind, made.message, made.peer) == (f"{kind}: what it says", kind, "what it says", "a peer")
    built_in = getattr(builtins, kind)
    if built_in is not UnicodeError and issubclass(built_in, (ValueError, LookupError, ArithmeticError, OSError)):
        assert isinstance(made, built_in)
    if built_in is not BaseException and not issubclass(built_in, Exception):
        assert not isinstance(made, built_in)
    for copied in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert (type(copied), str(copied), copied.kind, copied.peer) == (type(made), str(made), kind, "a peer")


@pytest.mark.parametrize("kind", sorted(errors.__all__))
def test_remote_error_is_also_the_error_that_a_call_here_raises(kind: str) -> None:
    cls = getattr(errors, kind)
    made = remote_error(f"{kind}: what it says", "a peer")
    bases = (errors.RPCError, errors.RemoteError, errors.RemoteCrashError)
    if cls is errors.InternalError:  # also tvm-ffi's name for a failed check, which is none of ours
        cls = RuntimeError
    assert isinstance(made, cls) == (not issubclass(cls, errors.RPCError) or cls in bases)
    assert str(pickle.loads(pickle.dumps(made))) == str(made)


def test_arguments_that_are_refused_raise_the_same_class_on_both_sides(ours: rpc.Session) -> None:
    for func in (portcall.get_global_func("testing.test_raise_error"), ours["testing.test_raise_error"]):
        with pytest.raises(errors.ArgumentError, match="test_raise_error"):
            func(1, 2)
    for argument in (object(), [1, {"a": object()}]):
        with pytest.raises(errors.ArgumentError, match="'object'") as raised:
            ours["testing.echo"](argument)
        assert (raised.value.position, raised.value.got) == (0, "object")


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "SystemExit", "GeneratorExit"])
def test_remote_error_of_system_exit_does_not_exit(ours: rpc.Session, kind: str) -> None:
    with pytest.raises(errors.RPCError) as raised:
        ours["demo.raise"](kind, "stop")
    assert not isinstance(raised.value, (KeyboardInterrupt, SystemExit, GeneratorExit))


def test_remote_error_escapes_terminal_sequences(ours: rpc.Session) -> None:
    with pytest.raises(ValueError, match="red") as raised:
        ours["demo.fail"]("\x1b[31mred\x1b[0m\x1b]0;title\x07 \x9b2J\x08\r\nline")
    assert raised.value.message == "red 2J\nline"  # type: ignore[attr-defined]


def test_get_function_refuses_functions_that_are_not_exposed(ours: rpc.Session) -> None:
    with pytest.raises(PermissionError, match="--expose") as raised:
        ours.get_function("portcall.rpc.Close")
    assert isinstance(raised.value, errors.RemoteError)


@pytest.mark.parametrize("kind", ["so", "cc", "o", "tar"])
def test_load_module_links_every_kind_of_library(
    ours: rpc.Session, kernel_source: Path, tmp_path: Path, kind: str
) -> None:
    name = f"kernels.{kind}"
    path = tmp_path / name
    if kind == "so":
        toolchain.create_shared(kernel_source, path)
    elif kind == "cc":
        path.write_bytes(kernel_source.read_bytes())
    else:
        part = tmp_path / "kernels.o"
        compiler = [*toolchain.find_compiler("c++").command, "-std=c++17", "-fPIC", f"-I{toolchain.include_dir()}"]
        subprocess.run([*compiler, "-c", str(kernel_source), "-o", str(part)], check=True)
        if kind == "tar":
            with tarfile.open(path, "w") as archive:
                archive.add(part, "kernels.o")
    ours.upload(path)
    library = ours.load_module(name)
    assert library["add"](3, 4) == 7
    with pytest.raises(ValueError, match="refused by the kernel"):
        library["refuse"]()


@pytest.mark.parametrize(
    "size", [0, 1, 256 << 10, (256 << 10) + 1, 4 << 20, (4 << 20) + 1, (8 << 20) + (256 << 10) + 1]
)
def test_upload_and_download_files_of_any_size(ours: rpc.Session, tmp_path: Path, size: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    (tmp_path / "file").write_bytes(content)
    for source in (tmp_path / "file", content, bytearray(content), memoryview(content)):
        steps: list[tuple[int, int]] = []
        ours.upload(source, "file", progress=lambda *step, steps=steps: steps.append(step))
        assert steps[-1] == (size, size)
        assert [done for done, _ in steps] == sorted({done for done, _ in steps})
        assert ours["portcall.rpc.file_digest"]("file") == hashlib.sha256(content).hexdigest()
    fetched: list[tuple[int, int]] = []
    assert ours.download("file", progress=lambda *step: fetched.append(step)) == content
    assert fetched[-1] == (size, size)
    assert ours.stats()["seconds"]["upload"] > 0


def test_upload_interrupted_leaves_no_file(ours: rpc.Session) -> None:
    def give_up(done: int, size: int) -> None:
        raise ZeroDivisionError(f"{done} of {size}")

    ours.upload(b"kept", "other")
    with pytest.raises(ZeroDivisionError, match="4194304 of 9437184"):
        ours.upload(bytes(9 << 20), "file", progress=give_up)
    with pytest.raises(ZeroDivisionError):
        ours.download("other", progress=give_up)
    assert ours.listdir() == ["other"]


def test_upload_over_the_disk_limit_is_refused_and_freed() -> None:
    with serving("--disk-limit", "6MiB") as server, rpc.connect(server.address) as session:
        session.upload(bytes(1 << 20), "file")
        with pytest.raises(OSError, match="--disk-limit"):
            session.upload(bytes(7 << 20), "more")  # the first piece has room
        assert session.listdir() == ["file"]
        session.upload(bytes(5 << 20), "more")
        with pytest.raises(OSError, match="--disk-limit"):
            session.upload(b"1", "new")
        assert session.listdir() == ["file", "more"]


def test_upload_from_several_threads_through_one_session(ours: rpc.Session) -> None:
    contents = [bytes([number]) * (5 << 20) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(ours.upload, contents, "abcd"))
        assert list(pool.map(ours.download, names)) == contents


def test_time_evaluator_refuses_a_device_that_the_server_has_not(ours: rpc.Session, kernel_library: Path) -> None:
    library = ours.load_module(ours.upload(kernel_library))
    for device in (portcall.cpu(1), ours.cpu(1)):
        with pytest.raises(errors.RemoteError, match="cpu:1") as caught:
            library.time_evaluator("add", device)
        assert caught.value.kind.endswith("DeviceError")


def test_time_evaluator_preparation_is_a_function_of_the_server(ours: rpc.Session, kernel_library: Path) -> None:
    ours.upload(kernel_library)
    library = ours.load_module(kernel_library.name)
    evaluate = library.time_evaluator("add", ours.cpu(), f_preproc="demo.add")
    assert len(evaluate(3, 4).results) == 1
    with pytest.raises(errors.RemoteError, match=r"demo\.nothing"):
        library.time_evaluator("add", ours.cpu(), f_preproc="demo.nothing")


def test_remote_module_get_source(ours: rpc.Session, kernel_library: Path, c_libraries: dict[str, Path]) -> None:
    library_with_source = c_libraries["classic_unknown_blob"]
    (here,) = portcall.load_module(library_with_source).imported_modules
    there = ours["demo.imported"](str(library_with_source))
    assert there.type_key == "rpc"
    assert there.get_source() == here.get_source() != ""
    ours.upload(kernel_library)
    library = ours.load_module(kernel_library.name)
    with pytest.raises(errors.RemoteError):  # a shared library keeps none
        library.get_source()


def test_listdir_lists_folders(ours: rpc.Session) -> None:
    ours.upload(b"1", "b.txt")
    ours.upload(b"1", "a.txt")
    assert ours.listdir() == ["a.txt", "b.txt"]


def test_session_is_shared_by_threads(ours: rpc.Session) -> None:
    add = ours["demo.add"]

    def work(number: int) -> bool:
        tensor = ours.tensor(np.full(100, number, "float32"))
        return bool(add(number, 1) == number + 1 and (tensor.numpy() == number).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))


def test_session_close_ends_a_call_of_another_thread(serving_functions: Serving, tmp_path: Path) -> None:
    session = rpc.connect(serving_functions.address, key="k")
    started = tmp_path / "started"
    outcome: list[BaseException] = []
    touch, hang = session["demo.touch"], session["demo.hang"]
    before = session.stats()["requests"]

    def call() -> None:
        try:
            touch(str(started))
            hang()
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    with rpc.connect(serving_functions.address, key="k") as other:
        other["demo.wait_for"](str(started))
    while session.stats()["requests"] == before:  # the answer to the first call may still be on its way
        pass
    while (doing := session.activity()) is None or doing.what != "a call" or not doing.sent or doing.received:
        pass
    session.close()
    thread.join(30)
    assert [type(error) for error in outcome] == [errors.SessionClosedError]
    assert str(outcome[0]) == f"the session with {session.name} was closed while it waited for a call"


def test_session_activity_says_what_it_waits_for(serving_functions: Serving) -> None:
    with rpc.connect(serving_functions.address, key="k") as session:
        assert session.activity() is None
        thread = threading.Thread(target=lambda: session["demo.nap"](0.5))
        thread.start()
        seen = set()
        while thread.is_alive():
            doing = session.activity()
            if doing is not None:
                seen.add(doing.what)
                assert str(doing).startswith(f"{doing.what}: sent")
        thread.join()
        assert "a call" in seen


def test_call_timeout_error_says_what_was_waited_for(serving_functions: Serving) -> None:
    with rpc.connect(serving_functions.address, key="k") as session:
        nap = session["demo.nap"]
        session.set_call_timeout(0.3)
        with pytest.raises(
            errors.SessionTimeoutError, match=r"a call took more than 0\.3.* \(sent 36 of 36 bytes, received 0\)"
        ):
            nap(100.0)
        with pytest.raises(errors.SessionClosedError, match="a call ran out of time"):
            nap(0.0)


def test_set_call_timeout_changes_the_timeout(serving_functions: Serving) -> None:
    with rpc.connect(serving_functions.address, key="k") as session:
        session["demo.nap"](0.0)
        session.set_call_timeout(0.1)
        with pytest.raises(TimeoutError):
            session["demo.nap"](100.0)


# ---- Connecting ---------------------------------------------------------------------------------------------------


def test_connect_without_server_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(
        errors.ConnectError, match=f"cannot connect to 127.0.0.1:{port}: .*portcall serve --port {port}"
    ) as raised:
        rpc.connect("127.0.0.1", port)
    assert raised.value.peer == f"127.0.0.1:{port}"
    assert isinstance(raised.value, ConnectionError)


def test_connect_by_a_name_tells_where_those_of_saved_remotes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(errors.ConnectError, match="'rasp' is not known") as caught:
        rpc.connect("rasp")
    assert caught.value.hint.endswith("portcall remote show rasp")


def test_connect_unknown_host_and_missing_socket_are_connect_errors(tmp_path: Path) -> None:
    with pytest.raises(errors.ConnectError, match=r"cannot connect to nowhere\.invalid:9090"):
        rpc.connect("nowhere.invalid")
    with pytest.raises(errors.ConnectError, match=r"cannot connect to unix:.*portcall serve --unix"):
        rpc.connect(f"unix:{tmp_path}/none")


@pytest.mark.parametrize("address", ["host:port", "[::1", ":", "host:0", "host:70000"])
def test_connect_refuses_malformed_addresses(address: str) -> None:
    with pytest.raises(ValueError, match="the address"):
        rpc.connect(address)


def test_connect_refuses_a_key_with_whitespace(serving_functions: Serving) -> None:
    with pytest.raises(ValueError, match="whitespace"):
        rpc.connect(serving_functions.address, key="two words")


def test_connect_to_a_full_server_waits_and_says_why() -> None:
    with serving("--max-sessions", "1", functions=CLIENT_FUNCTIONS) as server, rpc.connect(server.address) as first:
        said: list[str] = []
        with pytest.raises(
            errors.SessionTimeoutError, match=r"waited for: the server is full \(1 session\); .* number 1 "
        ):
            rpc.connect(server.address, timeout=2, options=rpc.ConnectOptions(on_wait=said.append))
        assert said[:2] == ["the connection", "the server's answer"]
        assert "the server is full" in said[-1]
        opened: list[rpc.Session] = []
        waits = threading.Event()

        def on_wait(text: str) -> None:
            if "full" in text:
                waits.set()

        thread = threading.Thread(
            target=lambda: opened.append(
                rpc.connect(server.address, timeout=60, options=rpc.ConnectOptions(on_wait=on_wait))
            )
        )
        thread.start()
        assert waits.wait(30)
        first.close()
        thread.join(30)
        with opened[0] as second:
            assert second["demo.add"](1, 2) == 3
            assert second.stats()["seconds"]["queue"] > 0


@pytest.mark.parametrize(("server_token", "ours_token", "match"), [
    ("s3cret", "", "wants a token"), ("s3cret", "wrong", "refused the token"), ("", "s3cret", "did not prove"),
])  # fmt: skip
def test_connect_wrong_token_is_an_authentication_error(server_token: str, ours_token: str, match: str) -> None:
    with serving(PORTCALL_TOKEN=server_token) as server:
        with pytest.raises(errors.AuthenticationError, match=match) as raised:
            rpc.connect(server.address, token=ours_token)
        assert raised.value.peer == server.address


def test_connect_token_comes_from_argument_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(PORTCALL_TOKEN="s3cret") as server:
        with rpc.connect(server.address, token="s3cret") as session:
            assert session["testing.echo"](1) == 1
        monkeypatch.setenv("PORTCALL_TOKEN", "s3cret")
        with rpc.connect(server.address) as session:
            assert session["testing.echo"](1) == 1


@pytest.mark.parametrize("announced", [10, 1 << 20])
def test_download_reads_no_more_than_announced(announced: int) -> None:
    functions = (
        FUNCTIONS
        + f"""
for name, lie in (
    ("file_size", lambda path: {announced}),
    ("file_read", lambda path, offset, most: bytes(most + 1)),
    ("file_fill", lambda path, offset, target: target.nbytes + 1 if offset == 0 else -1),
):
    portcall.register_func("demo.lie." + name, lie)
    portcall.register_func("portcall.rpc." + name, lie, override=True)
from portcall.rpc.server import _files
_files.Files.register = lambda files: None
"""
    )
    with (
        serving(functions=functions) as server,
        rpc.connect(server.address) as session,
        pytest.raises(errors.RemoteProtocolError, match="announced"),
    ):
        session.download("file")
