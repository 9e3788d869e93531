# SPDX-License-Identifier: Apache-2.0
"""Every capture of apache-tvm's data plane against portcall's two ends: the server gets what TVM's client sent and must
answer as TVM's server did, handles apart; the client gets what TVM's server answered and must ask as TVM's client did,
byte for byte. What differs on purpose is listed, and said in docs/wire.md."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors, toolchain
from portcall.rpc import Session, connect_over
from portcall.rpc.wire import _handshake
from portcall.rpc.wire._facts import MISMATCH
from rpc import captures
from rpc.captures import ACK, CALL, EXCEPTION, FREE, FREE_DATA, INIT, RETURN, SYNC, Capture, Value

Register = Callable[..., Any]
OPEN = captures.encode((INIT, (b"0.8.0", ())))

# ---- The server ------------------------------------------------------------------------------------------------------

# What the captures use and do not show the making of: functions by name, memory by size, and results of functions.
FUNCTIONS = {
    0x55892A465450: "testing.echo",
    0x55892A40BA50: "testing.nop",
    0x55892A40BA90: "testing.test_raise_error",
    0x55892AB39430: "golden.make_adder",
    0x55892A2D8160: "golden.shape",
    0x55892A7B1AD0: "golden.shape_element",
    0x7F44BC0A4BB0: "golden.tensor",
}
MEMORY = {0x7F44BC00FB80: 24, 0x7F44BC03E000: 16, 0x7F44BC062D80: 16, 0x7F44BC01BB80: 16}
RESULTS = {0x7F44BC008720: "golden.adder", 0x7F44BC008978: "golden.module"}

STUB = "(server is a stub)"
UNINITIALIZED = "copy remote -> host, zero-dimensional"
MEASURED = "time evaluator call"
CUDA, NOBODYS = (2, 0), (13, 0)  # the latter: managed memory of CUDA
DIFFERENT = {
    "CallFunc echo(DLTensor): reply of type 7": "a tensor that is returned has a handle of its own",
    "unknown code 40": "an exception instead of the end of the session",
    "InitServer with constructor arguments": "no constructor is offered here",
    "InitServer twice": "the first one is not captured",
}


class Served:
    """An event-driven server that is fed by hand, with the captures' handles for those of its own."""

    def __init__(self) -> None:
        self.sent = sent = bytearray()

        def take(data: bytes) -> int:
            sent.extend(data)
            return len(data)

        self.handle = portcall.get_global_func("portcall.rpc.EventDrivenServer")(take, "", ["*"])
        self.names: dict[int, int] = {0: 0, 0x1234: 0x1234}  # of the captures to ours

    def give(self, data: bytes) -> bytes:
        """The answer to some bytes."""
        assert self.handle(data, 3) in (0, 1)
        sent = bytes(self.sent)
        self.sent.clear()
        return sent

    def call(self, code: int, content: Any) -> tuple[Value, ...]:
        code, values = captures.decode(self.give(captures.encode((code, content))))
        assert code == RETURN, values
        return tuple(values)

    def function(self, name: str) -> int:
        return int(self.call(9, (Value(captures.TEXT, name.encode()),))[0].content.number)

    def resolve(self, number: int) -> int:
        """Our handle for one of the captures, made if the captures do not show how."""
        if number not in self.names:
            if number in FUNCTIONS:
                self.names[number] = self.function(FUNCTIONS[number])
            elif number in RESULTS:
                made = self.call(CALL, (captures.Handle(self.function(RESULTS[number])), ()))
                self.names[number] = made[1].content.number
            else:
                sizes = (Value(1, MEMORY[number]), Value(1, 64), Value(captures.DTYPE, (2, 32, 1, 0)))
                self.names[number] = self.call(13, (Value(captures.DEVICE, (1, 0)), *sizes))[0].content.number
        return self.names[number]

    def ask(self, capture: Capture) -> captures.Frame:
        code, content = captures.decode(capture.data)
        content = captures.with_handles(content, self.resolve)
        request = code, content if code == CALL else not_cuda(content)
        return captures.decode(self.give(captures.encode(request)))

    def learn(self, expected: captures.Frame, answer: captures.Frame) -> captures.Frame:
        """The answer with the captures' handles; which of ours is which is remembered."""
        theirs, ours = captures.handles(expected[1]), captures.handles(answer[1])
        assert [number == 0 for number in theirs] == [number == 0 for number in ours]
        self.names.update({a: b for a, b in zip(theirs, ours, strict=True) if a})
        rest = iter(theirs)
        return answer[0], captures.with_handles(answer[1], lambda ours: next(rest))


