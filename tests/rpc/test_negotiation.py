# SPDX-License-Identifier: Apache-2.0
"""What two portcall peers agree on: versions and features, and errors with the place where they were raised."""

from __future__ import annotations

import contextlib
import pickle
import re
import select
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import portcall
from portcall import errors, rpc
from portcall.rpc.client._errors import remote_error
from portcall.rpc.wire import _handshake
from portcall.rpc.wire._facts import FEATURES
from rpc.raw_client import EXCEPTION, MAGIC, RETURN, RawClient, text
from rpc.relay import read_frame, saying
from rpc.serving import FUNCTIONS, Serving, serving

SERVED = (
    FUNCTIONS
    + """
class Strange(Exception): pass
class TwoArguments(Exception):
    def __init__(self, a, b): super().__init__(a)
@register("strange")
def strange(text): raise Strange(text)
@register("two")
def two(text): raise TwoArguments(text, 1)
@register("noted")
def noted(text):
    error = ValueError(text)
    error.__notes__ = ["the first note", "a note\\nof two lines"]
    raise error
"""
)


@pytest.fixture
def remote(server: Serving) -> Iterator[rpc.Session]:
    with rpc.connect(server.address) as session:
        yield session


# ---- Versions and features ----


@contextlib.contextmanager
def tvm_proxy() -> Iterator[int]:
    """Run apache-tvm's proxy; give its port."""
    script = Path(__file__).parents[2] / "js/test/tvm_proxy.py"
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        assert proxy.stdin is not None
        yield int(proxy.stdout.readline().split()[0])
        proxy.stdin.close()
        assert proxy.wait(30) == 0


@contextlib.contextmanager
def joined(proxy: int, words: str, server: Serving) -> Iterator[None]:
    """Join a proxy with these words, and have a server serve the client that comes, as it asks for itself."""
    with RawClient(f"127.0.0.1:{proxy}") as waiting, RawClient(server.address) as serving_it:
        waiting.send(struct.pack("<ii", MAGIC, len(words)) + words.encode())

        def carry() -> None:
            hello = waiting.read_reply().replace("client:web", "client:").encode()
            serving_it.send(struct.pack("<ii", MAGIC, len(hello)) + hello)
            serving_it.read_reply()
            pair = {waiting.sock: serving_it.sock, serving_it.sock: waiting.sock}
            while True:
                for one in select.select(list(pair), [], [])[0]:
                    if not (data := one.recv(1 << 16)):
                        return
                    pair[one].sendall(data)

        thread = threading.Thread(target=carry)
        thread.start()
        yield
        thread.join()


@pytest.mark.peers
def test_negotiation_goes_through_a_tvm_proxy(server: Serving) -> None:
    words = "server:web -portcall=1 -features=invented,output,traceback,values"
    with tvm_proxy() as port, joined(port, words, server), rpc.connect("127.0.0.1", port, key="web") as session:
        assert session.features == {"traceback", "values"}
        assert session.peer_kind == "portcall"
        assert session["testing.echo"]([1, "two"]) == [1, "two"]
        with pytest.raises(errors.RemoteError) as caught:
            session["demo.strange"]("boom")
        assert "in strange" in caught.value.remote_traceback


def test_negotiation_of_two_portcall_peers_has_all_features(server: Serving, remote: rpc.Session) -> None:
    with rpc.connect(server.address, options=rpc.ConnectOptions(on_output=lambda *_: None, heartbeat=60)) as asking:
        assert asking.features == set(FEATURES)
    assert remote.features == asking.features - {"alive", "output"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", None), (" -portcall=1", set()), (" -portcall=1 -features=", set()),
        (" -portcall=1 -features=invented", set()), (" -portcall=1 -features=invented,traceback,", {"traceback"}),
        (" -features=traceback", None), (" -portcall=7 -oldest=1 -features=traceback", {"traceback"}),
    ],
)  # fmt: skip
def test_negotiation_uses_features_that_both_have(server: Serving, options: str, expected: set[str] | None) -> None:
    with RawClient(server.address) as client:
        client.send(struct.pack("<ii", MAGIC, len(f"client:{options}")) + f"client:{options}".encode())
        words = dict(word.lstrip("-").partition("=")[::2] for word in client.read_reply().split()[1:])
        assert ("portcall" in words) == (expected is not None)
        assert set(filter(None, words.get("features", "").split(","))) == (expected or set())


