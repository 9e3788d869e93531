# SPDX-License-Identifier: Apache-2.0
"""Who is let in, and what sessions may reach: tokens, TLS, addresses, Unix sockets, constructors, exposed names."""

from __future__ import annotations

import os
import queue
import socket
import stat
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from portcall import rpc
from portcall.errors import AuthenticationError, RPCError
from portcall.rpc import Server
from portcall.rpc.server._options import ServerOptions, is_loopback
from portcall.rpc.wire import _handshake
from portcall.rpc.wire._facts import PROOF_BYTES
from rpc.processes import descendants_of
from rpc.raw_client import (
    EXCEPTION,
    GET_FUNCTION,
    MISMATCH,
    RETURN,
    RawClient,
    frame,
    hello,
    init,
    integer,
    sequence,
    text,
)
from rpc.relay import saying
from rpc.serving import serving, wait_until

TOKEN = "0123456789abcdef0123456789abcdef"

# ---- The token ----------------------------------------------------------------------------------------------------


def shake(client: RawClient, token: str, options: str = " -portcall=1 -nonce=abc") -> bytes:
    """Prove a token by hand; the server's proof, empty when it refuses."""
    client.send(hello("", options))
    words = client.read_reply()
    assert "-auth=token" in words
    assert "-nonce=" in words
    reply = struct.pack("<ii", 0xFF271, len(words)) + words.encode()
    transcript = hello("", options) + reply
    client.send(_handshake.proof(token, "client", transcript))
    try:
        proof = bytes.fromhex(client.read_reply().rpartition("-proof=")[2])
    except EOFError:
        return b""
    _handshake.check_proof(proof, token, "server", transcript)
    return proof


def test_token_is_proved_by_both_sides_and_never_sent() -> None:
    with serving(PORTCALL_TOKEN=TOKEN) as server:
        with RawClient(server.address) as client:
            assert len(shake(client, TOKEN)) == 32
            assert client.ask(init())[0] == RETURN
            assert client.echo(1) == 1
        with rpc.connect(server.address, token=TOKEN) as remote:
            assert remote.get_function("demo.scale")(3, 4) == 12


def test_token_wrong_ends_the_connection_and_is_logged() -> None:
    with serving(PORTCALL_TOKEN=TOKEN) as server, RawClient(server.address) as client:
        assert shake(client, "wrong") == b""
        assert "token" in server.event("refused")["message"]
        with pytest.raises(AuthenticationError):
            rpc.connect(server.address, token="wrong")
        with pytest.raises(AuthenticationError, match="wants a token"):
            rpc.connect(server.address, token="")


def test_token_proof_comes_before_any_request() -> None:
    with serving(PORTCALL_TOKEN=TOKEN) as server, RawClient(server.address) as client:
        client.send(hello("", " -portcall=1 -nonce=abc") + init() + frame(GET_FUNCTION, sequence(text("demo.pid"))))
        client.read_reply()
        assert client.at_end()


def test_token_proof_timeout_ends_the_connection() -> None:
    words = ("--handshake-timeout", "1s", "--max-sessions", "1")
    with serving(*words, PORTCALL_TOKEN=TOKEN) as server, RawClient(server.address) as client:
        client.send(hello("", " -portcall=1 -nonce=abc"))
        client.read_reply()
        with rpc.connect(server.address, token=TOKEN, timeout=60) as remote:  # which waits until there is room
            assert remote["testing.echo"](1) == 1
        assert client.at_end()
        assert server.event("dropped")["how"] == "silent"