def not_cuda(content: Any) -> Any:
    """Return a frame, or a part of one, with a device that nobody has for CUDA, which other tests may have loaded."""
    if isinstance(content, Value):
        cuda = content.type == captures.DEVICE and content.content == CUDA
        return replace(content, content=NOBODYS if cuda else not_cuda(content.content))
    if isinstance(content, captures.WireTensor) and content.device == CUDA:
        return replace(content, device=NOBODYS)
    return tuple(map(not_cuda, content)) if isinstance(content, tuple) else content


@pytest.fixture
def functions(register: Register, tmp_path: Path) -> None:
    """What TVM's process had beside what portcall has."""
    library = tmp_path / "addone.so"
    source = tmp_path / "addone.cc"
    source.write_text("""
#include <portcall/portcall.h>
static void AddOne(portcall::TensorView x, portcall::TensorView y) {
  for (size_t i = 0; i < x.numel(); ++i) y.data<float>()[i] = x.data<float>()[i] + 1;
}
PORTCALL_EXPORT_TYPED(addone, AddOne)
""")
    toolchain.create_shared(source, library)
    other = Path(shutil.copy(library, tmp_path / "other.so"))

    def load(*_: str) -> portcall.Module:
        return portcall.load_module(library)

    def adder() -> Any:
        return portcall.convert(lambda x: x + 10)

    def shape_element(shape: Any, index: int) -> int:
        if index >= len(shape):
            raise IndexError(f"Check failed: {index}")
        return int(shape[index])

    register("golden.adder", adder)
    register("golden.make_adder", adder)
    register("golden.shape", lambda *extents: portcall.Shape(extents))
    register("golden.shape_element", shape_element)
    register("golden.tensor", lambda: portcall.tensor(np.zeros(10, "float32")))
    register("golden.module", lambda: portcall.load_module(other))
    register("tvm.rpc.server.load_module", load)


def connections() -> list[list[Capture]]:
    """The frames that TVM's own two ends exchanged, by connection: each begins with a handshake."""
    found: list[list[Capture]] = []
    for capture in captures.read():
        if STUB in capture.name or capture.name.startswith(("tracker", "proxy")):
            continue
        if capture.is_frame or capture.data == captures.encode((captures.SHUTDOWN, b"")):
            found[-1].append(capture)
        elif capture.from_client:
            found.append([])
    return found


def same(name: str, expected: captures.Frame, answer: captures.Frame) -> bool:
    if expected[0] == EXCEPTION:  # each has words of its own
        return answer[0] == EXCEPTION and [value.type for value in answer[1]] == [captures.TEXT]
    if name.startswith(UNINITIALIZED) and expected[0] == ACK:
        return answer[0] == ACK and len(answer[1]) == len(expected[1])
    if name.startswith(MEASURED):
        return answer[0] == RETURN and len(answer[1][1].content) == len(expected[1][1].content)
    if len(expected[1]) == 2 and isinstance(expected[1], tuple) and expected[1][1].type == captures.BYTES:
        kinds = {12, 66}  # short bytes are announced as either
        return answer[1][0].content in kinds and answer[1][1] == expected[1][1]
    return captures.encode(answer) == captures.encode(expected)