def exception_values(client: RawClient) -> int:
    code, body = client.call("demo.fail", text("boom"))
    assert code == EXCEPTION
    count: int = struct.unpack_from("<i", body)[0]
    return count


@pytest.mark.parametrize(("options", "count"), [("", 1), (" -portcall=1", 1), (" -portcall=1 -features=traceback", 2)])
def test_remote_traceback_is_sent_only_to_clients_that_read_it(server: Serving, options: str, count: int) -> None:
    with RawClient(server.address).open(options=options) as client:
        assert exception_values(client) == count
        assert client.echo(3) == 3


@pytest.mark.parametrize("options", [" -portcall=9 -oldest=8", " -portcall=0"])
def test_server_refuses_clients_of_another_version(server: Serving, options: str) -> None:
    with RawClient(server.address) as client:
        words = f"client:{options}".encode()
        client.send(struct.pack("<ii", MAGIC, len(words)) + words)
        assert client.read_reply() == "server: -portcall=1"
        assert client.at_end()
    assert "version" in server.event("refused")["message"]


@pytest.mark.parametrize("options", ["-portcall=9 -oldest=8", "-portcall=0"])
def test_connect_refuses_servers_of_another_version(options: str) -> None:
    def reply(sock: Any) -> None:
        sock.recv(4096)
        words = f"server: {options} -session=1 -secret=x".encode()
        sock.sendall(struct.pack("<ii", MAGIC, len(words)) + words)

    with saying(reply, shake_hands=False) as port:
        with pytest.raises(errors.VersionMismatchError, match=r"speaks version .* this side version 1;") as raised:
            rpc.connect("127.0.0.1", port, timeout=30)
        assert raised.value.peer == f"127.0.0.1:{port}"


def test_connect_uses_no_features_of_a_server_at_a_proxy_that_it_did_not_name() -> None:
    """Such a server speaks before it knows its client."""

    def reply(sock: Any) -> None:
        sock.recv(4096)
        words = b"server: -portcall=1 -features=output,values,invented"
        sock.sendall(struct.pack("<ii", MAGIC, len(words)) + words)
        read_frame(sock)
        sock.sendall(struct.pack("<Qiii", 12, RETURN, 1, 0))

    with saying(reply, shake_hands=False) as port, rpc.connect("127.0.0.1", port, timeout=30) as session:
        assert session.features == {"values"}


@pytest.mark.parametrize("version", ["", "x", "-1", "1.0", "9" * 50])
def test_check_version_refuses_other_texts(version: str) -> None:
    with pytest.raises(errors.RemoteProtocolError):
        _handshake.Hello("", {"portcall": version}).check_version("the peer")


# ---- Errors ----


def test_remote_error_has_the_servers_traceback(remote: rpc.Session) -> None:
    with pytest.raises(ValueError, match="boom") as raised:
        remote["demo.fail"]("boom")
    error = raised.value
    assert isinstance(error, errors.RemoteError)
    head, frame, last = error.remote_traceback.splitlines()
    assert remote.name in head
    assert re.fullmatch(r'  File ".*/functions\.py", line \d+, in fail', frame)
    assert last == "ValueError: boom"


def test_remote_traceback_is_printed_below_the_clients(remote: rpc.Session) -> None:
    with pytest.raises(ValueError, match="boom") as raised:
        remote["demo.fail"]("boom")
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert frames[0].name == "test_remote_traceback_is_printed_below_the_clients"
    assert frames[-1].name == "fail"
    assert frames[-1].filename.startswith(f"{remote.name}: ")
    assert frames[-1].line == ""  # a file of that name on this machine is another one


