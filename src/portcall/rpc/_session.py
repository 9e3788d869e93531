# SPDX-License-Identifier: Apache-2.0
"""Sessions: open one, and use it like this process. Thread-safe; a request that fails half-way closes the session."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from portcall import _device, errors
from portcall._core import PackedFunc
from portcall._dtype import dtype as as_dtype
from portcall._function import get_global_func, not_found
from portcall._module import Module
from portcall._tensor import array_like, tensor_over_array
from portcall.rpc import _handshake
from portcall.rpc._remote import RemoteDevice, RemoteTensor, find_sessions_by
from portcall.rpc._transport import TLSOptions, as_descriptor, open_socket, parse_address, read_token

Progress = Callable[[int, int], None]  # bytes done, bytes in all
_CHUNK = 4 << 20


@dataclass(frozen=True)
class Ticket:
    """What a portcall server gives to ask later why a session ended."""

    session_id: str
    secret: str


class Session:
    """A session with a server. A context manager; everything that it owns is gone once it is closed.

    Attributes:
        name: for messages: the peer's address, unless another was given.
        module: the session as a Module of type ``rpc``.
    """

    def __init__(self, module: Module, name: str, reason: Callable[[], errors.RPCError | None] | None = None) -> None:
        self.module = module
        self.name = name
        self._reason = reason
        self._clocks: dict[str, float] = {}
        _sessions[get_global_func("portcall.rpc.SessionId")(module)] = self

    # ---- Functions and modules ----

    def get_function(self, name: str) -> PackedFunc:
        """Return a function that the server offers.

        Raises:
            FunctionNotFoundError: it offers none of that name.
        """
        func: PackedFunc | None = get_global_func("ffi.ModuleGetFunction")(self.module, name, False)
        if func is None:
            raise not_found(f"{self.name} offers no function {name!r}; serve it with --import FILE.py", name, [])
        return func

    __getitem__ = get_function

    def load_module(self, path: str) -> Module:
        """Load a library that was uploaded: .so, or .o, .tar and C or C++ sources, which are linked over there.

        Raises:
            RemoteError: the server cannot load it; the text says why.
        """
        with self._clock("load"):
            module: Module = self.get_function("tvm.rpc.server.load_module")(path)
        return module

    def system_lib(self, prefix: str = "") -> Module:
        """Return the functions of code that is linked into the server."""
        get = self.get_function("ffi.SystemLib")
        module: Module = get(prefix) if prefix else get()
        return module

    # ---- Memory ----

    def device(self, name: str | _device.Device, device_id: int | None = None) -> RemoteDevice:
        """Return a device of the session: ``device("cuda:0")``."""
        plain = _device.device(name, device_id)
        return RemoteDevice(plain.device_type, plain.device_id, self)

    def cpu(self, device_id: int = 0) -> RemoteDevice:
        """Return the host of the session."""
        return self.device("cpu", device_id)

    def cuda(self, device_id: int = 0) -> RemoteDevice:
        """Return an NVIDIA GPU of the session."""
        return self.device("cuda", device_id)

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32", device: Any = None) -> RemoteTensor:
        """Return a tensor of uninitialised memory, on the session's host unless a device is given.

        Raises:
            ValueError: the device belongs to another session.
            RemoteError: the server cannot allocate that much, or has no such device.
        """
        target = self._own_device(device)
        extents = [shape] if isinstance(shape, int) else [n.__index__() for n in shape]
        made: RemoteTensor = get_global_func("portcall.rpc.Empty")(
            self.module, extents, as_dtype(dtype), target.device_type, target.device_id
        )
        return made

    def tensor(self, source: Any, device: Any = None) -> RemoteTensor:
        """Return a tensor with the elements of an array, or of numbers in lists."""
        local = tensor_over_array(array_like(source))
        with self._clock("copy"):
            return self.empty(local.shape, local.dtype, device).copyfrom(local)

    def _own_device(self, device: Any) -> RemoteDevice:
        if device is None:
            return self.cpu()
        if isinstance(device, RemoteDevice):
            if device.session is not self:
                raise ValueError(f"{device!r} belongs to another session than {self.name}")
            return device
        return self.device(device)

    # ---- Files ----

    def upload(
        self, source: str | os.PathLike[str] | bytes | bytearray | memoryview, target: str | None = None,
        progress: Progress | None = None,
    ) -> str:  # fmt: skip
        """Send a local file, or bytes, to the session's directory, and return its name there.

        Parameters:
            target: its name over there; the local file's own by default, and required for bytes.
            progress: called with the bytes sent and the bytes in all.

        Raises:
            FileNotFoundError: there is no such file here.
            RemoteError: the server refused it.
        """
        if isinstance(source, (bytes, bytearray, memoryview)):
            if not target:
                raise errors.ArgumentError("upload() of bytes needs a name: target=", function="upload", position=1,
                                           expected="a name", got="None")  # fmt: skip
            with self._clock("upload"):
                return self._upload_bytes(bytes(source), target, progress)
        path = Path(source)
        name = target or path.name
        with self._clock("upload"):
            if self._offers("portcall.rpc.file_write"):
                self._upload_file(path, name, progress)
            else:
                self._upload_bytes(path.read_bytes(), name, progress)
        return name

    def _offers(self, name: str) -> bool:
        func = get_global_func("ffi.ModuleGetFunction")(self.module, name, False)
        return func is not None

    def _upload_bytes(self, data: bytes, name: str, progress: Progress | None) -> str:
        self.get_function("tvm.rpc.server.upload")(name, data)
        if progress:
            progress(len(data), len(data))
        return name

    def _upload_file(self, path: Path, name: str, progress: Progress | None) -> None:
        write = self.get_function("portcall.rpc.file_write")
        size, done = path.stat().st_size, 0
        with path.open("rb") as file:
            while True:
                chunk = file.read(_CHUNK)
                if not chunk and done:
                    return
                write(name, done, chunk)
                done += len(chunk)
                if progress:
                    progress(done, size)
                if done >= size:
                    return

    def download(self, path: str) -> bytes:
        """Fetch a file of the session's directory."""
        with self._clock("fetch"):
            data: bytes = self.get_function("tvm.rpc.server.download")(path)
        return data

    def remove(self, path: str) -> None:
        """Delete a file of the session's directory; one that is not there is no error."""
        self.get_function("tvm.rpc.server.remove")(path)

    def listdir(self, path: str = "") -> list[str]:
        """Return the names in a folder of the session's directory.

        Raises:
            FunctionNotFoundError: a TVM server, which cannot tell.
        """
        text: str = self.get_function("tvm.rpc.server.listdir")(path)
        return sorted(text.split(",")) if text else []

    # ---- Life ----

    @property
    def closed(self) -> bool:
        """Whether the session is over, by our doing or the peer's."""
        return bool(get_global_func("portcall.rpc.IsClosed")(self.module))

    def close(self) -> None:
        """End the session. What it owned cannot be used any more; calling this again does nothing."""
        get_global_func("portcall.rpc.Close")(self.module)

    def why_broken(self) -> errors.RPCError | None:
        """Ask the server why it ended the session; None when it does not know, or is no portcall server."""
        return self._reason() if self._reason else None

    def stats(self) -> dict[str, Any]:
        """Return counts of requests and bytes, and the seconds spent connecting, uploading, loading, copying."""
        return {**dict(get_global_func("portcall.rpc.Stats")(self.module)), "seconds": dict(self._clocks)}

    @contextlib.contextmanager
    def _clock(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._clocks[what] = self._clocks.get(what, 0.0) + time.perf_counter() - start

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<portcall.rpc.Session with {self.name}{', closed' if self.closed else ''}>"


_sessions: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()


def session_of(module: Module) -> Session:
    """Return the Session of a module of type ``rpc``."""
    return _sessions.get(get_global_func("portcall.rpc.SessionId")(module)) or Session(module, "a session")


find_sessions_by(session_of)


def connect(
    url: str,
    port: int | None = None,
    key: str = "",
    timeout: float | None = 10.0,
    session_timeout: float = 0,
    session_constructor_args: Sequence[Any] | None = None,
    *,
    token: str | None = None,
    tls: TLSOptions | None = None,
    call_timeout: float = 0,
    name: str = "",
    on_wait: Callable[[str], None] | None = None,
) -> Session:
    """Open a session with a server of portcall or of TVM.

    Parameters:
        url, port: ``"board.local"`` and 9090, ``"board.local:9090"``, ``"[::1]:9090"`` or ``"unix:/run/portcall"``.
        key: the key that the server was started with.
        timeout: seconds to wait for the connection and the server's first answer; None to wait for ever.
        session_timeout: seconds that the session may last, on the server's clock; 0 for the server's own limit.
        session_constructor_args: the name of a session constructor of the server, and its arguments:
            ``["rpc.Connect", host, port, key, False]`` goes one hop further.
        token: the server's token; by default that of the environment variable PORTCALL_TOKEN. With one, a server that
            does not prove that it knows it is refused.
        call_timeout: seconds that one request may take; 0 for no limit.
        on_wait: called with the server's words while it lets us wait.

    Raises:
        ConnectError: nobody listens there.
        KeyMismatchError, AuthenticationError, VersionMismatchError: the server refused, or is not to be trusted.
        SessionTimeoutError: no answer in time; the message says what was waited for.
    """
    address = parse_address(url, port)
    peer = str(address)
    secret = read_token(token)
    start = time.perf_counter()
    sock = open_socket(address, timeout, tls)
    try:
        ticket = _shake_hands(sock, peer, key, session_timeout, secret, timeout, on_wait)
    except BaseException:
        sock.close()
        raise
    descriptor = as_descriptor(sock)
    root = get_global_func("portcall.rpc.ConnectFds")(
        descriptor, descriptor, name or peer, float(call_timeout), list(session_constructor_args or [])
    )
    session = Session(root, name or peer, _asker(address, timeout, tls, ticket))
    session._clocks["connect"] = time.perf_counter() - start
    return session


def _shake_hands(
    sock: socket.socket, peer: str, key: str, session_timeout: float, secret: str, timeout: float | None,
    on_wait: Callable[[str], None] | None,
) -> Ticket | None:  # fmt: skip
    hello = _handshake.client_hello(key, session_timeout=session_timeout, nonce=_handshake.new_nonce())
    waiting_for = "the server's answer"
    try:
        sock.sendall(hello)
        reader = _handshake.ReplyReader(key)
        while True:
            # One byte more than a message has could belong to the session: read what is missing and no more.
            message = reader.feed(_read_exactly(sock, reader.missing()))
            if isinstance(message, _handshake.Notice):
                waiting_for = message.text
                if on_wait:
                    on_wait(message.text)
            elif message is not None:
                break
        _prove(sock, message, secret, hello + reader.transcript, peer)
    except TimeoutError:
        raise errors.SessionTimeoutError(f"{peer}: no answer within {timeout:g} s; waited for: {waiting_for}",
                                         peer=peer) from None  # fmt: skip
    except (ConnectionError, EOFError) as error:
        if isinstance(error, errors.RPCError):
            raise
        raise errors.ConnectError(f"{peer} closed the connection in the hand-shake; it may be busy with another "
                                  "client, or not be an RPC server", peer=peer) from None  # fmt: skip
    if "session" in message.options:
        return Ticket(message.options["session"], message.options.get("secret", ""))
    return None


def _read_exactly(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size)
    if not data:
        raise EOFError
    return data


def _prove(sock: socket.socket, reply: _handshake.Hello, secret: str, transcript: bytes, peer: str) -> None:
    wanted = reply.options.get("auth") == "token"
    if wanted and not secret:
        raise errors.AuthenticationError(
            f"{peer} wants a token; pass token= or set PORTCALL_TOKEN to the one it was started with", peer=peer
        )
    if secret and not wanted:
        raise errors.AuthenticationError(
            f"{peer} did not prove that it knows the token; it has none, or is not the server you mean", peer=peer
        )
    if not wanted:
        return
    sock.sendall(_handshake.proof(secret, "client", transcript))
    answer = b""
    while len(answer) < _handshake.PROOF_BYTES:
        try:
            answer += _read_exactly(sock, _handshake.PROOF_BYTES - len(answer))
        except EOFError:
            raise errors.AuthenticationError(f"{peer} refused the token", peer=peer) from None
    _handshake.check_proof(answer, secret, "server", transcript)


def _asker(
    address: Any, timeout: float | None, tls: TLSOptions | None, ticket: Ticket | None
) -> Callable[[], errors.RPCError | None] | None:
    """A function that asks the server, on a new connection, why a session ended."""
    if ticket is None:
        return None
    peer = str(address)

    def ask() -> errors.RPCError | None:
        try:
            with open_socket(address, timeout or 5.0, tls) as sock:
                sock.sendall(_handshake.reason_hello(ticket.session_id, ticket.secret))
                reader = _handshake.ReplyReader("")
                while (message := reader.feed(_read_exactly(sock, reader.missing()))) is None:
                    pass
        except (errors.RPCError, OSError, EOFError):
            return None
        if not isinstance(message, _handshake.Hello):
            return None
        if signal := message.options.get("signal", ""):
            return errors.RemoteCrashError(f"the session with {peer} crashed over there with {signal}", peer=peer,
                                           signal=signal)  # fmt: skip
        if "expired" in message.options:
            return errors.SessionTimeoutError(f"the time of the session with {peer} is over", peer=peer)
        return None

    return ask


class LocalSession(Session):
    """This process as a session: the same interface without a wire."""

    def __init__(self, expose: Sequence[str] = ("*",)) -> None:
        super().__init__(get_global_func("portcall.rpc.LocalSession")(list(expose)), "this process")