@pytest.mark.usefixtures("functions")
def test_server_answers_as_tvm_did() -> None:
    answered = 0
    for connection in connections():
        served, opened = Served(), False
        for request, answer in itertools.pairwise(connection):
            if not request.from_client or answer.from_client:
                continue  # an answer, or Shutdown, or what nobody asked for
            if request.name.startswith(tuple(DIFFERENT)):
                if not opened:
                    served.give(OPEN)
                opened = True
                continue
            expected, got = captures.decode(answer.data), served.ask(request)
            if expected[0] == got[0] != EXCEPTION:
                got = served.learn(expected, got)
            assert same(request.name, expected, got), f"{request.name}: {got} instead of {expected}"
            opened |= captures.decode(request.data)[0] == INIT and expected[0] == RETURN
            answered += 1
    assert answered == 94


@pytest.mark.parametrize(
    ("start", "code", "types"),
    [
        ("CallFunc echo(DLTensor): reply of type 7", RETURN, [1, 7, 4]),
        ("unknown code 40", EXCEPTION, [8]),
        ("InitServer with constructor arguments", EXCEPTION, [8]),
        ("InitServer twice", EXCEPTION, [8]),
    ],
)
def test_server_answers_that_differ_from_tvms_are_listed(start: str, code: int, types: list[int]) -> None:
    served = Served()
    last = [capture for capture in captures.section(start) if capture.from_client and capture.is_frame][-1]
    if "constructor" in start:
        last = next(c for c in captures.section(start) if c.from_client and c.is_frame)
    else:
        served.give(OPEN)
    unknown = last.data[8] == 40  # nothing can be said of its body
    got = captures.decode(served.give(last.data)) if unknown else served.ask(last)
    assert got[0] == code
    assert [value.type for value in got[1]] == types


# ---- The client ------------------------------------------------------------------------------------------------------


class Recorded:
    """A transport whose other end is a recording: a request is answered with what TVM's server answered, if it is what
    TVM's client asked. Frees, for which ours does not wait, are answered and kept for a look afterwards."""

    def __init__(self, recording: list[Capture]) -> None:
        self.requests = [c for c in recording if c.is_frame and c.from_client]
        self.answers = [c for c in recording if c.is_frame and not c.from_client]
        self.done = b""
        self.frees: list[bytes] = []
        self.coming = captures.encode((RETURN, (Value(captures.NONE),)))  # to InitServer
        self.opened = False

    def send(self, data: bytes) -> int:
        for frame in captures.split(data):
            if not self.opened:
                assert frame == OPEN
                self.opened = True
            elif frame[8] in (FREE, FREE_DATA):
                self.frees.append(frame)
                self.coming += captures.encode((RETURN, (Value(captures.NONE),)))
            elif frame[8] == captures.SHUTDOWN:
                self.done += frame
            else:
                self._answer(frame)
        return len(data)

    def _answer(self, frame: bytes) -> None:
        while self.requests and self.requests[0].data != frame and self._skip(self.requests[0]):
            self.requests.pop(0)
            self.answers.pop(0)
        assert self.requests, f"one request too many: {captures.decode(frame)}"
        expected = self.requests.pop(0)
        assert frame.hex() == expected.data.hex(), expected.name
        self.coming += self.answers.pop(0).data

    @staticmethod
    def _skip(capture: Capture) -> bool:
        """What TVM's client asks and ours does not: to synchronize after copies, for the packet limit once more, and
        frees, which ours sends some other time."""
        return capture.data[8] in (SYNC, FREE, FREE_DATA) or b"GetCRTMaxPacketSize" in capture.data

    def receive(self, most: int) -> bytes:
        part, self.coming = self.coming[:most], self.coming[most:]
        return part

    def close(self) -> None:
        pass

    def assert_done(self) -> None:
        assert [c.name for c in self.requests if not self._skip(c)] == []
        # Whatever is freed is freed as TVM's client does it.
        for frame in self.frees:
            code, values = captures.decode(frame)
            assert values[-1].type == captures.POINTER
            assert code == FREE or values[0].type == captures.DEVICE