def test_remote_error_has_the_notes(remote: rpc.Session) -> None:
    with pytest.raises(ValueError, match="boom") as raised:
        remote["demo.noted"]("boom")
    assert raised.value.__notes__ == ["the first note", "a note of two lines"]


def test_remote_error_notes_are_not_doubled(register: Any) -> None:
    def fail() -> None:
        error = ValueError("boom")
        error.__notes__ = ["a note"]
        raise error

    register("test.noted", fail)
    with pytest.raises(ValueError, match="boom") as raised:
        portcall.get_global_func("test.noted")()
    assert raised.value.__notes__ == ["a note"]


def test_register_error_makes_remote_errors_of_that_class(remote: rpc.Session, registrations_undone: None) -> None:
    class Strange(Exception):
        pass

    with pytest.raises(errors.RemoteError) as before:
        remote["demo.strange"]("odd")
    assert before.value.kind == ""
    portcall.register_error("Strange", Strange)
    with pytest.raises(Strange, match="odd") as raised:
        remote["demo.strange"]("odd")
    assert isinstance(raised.value, errors.RemoteError)
    assert (raised.value.kind, raised.value.message) == ("Strange", "odd")


def test_register_error_class_with_other_arguments_stays_a_remote_error(
    remote: rpc.Session, registrations_undone: None
) -> None:
    class TwoArguments(Exception):
        def __init__(self, a: str, b: int) -> None:
            super().__init__(a)

    portcall.register_error("TwoArguments", TwoArguments)
    with pytest.raises(errors.RemoteError, match="TwoArguments: odd"):
        remote["demo.two"]("odd")


def test_remote_traceback_survives_two_sessions() -> None:
    with serving(functions=SERVED) as far, serving() as near:
        host, _, port = far.address.rpartition(":")
        args = ["rpc.Connect", host, int(port), "", False]
        with rpc.connect(near.address, session_constructor_args=args) as session:
            with pytest.raises(ValueError, match="boom") as raised:
                session["demo.fail"]("boom")
            assert "in fail\n" in raised.value.remote_traceback  # type: ignore[attr-defined]


def test_popen_session_has_remote_tracebacks() -> None:
    with rpc.PopenSession() as session, pytest.raises(errors.RemoteError) as raised:
        session["tvm.rpc.server.load_module"]("missing")
    assert "in _load_module\n" in raised.value.remote_traceback


def test_remote_error_pickles_with_its_traceback(remote: rpc.Session) -> None:
    with pytest.raises(ValueError, match="boom") as raised:
        remote["demo.fail"]("boom")
    again = pickle.loads(pickle.dumps(raised.value))
    assert again.remote_traceback == raised.value.remote_traceback  # type: ignore[attr-defined]


def test_remote_error_of_tvm_has_no_traceback() -> None:
    assert remote_error("ValueError: boom", "peer").remote_traceback == ""  # type: ignore[union-attr]


@given(st.text(), st.text())
def test_remote_traceback_of_any_text_can_be_printed(message: str, backtrace: str) -> None:
    frame = f'  File "{backtrace}", line 5, in {backtrace}\n' * 300
    for sent in (backtrace, frame, frame + "  Own note: " + backtrace):
        error = remote_error(f"ValueError: {message}", "peer", sent)
        shown = "".join(traceback.format_exception(error)) + getattr(error, "remote_traceback", "")
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown.replace("\r", ""))
        assert len(getattr(error, "remote_frames", "").splitlines()) <= 100


def test_remote_traceback_accepts_long_line_numbers() -> None:
    error = remote_error("ValueError: x", "peer", f'  File "f", line {"9" * 400}, in g')
    assert isinstance(error, errors.RemoteError)