def test_token_proof_is_needed_to_enter_the_queue() -> None:
    with (
        serving("--max-sessions", "1", "--handshake-timeout", "1h", PORTCALL_TOKEN=TOKEN) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        said: queue.Queue[str] = queue.Queue()
        first = rpc.connect(server.address, token=TOKEN)
        strangers = [RawClient(server.address) for _ in range(3)]
        for stranger in strangers:
            stranger.send(hello("", " -portcall=1 -nonce=abc"))
            assert "-auth=token" in stranger.read_reply()
        options = rpc.ConnectOptions(on_wait=said.put)
        waiting = pool.submit(rpc.connect, server.address, token=TOKEN, timeout=60, options=options)
        while "in its queue" not in (text := said.get(timeout=60)):
            pass
        assert "number 1 in its queue" in text
        first.close()
        with waiting.result() as second:
            assert second["testing.echo"](1) == 1
        for stranger in strangers:
            stranger.close()


def test_token_proof_of_another_session_is_refused() -> None:
    with (
        serving(PORTCALL_TOKEN=TOKEN) as server,
        RawClient(server.address) as first,
        RawClient(server.address) as second,
    ):
        proofs = []
        for client in (first, second):
            client.send(hello("", " -portcall=1 -nonce=abc"))
            words = client.read_reply()
            transcript = hello("", " -portcall=1 -nonce=abc") + struct.pack("<ii", 0xFF271, len(words)) + words.encode()
            proofs.append(_handshake.proof(TOKEN, "client", transcript))
        second.send(proofs[0])
        assert second.at_end()
        first.send(_handshake.proof(TOKEN, "server", b"") or proofs[0])
        assert first.at_end()


def test_token_server_refuses_tvm_clients() -> None:
    with serving(PORTCALL_TOKEN=TOKEN) as server, RawClient(server.address) as client:
        client.send(hello())
        assert struct.unpack("<i", client.read(4)) == (MISMATCH,)
        assert "TVM" in server.event("refused")["message"]


def test_token_is_hidden_from_sessions() -> None:
    with serving(PORTCALL_TOKEN=TOKEN) as server, rpc.connect(server.address, token=TOKEN) as remote:
        assert remote.get_function("demo.environment")("PORTCALL_TOKEN") == ""
        pid = remote.get_function("demo.pid")()
        while pid != server.process.pid:  # nor do the processes that it comes from
            for name in ("environ", "cmdline"):
                assert TOKEN.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
            assert not in_memory(pid, TOKEN.encode())
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def in_memory(pid: int, secret: bytes) -> bool:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            begin, end = (int(word, 16) for word in span.split("-"))
            try:
                memory.seek(begin)
                if secret in memory.read(end - begin):
                    return True
            except (OSError, ValueError):
                continue
    return False


def test_token_client_refuses_a_server_with_another_token() -> None:
    def pretend(sock: socket.socket) -> None:
        reader = _handshake.HelloReader()
        while reader.feed(sock.recv(1)) is None:
            pass
        reply = _handshake.server_reply("", {"portcall": "1", "auth": "token", "nonce": _handshake.new_nonce()})
        sock.sendall(reply)
        sock.recv(PROOF_BYTES, socket.MSG_WAITALL)
        proof = _handshake.proof("another", "server", reader.transcript + reply)
        sock.sendall(_handshake.server_reply("", {"proof": proof.hex()}))
        assert sock.recv(1) == b""  # no request follows

    with (
        saying(pretend, shake_hands=False) as port,
        pytest.raises(AuthenticationError, match="does not know the token"),
    ):
        rpc.connect("127.0.0.1", port, token=TOKEN)


def test_token_client_refuses_a_server_without_one() -> None:
    with serving() as server, pytest.raises(AuthenticationError):
        rpc.connect(server.address, token=TOKEN)


def test_server_options_do_not_show_the_token() -> None:
    options = ServerOptions(token=TOKEN)
    assert TOKEN not in repr(options)
    assert options.without_secrets().token == ""


# ---- Addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.2", "board.local"])
def test_check_exposure_refuses_unprotected_addresses(host: str) -> None:
    with pytest.raises(ValueError, match="--token-file"):
        ServerOptions(host=host).check_exposure()
    ServerOptions(host=host, token="x").check_exposure()
    ServerOptions(host=host, tls_certificate="a", tls_ca="b").check_exposure()
    ServerOptions(host=host, insecure=True).check_exposure()
    with pytest.raises(ValueError, match="--token-file"):
        ServerOptions(host=host, tls_certificate="a").check_exposure()


def test_is_loopback_knows_addresses_of_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "::", "example.org", "127.0.0.1.example.org")))


def test_serve_insecure_warns_at_each_start() -> None:
    with serving("--host", "0.0.0.0", "--insecure") as server:
        assert "can run any code" in server.event("insecure")["message"]
        with RawClient(f"127.0.0.1:{server.port}").open() as client:
            assert client.echo(1) == 1