class Recording:
    """A session over a recording of some sections."""

    def __init__(self, *starts: str) -> None:
        chosen = [c for start in starts for c in captures.section(start)]
        self.transport = Recorded(chosen)

    def __enter__(self) -> Session:
        self.session = connect_over(self.transport)
        return self.session

    def __exit__(self, kind: Any, *_: object) -> None:
        self.session.close()
        if kind is None:
            self.transport.assert_done()


FOUND = "GetGlobalFunc 'testing.echo' (found)"

ECHOED = {
    "None": None,
    "True": True,
    "False": False,
    "int 1": 1,
    "int -1": -1,
    "int 2**40": 2**40,
    "int64 max": 2**63 - 1,
    "float 1.5": 1.5,
    "float -0.0": -0.0,
    "str empty": "",
    "str 'abc' (small string)": "abc",
    "str of 7 bytes": "abcdefg",
    "str of 8 bytes (heap string)": "abcdefgh",
    "str with an embedded NUL (truncated by the client)": "a",
    "bytes empty": b"",
    "bytes of 3 (small bytes)": b"\x00\x01\x02",
    "bytes of 7": bytes(range(7)),
    "bytes of 8 (heap bytes)": bytes(range(8)),
    "bytearray of 3": bytearray([1, 2, 3]),
}


@pytest.mark.parametrize("what", ECHOED)
def test_session_call_sends_values_as_tvm_did(what: str) -> None:
    value = ECHOED[what]
    with Recording(FOUND, f"CallFunc echo({what})") as session:
        assert session.get_function("testing.echo")(value) == value


def test_session_call_sends_nan_as_tvm_did() -> None:
    with Recording(FOUND, "CallFunc echo(float nan)") as session:
        assert np.isnan(session.get_function("testing.echo")(float("nan")))


def test_session_call_sends_types_devices_and_pointers_as_tvm_did() -> None:
    names = ["dtype int8x4", "dtype bfloat16", "dtype bool", "opaque pointer 0x1234", "device cuda:0 of this session"]
    with Recording(FOUND, *(f"CallFunc echo({name})" for name in names)) as session:
        echo = session.get_function("testing.echo")
        for name in ("int8x4", "bfloat16", "bool"):
            assert echo(portcall.dtype(name)) == portcall.dtype(name)
        assert echo(ctypes.c_void_p(0x1234)).value == 0x1234
        assert str(echo(session.device("cuda:0"))) == "cuda:0"


def test_get_function_asks_for_missing_functions_as_tvm_did() -> None:
    with Recording("GetGlobalFunc 'no.such.function'") as session, pytest.raises(errors.FunctionNotFoundError):
        session.get_function("no.such.function")


def test_remote_function_is_freed_as_tvm_did() -> None:
    recording = Recording(FOUND, FOUND)
    with recording as session:
        session.get_function("testing.echo")
        session.get_function("testing.echo")  # takes the free of the first with it
    (free,) = [c for c in captures.section("FreeHandle of a function") if c.from_client]
    ours, theirs = captures.decode(recording.transport.frees[0]), captures.decode(free.data)
    assert ours == (FREE, (Value(captures.POINTER, captures.Handle(0x55892A465450)),))
    assert captures.with_handles(ours, lambda _: 0) == captures.with_handles(theirs, lambda _: 0)


def test_empty_and_copyfrom_send_what_tvm_did() -> None:
    sections = ["alloc (2,3) float32", "copy host -> remote (2,3)", "copy remote -> host (2,3)"]
    with Recording(*sections) as session:
        data = np.arange(6, dtype="float32").reshape(2, 3)
        there = session.empty((2, 3), "float32")
        there.copyfrom(data)
        assert (there.numpy() == data).all()


