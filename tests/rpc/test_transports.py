# SPDX-License-Identifier: Apache-2.0
"""TCP, Unix sockets, TLS and pipes carry a session alike; each refuses whom it should, and says why."""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import trustme

from portcall import errors, rpc
from portcall._function import get_global_func
from rpc.serving import Serving, serving


@dataclass(frozen=True)
class Certificates:
    """Files of an authority, of a server and of a client of it."""

    ca: str
    server: str
    client: str

    @property
    def tls(self) -> rpc.TLSOptions:
        return rpc.TLSOptions(ca=self.ca)

    @property
    def mutual(self) -> rpc.TLSOptions:
        return replace(self.tls, certificate=self.client)


def write_certificates(folder: Path) -> Certificates:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    authority.issue_cert("client@example.com").private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
    return Certificates(*(str(folder / name) for name in ("ca.pem", "server.pem", "client.pem")))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of an authority that nobody trusts."""
    return write_certificates(tmp_path_factory.mktemp("others"))


@pytest.fixture(scope="module")
def tls_server(certificates: Certificates) -> Iterator[Serving]:
    with serving("--tls-cert", certificates.server) as server:
        yield server


@pytest.fixture(scope="module")
def mutual_server(certificates: Certificates) -> Iterator[Serving]:
    with serving("--tls-cert", certificates.server, "--tls-ca", certificates.ca) as server:
        yield server


# ---- What every transport does ------------------------------------------------------------------------------------


@contextlib.contextmanager
def tcp(certificates: Certificates) -> Iterator[rpc.Session]:
    with serving() as server, rpc.connect("127.0.0.1", server.port) as session:
        yield session


@contextlib.contextmanager
def unix(certificates: Certificates) -> Iterator[rpc.Session]:
    path = Path(certificates.ca).with_name("socket")
    with serving("--unix", path) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert server.address == f"unix:{path}"
        with rpc.connect(server.address) as session:
            yield session
    assert not path.exists()


@contextlib.contextmanager
def tls(certificates: Certificates) -> Iterator[rpc.Session]:
    with (
        serving("--tls-cert", certificates.server) as server,
        rpc.connect(server.address, tls=certificates.tls) as session,
    ):
        yield session


@contextlib.contextmanager
def mutual_tls(certificates: Certificates) -> Iterator[rpc.Session]:
    words = ("--tls-cert", certificates.server, "--tls-ca", certificates.ca)
    with serving(*words) as server, rpc.connect(server.address, tls=certificates.mutual) as session:
        yield session


@contextlib.contextmanager
def tls_and_token(certificates: Certificates) -> Iterator[rpc.Session]:
    with (
        serving("--tls-cert", certificates.server, PORTCALL_TOKEN="s3cret") as server,
        rpc.connect(server.address, tls=certificates.tls, token="s3cret") as session,
    ):
        yield session


@contextlib.contextmanager
def pipes(certificates: Certificates) -> Iterator[rpc.Session]:
    """Two pipes, and a thread that serves at their other ends."""
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    serve = get_global_func("portcall.rpc.ServeFds")
    thread = threading.Thread(target=serve, args=(their_in, their_out, ["*"], 0, None))
    thread.start()
    with rpc.Session(get_global_func("portcall.rpc.ConnectFds")(our_in, our_out, "pipes", 0.0, []), "pipes") as session:
        yield session
    thread.join(30)


Open = Callable[[Certificates], contextlib.AbstractContextManager[rpc.Session]]
KINDS = [tcp, unix, tls, mutual_tls, tls_and_token, pipes]


@pytest.mark.parametrize("transport", KINDS, ids=lambda kind: kind.__name__)
def test_transports_carry_calls_and_copies_of_every_size(transport: Open, certificates: Certificates) -> None:
    generator = np.random.default_rng(0)
    with transport(certificates) as session:
        echo = session["testing.echo"]
        assert [echo(number) for number in range(200)] == list(range(200))
        for size in (0, 1, 1023, 16 << 10, (256 << 10) + 1, (24 << 20) + 5):
            array = generator.integers(0, 256, size, "uint8")
            assert (session.tensor(array).numpy() == array).all()
            data = array.tobytes()[: 4 << 20]
            assert echo(data) == data


@pytest.mark.parametrize("transport", KINDS[:-1], ids=lambda kind: kind.__name__)
def test_transports_end_a_call_when_closed(transport: Open, certificates: Certificates) -> None:
    with transport(certificates) as session:
        outcome: list[BaseException] = []
        hang = session["demo.hang"]

        def call() -> None:
            try:
                hang()
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        while (doing := session.activity()) is None or doing.sent < doing.to_send:
            pass
        session.close()
        thread.join(30)
        assert [type(error) for error in outcome] == [errors.SessionClosedError]


def test_connect_over_pipes_without_server_can_be_closed() -> None:
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    connect = get_global_func("portcall.rpc.ConnectFds")
    with pytest.raises(errors.SessionTimeoutError, match="pipes did not answer in time: opening the session"):
        connect(our_in, our_out, "pipes", 0.1, [])
    os.close(their_in)
    os.close(their_out)


def test_parse_address_reads_ipv6_in_brackets() -> None:
    assert str(rpc.parse_address("::1", 80)) == "[::1]:80"
    assert str(rpc.parse_address("[::1]:80")) == "[::1]:80"
    assert str(rpc.parse_address("[::1]")) == "[::1]:9090"
    assert str(rpc.parse_address("board")) == "board:9090"
    assert str(rpc.parse_address("unix:/a/b:c")) == "unix:/a/b:c"


@pytest.mark.parametrize("text", ["ssh://board", "ssh://pi@board:2222", "ssh://pi@[::1]:22", "ssh://fe80.local"])
def test_parse_address_reads_those_for_ssh_where_they_are_meant(text: str) -> None:
    assert str(rpc.parse_address(text, ssh=True)) == text
    assert rpc.parse_address(text, ssh=True).ssh
    with pytest.raises(ValueError, match="URL"):
        rpc.parse_address(text)


@pytest.mark.parametrize("text", ["ssh://", "ssh://-oProxyCommand=x", "ssh://pi@-x", "ssh://-x@board", "ssh://a b",
                                  "ssh://board:70000", "ssh://board:0", "ssh://board/path", "ssh://[x]"])  # fmt: skip
def test_parse_address_refuses_what_ssh_could_misread(text: str) -> None:
    with pytest.raises(ValueError, match="ssh://"):
        rpc.parse_address(text, ssh=True)


@pytest.mark.parametrize("url", ["http://board:80/", "https://board:80", "tcp://board:80", "ws://board:80"])
def test_parse_address_refuses_urls_and_says_how_to_write_them(url: str) -> None:
    with pytest.raises(ValueError, match="'board:80'"):
        rpc.parse_address(url)


def socket_options() -> str:
    """Options of a TCP connection of this process; runs in a session, too."""
    import os
    import pathlib
    import socket

    for link in pathlib.Path("/proc/self/fd").iterdir():
        if not link.is_socket():
            continue
        with socket.socket(fileno=os.dup(int(link.name))) as sock:
            if sock.family == socket.AF_INET:
                tcp = (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                values = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in tcp]
                return " ".join(map(str, [sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *values]))
    raise LookupError("there is no connection")


def test_tcp_nodelay_and_keepalive_are_set_at_both_ends() -> None:
    register = "import portcall\nportcall.register_func('demo.socket_options', socket_options)\n"
    functions = inspect.getsource(socket_options) + register
    with serving(functions=functions) as server, rpc.connect(server.address) as session:
        theirs, ours = session["demo.socket_options"](), socket_options()
    for options in (ours, theirs):
        keep_alive, no_delay, idle, between, probes = map(int, options.split())
        assert keep_alive
        assert no_delay
        assert idle + between * probes <= 60


# ---- TLS ----------------------------------------------------------------------------------------------------------


def test_tls_server_of_an_unknown_authority_is_refused(tls_server: Serving, others: Certificates) -> None:
    for options in (others.tls, rpc.TLSOptions()):
        with pytest.raises(errors.AuthenticationError, match=r"is not to be trusted: .*TLSOptions\(ca=\)") as raised:
            rpc.connect(tls_server.address, tls=options)
        assert raised.value.peer == tls_server.address


def test_tls_server_with_another_name_is_refused(tls_server: Serving, certificates: Certificates) -> None:
    with pytest.raises(errors.AuthenticationError, match=r"board\.local"):
        rpc.connect(tls_server.address, tls=replace(certificates.tls, server_name="board.local"))
    with rpc.connect(tls_server.address, tls=replace(certificates.tls, server_name="localhost")) as session:
        assert session["testing.echo"](1) == 1


def test_tls_client_without_a_known_certificate_is_refused(
    mutual_server: Serving, certificates: Certificates, others: Certificates
) -> None:
    for options in (certificates.tls, replace(certificates.tls, certificate=others.client)):
        with pytest.raises(errors.ConnectError):
            rpc.connect(mutual_server.address, tls=options)
    with rpc.connect(mutual_server.address, tls=certificates.mutual) as session:
        assert session["testing.echo"](1) == 1


def test_tls_and_clear_text_do_not_connect(
    tls_server: Serving, serving_functions: Serving, certificates: Certificates
) -> None:
    with pytest.raises(errors.ConnectError, match="closed the connection in the handshake"):
        rpc.connect(tls_server.address)
    with pytest.raises(errors.ConnectError, match="does it speak TLS"):
        rpc.connect(serving_functions.address, tls=certificates.tls)


def test_tls_handshake_timeout(certificates: Certificates) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(errors.SessionTimeoutError, match=r"did not answer our TLS within 1 s"),
    ):
        rpc.connect("127.0.0.1", listener.getsockname()[1], tls=certificates.tls, timeout=1)


@pytest.mark.parametrize("field", ["ca", "certificate", "key"])
def test_tls_options_name_a_missing_file(certificates: Certificates, field: str) -> None:
    options = replace(certificates.mutual, **{field: "/nowhere/file.pem"})
    with pytest.raises(FileNotFoundError, match=r"/nowhere/file\.pem"):
        rpc.connect("127.0.0.1", 1, tls=options)


@pytest.mark.parametrize("words", [("ca",), ("server", "client"), ("client", "ca")], ids=" ".join)
def test_tls_options_name_invalid_files_at_both_ends(certificates: Certificates, words: tuple[str, ...]) -> None:
    """An authority is not the peer's certificate, and a key belongs to one certificate."""
    certificate, key = getattr(certificates, words[0]), getattr(certificates, words[1]) if words[1:] else ""
    said = f"TLS cannot use {certificate}{f' with {key}' if key else ''}.*PEM files"
    with pytest.raises(OSError, match=said):
        replace(certificates.tls, certificate=certificate, key=key).context()
    with pytest.raises(errors.ConnectError, match=certificate):
        rpc.Server(tls_certificate=certificate, tls_key=key)
    with pytest.raises(OSError, match=__file__):
        rpc.TLSOptions(ca=__file__).context()
    with pytest.raises(errors.ConnectError, match=__file__):
        rpc.Server(tls_certificate=certificates.server, tls_ca=__file__)


def test_tls_options_accept_relative_paths(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(certificates.ca).parent)
    words = ("--tls-cert", "server.pem", "--tls-key", "server.pem", "--tls-ca", "ca.pem")
    with (
        serving(*words) as server,
        rpc.connect(server.address, tls=rpc.TLSOptions(ca="ca.pem", certificate="client.pem")) as remote,
    ):
        assert remote["testing.echo"](1) == 1


def test_tls_context_refuses_old_versions(tls_server: Serving, certificates: Certificates) -> None:
    context = certificates.tls.context()
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname


def test_tls_session_crash_is_reported(tls_server: Serving, certificates: Certificates) -> None:
    with rpc.connect(tls_server.address, tls=certificates.tls) as session:
        with pytest.raises(errors.RemoteCrashError, match="SIGABRT") as raised:
            session["demo.crash"](6)
        assert raised.value.signal == "SIGABRT"


def test_tls_session_is_shared_by_threads(tls_server: Serving, certificates: Certificates) -> None:
    with rpc.connect(tls_server.address, tls=certificates.tls) as session:
        echo = session["testing.echo"]
        wrong: list[int] = []

        def work(number: int) -> None:
            data = bytes([number]) * (100_000 * number + 1)
            if echo(data) != data:
                wrong.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