def test_serve_unix_socket_is_private_to_the_user(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with serving("--unix", path) as server:
        assert server.address == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with RawClient(server.address).open() as client:
            assert client.echo(1) == 1
        with rpc.connect(server.address) as remote:
            assert remote.get_function("demo.scale")(3, 4) == 12
        assert f"user {os.getuid()}" in server.event("opened")["message"]
    assert not path.exists()


def test_serve_on_ipv6_loopback() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with serving("--host", "::1") as server, rpc.connect(server.address) as remote:
        assert remote.get_function("testing.echo")(1) == 1


# ---- TLS ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority (ca), a server and a client that it vouches for, and a stranger."""
    folder = tmp_path_factory.mktemp("certificates")
    authority, unknown = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, issuer in (("server", authority), ("client", authority), ("stranger", unknown)):
        made = issuer.issue_cert("127.0.0.1")
        made.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        made.private_key_pem.write_to_path(folder / f"{name}.key")
    return folder


def tls_words(certificates: Path, mutual: bool = False) -> list[object]:
    words: list[object] = ["--tls-cert", certificates / "server.pem", "--tls-key", certificates / "server.key"]
    return [*words, "--tls-ca", certificates / "ca.pem"] if mutual else words


def client_tls(certificates: Path, name: str = "") -> rpc.TLSOptions:
    own = (str(certificates / f"{name}.pem"), str(certificates / f"{name}.key")) if name else ("", "")
    return rpc.TLSOptions(str(certificates / "ca.pem"), *own)


def test_tls_session_sends_and_receives(certificates: Path) -> None:
    with serving(*tls_words(certificates)) as server:
        with rpc.connect(server.address, tls=client_tls(certificates)) as remote:
            assert remote.get_function("demo.scale")(3, 4) == 12
            data = os.urandom(5_000_000)
            remote.upload(data, "big")
            assert remote.download("big") == data
        with pytest.raises(AuthenticationError):
            rpc.connect(server.address, tls=rpc.TLSOptions(str(certificates / "stranger.pem")))


def test_tls_server_refuses_clear_text(certificates: Path) -> None:
    with serving(*tls_words(certificates)) as server, RawClient(server.address) as client:
        client.send(hello())
        assert "TLS" in server.event("refused")["message"]


def test_tls_client_certificate_of_the_authority_is_accepted(certificates: Path) -> None:
    with serving(*tls_words(certificates, mutual=True)) as server:
        with rpc.connect(server.address, tls=client_tls(certificates, "client")) as remote:
            assert remote.get_function("demo.scale")(3, 4) == 12
        for name in ("", "stranger"):
            with pytest.raises((OSError, AuthenticationError)):
                rpc.connect(server.address, tls=client_tls(certificates, name))
            server.event("refused", lambda event: "TLS" in event["message"])


def test_tls_with_a_token_reports_a_crash(certificates: Path) -> None:
    with serving(*tls_words(certificates), PORTCALL_TOKEN=TOKEN) as server:
        with rpc.connect(server.address, tls=client_tls(certificates), token=TOKEN) as remote:
            crash = remote.get_function("demo.crash")
            with pytest.raises(RPCError):
                crash(11)
        assert server.event("ended")["signal"] == "SIGSEGV"


def test_tls_key_is_dropped_by_the_worker(certificates: Path) -> None:
    key = load_pem_private_key((certificates / "server.key").read_bytes(), password=None)
    assert isinstance(key, EllipticCurvePrivateKey)
    number = key.private_numbers().private_value.to_bytes(32, "big")
    tls = client_tls(certificates)
    with serving(*tls_words(certificates)) as server, rpc.connect(server.address, tls=tls) as remote:
        pid = remote.get_function("demo.pid")()
        assert not in_memory(pid, number)
        assert not in_memory(pid, number[::-1])


def test_tls_missing_certificate_fails_at_start(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="does not start"):
        Server(tls_certificate=str(tmp_path / "no.pem"))


# ---- Strangers ----------------------------------------------------------------------------------------------------


def ask_why(address: str, tls: rpc.TLSOptions | None = None) -> str:
    """Ask about a session that there never was: who is answered came after all that connected before."""
    with RawClient(address) as client:
        if tls is not None:
            client.sock = tls.context().wrap_socket(client.sock, server_hostname="127.0.0.1")
        client.send(hello("", " -portcall=1 -reason=1.x"))
        return client.read_reply()


def test_strangers_cost_no_process(tmp_path: Path) -> None:
    with Server(work_dir=str(tmp_path), max_handshakes=200) as server:
        before = descendants_of(server.pid)
        strangers = [RawClient(server.address) for _ in range(100)]
        for stranger in strangers[::2]:
            stranger.send(hello("", " -portcall=1")[:-1])
        assert ask_why(server.address) == "server: -ended=unknown"
        assert descendants_of(server.pid) == before
        assert not list(tmp_path.glob("*/session-*"))
        for stranger in strangers:
            stranger.close()


def test_tls_strangers_cost_a_process_at_their_first_byte_only(certificates: Path) -> None:
    certificate, key = (str(certificates / f"server.{end}") for end in ("pem", "key"))
    with Server(max_handshakes=200, tls_certificate=certificate, tls_key=key) as server:
        before = descendants_of(server.pid)
        strangers = [RawClient(server.address) for _ in range(100)]
        assert ask_why(server.address, client_tls(certificates)) == "server: -ended=unknown"
        wait_until(lambda: descendants_of(server.pid) == before)  # the pump of that question has ended
        for stranger in strangers[:2]:
            stranger.send(b"\x16")
        wait_until(lambda: len(descendants_of(server.pid) - before) == 2)
        for stranger in strangers:
            stranger.close()
        wait_until(lambda: descendants_of(server.pid) == before)


def test_strangers_that_leave_are_forgotten_at_once() -> None:
    with serving("--handshake-timeout", "1h", PORTCALL_TOKEN=TOKEN) as server:
        for sent in (b"", hello("", " -portcall=1 -nonce=abc")[:5], hello("", " -portcall=1 -nonce=abc")):
            with RawClient(server.address) as client:
                client.send(sent)
                name = client.name
                if len(sent) > 5:
                    client.read_reply()
            event = server.event("dropped")
            assert (event["peer"], event["how"]) == (name, "left")


# ---- What sessions may reach --------------------------------------------------------------------------------------


def test_expose_adds_names_by_pattern() -> None:
    with serving("--expose", "portcall.Live*") as server, RawClient(server.address).open() as client:
        assert client.call("portcall.LiveNodes")[0] == RETURN
        assert "not offered" in client.error(frame(GET_FUNCTION, sequence(text("portcall.ListGlobalNames"))))


def test_expose_offers_imported_names_exactly() -> None:
    functions = "\n".join(["import portcall", *(f"portcall.register_func('{n}', id)" for n in ("odd[a]*", "even"))])
    with serving(functions=functions) as server, RawClient(server.address).open() as client:
        assert client.call("odd[a]*", integer(1))[0] == RETURN
        assert client.call("even", integer(1))[0] == RETURN


def constructed(address: str, *arguments: bytes) -> tuple[int, bytes]:
    with RawClient(address) as client:
        client.send(hello())
        client.read_reply()
        return client.ask(init(*arguments))


def test_session_constructor_local_is_the_default_and_unknown_ones_are_refused() -> None:
    with serving() as server:
        with RawClient(server.address).open(arguments=(text("rpc.LocalSession"),)) as client:
            assert client.echo(1) == 1
            assert "not offered" in client.error(frame(GET_FUNCTION, sequence(text("portcall.LiveNodes"))))
        for name in ("rpc.WasmSession", "testing.echo", "os.system"):
            code, body = constructed(server.address, text(name), text("x"))
            assert (code, b"makes no sessions" in body) == (EXCEPTION, True)


def test_session_constructor_connect_needs_permission_on_exposed_servers() -> None:
    with serving() as target:
        connect = (text("rpc.Connect"), text("127.0.0.1"), integer(target.port), text(""), integer(0))
        with serving() as server, RawClient(server.address).open(arguments=connect) as client:
            assert client.echo(1) == 1
        with serving("--host", "0.0.0.0", "--insecure") as server:
            code, body = constructed(f"127.0.0.1:{server.port}", *connect)
            assert (code, b"--allow-connect" in body) == (EXCEPTION, True)
        further = ["rpc.Connect", "127.0.0.1", target.port, "", False]
        with serving(PORTCALL_TOKEN=TOKEN) as server, pytest.raises(PermissionError, match="--allow-connect"):
            rpc.connect(server.address, token=TOKEN, session_constructor_args=further)
        with serving("--host", "0.0.0.0", "--insecure", "--allow-connect") as server:
            assert constructed(f"127.0.0.1:{server.port}", *connect)[0] == RETURN


# ---- Invalid tokens, and processes that have one ------------------------------------------------------------


@pytest.mark.parametrize("blank", [" ", "\t \n"])
def test_token_blank_is_refused_from_every_source(blank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="blank"):
        rpc.ServerOptions(token=blank)
    with pytest.raises(ValueError, match="blank"):
        rpc.connect("127.0.0.1:1", token=blank)
    monkeypatch.setenv("PORTCALL_TOKEN", blank)
    with pytest.raises(ValueError, match="blank"):
        rpc.connect("127.0.0.1:1")
    (tmp_path / "token").write_text(blank)
    serve = [sys.executable, "-m", "portcall", "serve", "--port", "0"]
    for words in ([], ["--token-file", str(tmp_path / "token")]):
        done = subprocess.run([*serve, *words], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1
        assert "listening" not in done.stdout


def test_token_short_or_readable_by_others_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for token, mode in (("short", 0o600), ("s" * 64, 0o644), ("s" * 64, 0o600)):
        path.write_text(token)
        path.chmod(mode)
        with serving("--token-file", str(path)) as server:
            server.event("listening")
            words = [event["event"] for event in server.log]
            assert ("weak-token" in words) == (token == "short")
            log = (server.work.parent / "log").read_text()
            assert ("chmod 600" in log) == (mode == 0o644)


PROTECTED = """
import ctypes, os, signal
from portcall.rpc import ServerOptions, serve

def on_ready(address):
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE
    os.kill(os.getpid(), signal.SIGTERM)

serve(ServerOptions(port=0, token={token!r}, log="none"), on_ready)
"""


@pytest.mark.parametrize("token", ["", "a long and secret token"])
def test_token_memory_is_not_readable_by_sessions(token: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROTECTED.format(token=token)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "0\n" if token else "1\n"), done.stderr