def test_remote_tensor_of_an_array_is_made_as_tvm_did() -> None:
    with Recording("tensor from numpy (3,4) float64") as session:
        session.tensor(np.ones((3, 4)))


def test_remote_scalar_is_allocated_and_fetched_as_tvm_did() -> None:
    with Recording("alloc of a zero-dimensional int32", UNINITIALIZED) as session:
        assert session.empty((), "int32").numpy().tobytes() == bytes.fromhex("70d2ebc3")


def test_empty_on_a_missing_device_fails_as_for_tvm() -> None:
    recording = Recording("alloc on a device that the server lacks")
    with recording as session, pytest.raises(errors.RemoteError, match="Device API cuda is not enabled"):
        session.empty(2, "int8", "cuda:0")


def test_device_attributes_are_requested_as_tvm_did() -> None:
    with Recording("DevGetAttr exist of a missing device", "DevStreamSync cpu:0") as session:
        assert not session.device("cuda:0").exist
        session.cpu().sync()


def test_load_module_sends_what_tvm_did() -> None:
    with Recording("load_module 'addone.so'", "module['addone']", "module['nofn']") as session:
        module = session.load_module("addone.so")
        assert module.type_key == "rpc"
        module["addone"]
        # module["nofn"] then asks for the names that there are, to propose one.
        assert portcall.get_global_func("ffi.ModuleGetFunction")(module, "nofn", False) is None


def test_time_evaluator_sends_what_tvm_did() -> None:
    # Ours looks the function up first, to say what is missing.
    sections = ["load_module 'addone.so'", "module['addone']", "RPCTimeEvaluator creation, number=3"]
    with Recording(*sections) as session:
        module = session.load_module("addone.so")
        module.time_evaluator("addone", session.cpu(0), number=3, repeat=2)


def test_import_module_sends_what_tvm_did() -> None:
    recording = Recording("load_module 'addone.so'", "load_module 'addone.so'", "import_module")
    # The second module is one of the captures that was loaded before the recording began.
    again = captures.with_handles(captures.decode(recording.transport.answers[3].data), lambda _: 0x7F44BC008978)
    recording.transport.answers[3] = Capture("load_module again", False, captures.encode(again))
    with recording as session:
        session.load_module("addone.so").import_module(session.load_module("addone.so"))


def test_session_close_sends_what_tvm_did() -> None:
    recording = Recording(FOUND)
    with recording as session:
        session.get_function("testing.echo")
    (goodbye,) = [c for c in captures.section("Shutdown") if c.from_client][:1]
    assert recording.transport.done == goodbye.data


# ---- The handshake --------------------------------------------------------------------------------------------------


def hand_shakes(start: str) -> tuple[bytes, bytes]:
    hello, reply = itertools.islice((c for c in captures.section(start) if not c.is_frame), 2)
    return hello.data, reply.data


def test_handshake_bytes_are_those_of_tvm() -> None:
    hello, reply = hand_shakes("connect: handshake")
    assert _handshake.client_hello("gold", extended=False) == hello
    assert _handshake.server_reply("gold") == reply
    hello, _ = hand_shakes("connect with session_timeout=1")
    assert _handshake.client_hello("gold", session_timeout=1, extended=False) == hello
    _, reply = hand_shakes("handshake with a wrong key")
    assert _handshake.refusal(MISMATCH) == reply


def test_handshake_readers_read_tvms_bytes() -> None:
    hello, reply = hand_shakes("connect with session_timeout=1")
    said = _handshake.HelloReader().feed(hello)
    assert said is not None
    assert (said.key, said.timeout, said.is_portcall) == ("gold", 1.0, False)
    answer = _handshake.ReplyReader("gold").feed(reply)
    assert isinstance(answer, _handshake.Hello)
    assert answer.key == "gold"
    with pytest.raises(errors.KeyMismatchError):
        _handshake.ReplyReader("other").feed(struct.pack("<i", MISMATCH))
