# SPDX-License-Identifier: Apache-2.0
"""Sessions: open one, and use it like this process. Thread-safe; a request that fails half-way closes the session."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from portcall import _device, errors
from portcall._core import PackedFunc, new_bytes, tensor_over_bytes
from portcall._dtype import dtype as as_dtype
from portcall._function import get_global_func, not_found
from portcall._html import facts_as_html
from portcall._input import open_input
from portcall._module import Module
from portcall._signature import from_plain
from portcall._tensor import array_like, tensor_over_array
from portcall.inspect._machine import Machine
from portcall.rpc.client import _library_check
from portcall.rpc.client._activity import Activity, Progress, Transfer
from portcall.rpc.client._contents import Content, Offer
from portcall.rpc.client._output import OnOutput, OutputLines
from portcall.rpc.client._pipeline import answered, posting
from portcall.rpc.client._reconnect import Explanation, Opened, Reconnection
from portcall.rpc.client._reconnect import name_lost as name_lost  # what the binding calls
from portcall.rpc.client._remote import RemoteDevice, RemoteTensor, find_sessions_by
from portcall.rpc.wire import _values as _values  # what the core calls for objects by value
from portcall.rpc.wire import _zstd
from portcall.rpc.wire._digests import PIECE, Background

if TYPE_CHECKING:
    from typing_extensions import Self

_SMALL = 256 << 10  # bytes; files up to this size are sent as one message
_REQUESTS = ("copy", "run", "fetch")
_CLOCKS = ("queue", "connect", "upload", "load", *_REQUESTS)


class Session:
    """A session with a server. A context manager; everything that it owns is gone once it is closed.

    ``connect`` opens one; so do LocalSession, PopenSession and ``connect_over``.

    Attributes:
        name: for messages: the peer's address, unless another was given.
        peer_kind: ``portcall`` or ``TVM`` for a server, empty for others.
        features: the extensions of the protocol that both sides have (docs/wire.md, section 8).
    """

    peer_kind: str = ""
    features: frozenset[str] = frozenset()

    def __init__(
        self,
        module: Module,
        name: str,
        reason: Callable[[], errors.RPCError | None] | None = None,
        clocks: dict[str, float] | None = None,
        pump: threading.Thread | None = None,
    ) -> None:
        self.name = name
        self._clocks = dict.fromkeys(_CLOCKS, 0.0) | (clocks or {})
        self._lock = threading.Lock()
        self._reconnection: Reconnection | None = None
        self._call_timeout = self._heartbeat = 0.0
        self._on_output: OnOutput | None = None
        self._output: OutputLines | None = None
        self._digest: Background | None = None  # of the last large file, for its next upload
        self._transfer: Transfer | None = None  # of a file, while one is sent or fetched
        self._at_close: Callable[[], object] | None = None  # what else ends with it
        self._id = 0
        self._begin(Opened(module, reason, pump, self.peer_kind, self.features))

    def _begin(self, opened: Opened) -> None:
        """Use a session that was opened, from now on."""
        sessions.pop(self._id, None)
        module = self._module = opened.module
        reason = opened.ask or ((lambda: None) if self._reconnection else None)
        self._explanation = Explanation(self.name, reason) if reason else None
        if self._explanation:
            self._explanation.replaced = self._reconnection is not None
            get_global_func("portcall.rpc.SetExplain")(module, self._explanation)
        self._capsule = opened.capsule
        self._is_kept = opened.capsule is not None or opened.server_capsule
        self._pump = opened.pump  # the thread that does TLS
        self._own: dict[str, PackedFunc | None] = {}  # functions of portcall's servers, None where they are not offered
        self._good_answer: tuple[tuple[str, str], _library_check.Answer] | None = None  # the last, and what was asked
        self.peer_kind, self.features = opened.peer_kind, opened.features
        get_global_func("portcall.rpc.SetCallTimeout")(module, self._call_timeout)
        if self.features:
            get_global_func("portcall.rpc.UseFeatures")(module, sorted(self.features))
        if "alive" in self.features:
            get_global_func("portcall.rpc.SetHeartbeat")(module, self._heartbeat)
        if self._on_output is not None and "output" in self.features:
            self._output = OutputLines(self._on_output)
            get_global_func("portcall.rpc.SetOutput")(module, self._output)
        self._id = get_global_func("portcall.rpc.SessionId")(module)
        sessions[self._id] = self

    @classmethod
    def _over(
        cls, opened: Opened, name: str, call_timeout: float, heartbeat: float, on_output: OnOutput | None,
        reconnection: Reconnection | None,
    ) -> Self:  # fmt: skip
        """Return the Session of one that was opened; the rest is as of ``portcall.rpc.connect``."""
        self = cls(opened.module, name, clocks=opened.clocks)
        self._call_timeout, self._heartbeat, self._on_output = float(call_timeout), float(heartbeat), on_output
        self._reconnection = reconnection
        self._begin(opened)
        return self

    @property
    def module(self) -> Module:
        """The session as a Module of type ``rpc``; with ``reconnect=``, another one after it was lost."""
        is_closed = get_global_func("portcall.rpc.IsClosed")
        reconnection = self._reconnection
        if reconnection is None or not is_closed(self._module):
            return self._module
        with reconnection.lock:
            if is_closed(self._module):
                opened = reconnection.open()
                if self._reconnection is None:  # another thread has closed it meanwhile
                    get_global_func("portcall.rpc.Close")(opened.module)
                else:
                    self._begin(opened)
        return self._module

    # ---- Functions and modules ----

    def get_function(self, name: str) -> PackedFunc:
        """Return a function that the server offers.

        Raises:
            FunctionNotFoundError: it offers none of that name.
        """
        return self._function(name)

    def _function(self, name: str) -> PackedFunc:
        func = self._find(name)
        if func is None:
            remedy = "serve it with --import FILE.py (a server in JavaScript: --import FILE.mjs)"
            raise not_found(f"{self.name} offers no function {name!r}; {remedy}", name, [])
        return func

    def _find(self, name: str) -> PackedFunc | None:
        find = get_global_func("ffi.ModuleGetFunction")
        try:
            func: PackedFunc | None = find(self.module, name, False)
        except errors.RPCError:
            if self._reconnection is None or not get_global_func("portcall.rpc.IsClosed")(self._module):
                raise
            func = find(self.module, name, False)  # in another session: a look-up changes nothing
        return func

    def __getitem__(self, name: str) -> PackedFunc:
        return self.get_function(name)

    def _find_own(self, name: str) -> PackedFunc | None:
        """Return a function that only servers of portcall have, None where it is not offered; asked for once."""
        if name not in self._own:
            try:
                self._own[name] = self._find(name)
            except errors.RemoteError:
                self._own[name] = None
        return self._own[name]

    @answered
    def load_module(self, path: str) -> Module:
        """Load a library that was uploaded: .so, or .o, .tar and C or C++ sources, which are linked on the server.

        Raises:
            RemoteError: the server cannot load it; the text says why.
        """
        with self._clock("load"):
            module: Module = self._function("tvm.rpc.server.load_module")(path)
        return module

    @answered
    def system_lib(self, prefix: str = "") -> Module:
        """Return the functions of code that is linked into the server."""
        get = self._function("ffi.SystemLib")
        module: Module = get(prefix) if prefix else get()
        return module

    # ---- Pipelines ----

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[None]:
        """Do not wait for answers inside of the block: requests of this thread follow each other in one round trip.

        Allocations, copies to the session and calls are posted: tensors are used before they exist, and a call returns
        a ``portcall.Future``, which can be an argument of the next one. What gets data from the session waits for it;
        so does a call with arrays of this process. A request that fails makes all fail that use what it would have
        made, with its error. At the end of the block the first error that nothing has raised is raised here.

            with remote.pipeline():
                x, y = remote.tensor(a), remote.empty(a.shape)
                add_one(x, y)
                result = y.numpy()

        With a server of TVM, requests are answered one after the other, and calls return their results.
        """
        module = self.module
        with posting(self._id):
            yield
        get_global_func("portcall.rpc.Sync")(module)

    def sync(self) -> None:
        """Wait until all that was posted is done, and raise its first error that nothing has raised."""
        get_global_func("portcall.rpc.Sync")(self._module)

    # ---- Memory ----

    def device(self, name: str | _device.Device, device_id: int | None = None) -> RemoteDevice:
        """Return a device of the session: ``device("cuda:0")``.

        Raises:
            ValueError: a device that belongs to another session.
        """
        plain, module = _device.device(name, device_id), self.module
        if not isinstance(plain, RemoteDevice):
            made: RemoteDevice = get_global_func("portcall.rpc.Device")(module, plain.device_type, plain.device_id)
            return made
        if get_global_func("portcall.rpc.SessionId")(plain.root) != self._id:
            plain.check_open()
            raise ValueError(f"{plain!r} is not of the session with {self.name}")
        return plain

    def cpu(self, device_id: int = 0) -> RemoteDevice:
        """Return the host of the session."""
        return self.device("cpu", device_id)

    def cuda(self, device_id: int = 0) -> RemoteDevice:
        """Return an NVIDIA GPU of the session."""
        return self.device("cuda", device_id)

    def empty(
        self, shape: int | Sequence[int], dtype: Any = "float32", device: Any = None, *, scope: str | None = None
    ) -> RemoteTensor:
        """Return a tensor of uninitialised memory, on the session's host unless a device is given, in memory of a
        scope as with ``portcall.empty``.

        Raises:
            ValueError: the device belongs to another session.
            RemoteError: the server cannot allocate that much, or has no such device.
        """
        target = self.cpu() if device is None else self.device(device)
        extents = [shape] if isinstance(shape, int) else [n.__index__() for n in shape]
        made: RemoteTensor = get_global_func("portcall.rpc.EmptyInScope")(
            self.module, extents, as_dtype(dtype), target.device_type, target.device_id, scope
        )
        return made

    def tensor(self, source: Any, device: Any = None) -> RemoteTensor:
        """Return a tensor with the elements of an array, or of numbers in lists."""
        local = tensor_over_array(array_like(source))
        device = self.cpu() if device is None else self.device(device)
        with posting(self._id):
            made = self.empty(local.shape, local.dtype, device)
        return made.copyfrom(local)  # an error if there is no memory

    # ---- Files ----

    @answered
    def upload(
        self, source: str | os.PathLike[str] | bytes | bytearray | memoryview, target: str | None = None,
        progress: Progress | None = None, check: bool = True, compress: Literal["zstd"] | None = None,
    ) -> str:  # fmt: skip
        """Send a local file, or bytes, to the session's directory, and return its name there.

        A large file that the server has, from another session with the same token or certificate, is not sent again;
        one of which an earlier session had sent a part is sent from there on.

        A library (``.so``, ``.o``, ``.tar``) is checked first: whether it is for the server's machine and, if it is
        a shared library, whether the server has what it needs. Servers of TVM cannot answer, and get it unchecked.

        Parameters:
            target: its name on the server; the local file's own by default, and required for bytes.
            progress: called with the bytes sent and the bytes in all.
            check: false sends a library whatever the server's machine says.
            compress: ``"zstd"`` compresses what is sent, for slow connections; ``pip install 'portcall[zstd]'`` on both
                sides. A server that cannot unpack it gets the file as it is.

        Raises:
            FileNotFoundError: there is no such file.
            ModuleNotFoundError: this Python has no zstd.
            ModuleLoadError: the server could not load this library, which was not sent; ``.problems`` say why.
            RemoteError: the server refused it.
        """
        if compress not in (None, "zstd"):
            raise errors.ArgumentError(f"upload() compresses by 'zstd' alone, got {compress!r}", function="upload",
                                       expected="'zstd'", got=repr(compress))  # fmt: skip
        if isinstance(source, (bytes, bytearray, memoryview)):
            if not target:
                raise errors.ArgumentError("upload() of bytes needs a name: target=", function="upload", position=1,
                                           expected="a name", got="None")  # fmt: skip
            data = memoryview(source).cast("B")
            with self._clock("upload"):
                if check:
                    _library_check.check(data, target, self.name, self._ask_machine)
                transfer = Transfer(f"upload of '{target}'", len(data), progress)
                self._upload(Content(data), target, transfer, compress is not None)
            return target
        path = Path(source)
        name = target or path.name
        with open_input(path) as file, self._clock("upload"):
            if check:
                _library_check.check(path, name, self.name, self._ask_machine)
            transfer = Transfer(f"upload of '{name}'", path.stat().st_size, progress)
            self._upload(Content(file), name, transfer, compress is not None)
        return name

    def _upload(self, content: Content, name: str, transfer: Transfer, compress: bool) -> None:
        """Send a file piece by piece, unless the server has it; in one message where it takes no pieces.

        Messages are gathered before they are read, and tensors are not: larger pieces go through memory of the server.
        """
        if self._capsule is not None:
            self._capsule.files[name] = {"nbytes": content.size, "sha256": content.digest()}
        pack = _zstd.packer() if compress else None
        write = self._find_own("portcall.rpc.file_write")
        if write is None:
            self._function("tvm.rpc.server.upload")(name, b"".join(map(bytes, content.pieces())))
            transfer.advance(transfer.size)
            return
        # What the server has already would not be in a capsule.
        shares = content.size > _SMALL and not self._is_kept and self._find_own("portcall.rpc.content_find") is not None
        offer = Offer(content, name, self._function) if shares else None
        if start := offer.begin() if offer else 0:
            transfer.advance(start)
        if offer and start == content.size:
            return
        write_packed = self._find_own("portcall.rpc.file_write_zstd") if pack else None
        stage, pieces = None, content.pieces(start)
        try:
            with self._transferring(transfer):
                for piece in itertools.chain([next(pieces, memoryview(b""))], pieces):  # an empty file is one, too
                    packed = pack(piece) if pack and write_packed else piece
                    if write_packed and len(packed) < len(piece):
                        write_packed(name, transfer.done, packed, len(piece))
                    elif len(piece) <= _SMALL:
                        write(name, transfer.done, bytes(piece))
                    else:
                        if stage is None or stage.nbytes < len(piece):
                            stage = self.empty(len(piece), "uint8")
                        there = stage.view((len(piece),)).copyfrom(tensor_over_bytes(piece))
                        write(name, transfer.done, there)
                    transfer.advance(len(piece))
                    if offer:
                        offer.keep_part()
                if offer:
                    self._stop_digest()
                    self._digest = offer.keep()
        except BaseException:
            if transfer.done and not self.closed:  # part of a file is of no use
                with contextlib.suppress(errors.RPCError):
                    self.remove(name)
            raise

    def _stop_digest(self) -> None:
        if self._digest is not None:
            self._digest.stop()

    @contextlib.contextmanager
    def _transferring(self, transfer: Transfer) -> Iterator[None]:
        """Let others see how far a file is, and have a timeout say it."""
        self._transfer = transfer
        try:
            yield
        except errors.SessionTimeoutError as error:
            error.args = (f"{error}; {transfer.what}: {transfer.done:,} of {transfer.size:,} bytes",)
            raise
        finally:
            self._transfer = None

    @answered
    def machine(self) -> Machine | None:
        """Return what the server runs on; None where it cannot tell, as those of TVM."""
        answer = self._ask_machine("", "")
        return None if answer is None else answer.machine

    def _ask_machine(self, name: str, needs: str) -> _library_check.Answer | None:
        """Have the server look for a library's needs; a question without an answer does not refuse a library."""
        question, known = (os.path.dirname(name), needs), self._good_answer
        if known is not None and known[0] == question:  # the libraries of a tuner, say, all need the same
            return known[1]
        # A server that takes no pieces is not one of portcall's, and is not asked.
        ask = self._find_own("portcall.rpc.file_write") and self._find_own("portcall.rpc.machine")
        if ask is None:
            return None
        try:
            answer = _library_check.Answer.from_text(ask(name, needs))
        except (errors.RemoteError, ValueError):
            return None
        if answer.good:
            self._good_answer = question, answer
        return answer

    @answered
    def download(self, path: str, progress: Progress | None = None) -> bytes:
        """Fetch a file of the session's directory."""
        with self._clock("fetch"):
            read = self._find_own("portcall.rpc.file_read")
            if read is None:
                data: bytes = self._function("tvm.rpc.server.download")(path)
                return data
            size = self._function("portcall.rpc.file_size")(path)
            if size <= _SMALL:
                data = read(path, 0, size)
                if len(data) > size:
                    raise self._too_much(path, size)
                if progress:
                    progress(len(data), size)
                return data
            return self._fetch(path, Transfer(f"download of '{path}'", size, progress))

    def _fetch(self, path: str, transfer: Transfer) -> bytes:
        fill = self._function("portcall.rpc.file_fill")
        size = transfer.size
        stage = self.empty(min(size, PIECE), "uint8")
        data, target = new_bytes(size)
        with self._transferring(transfer):
            done = 0
            while done < size and (count := fill(path, done, stage.view((min(size - done, PIECE),)))):
                if not 0 < count <= min(size - done, PIECE):
                    raise self._too_much(path, size)
                stage.view((count,)).copyto(tensor_over_bytes(target[done : done + count]))
                done += count
                transfer.advance(count)
        return data[:done]  # the same, unless the file has become shorter

    def _too_much(self, path: str, size: int) -> errors.RemoteProtocolError:
        text = f"{self.name} announced {size} bytes of '{path}' and sent others; the file is not to be trusted"
        return errors.RemoteProtocolError(text, peer=self.name)

    @answered
    def remove(self, path: str) -> None:
        """Delete a file of the session's directory; a missing one is not an error."""
        self._function("tvm.rpc.server.remove")(path)

    @answered
    def listdir(self, path: str = "") -> list[str]:
        """Return the names in a folder of the session's directory.

        Raises:
            FunctionNotFoundError: a TVM server, which cannot tell.
        """
        text: str = self._function("tvm.rpc.server.listdir")(path)
        return sorted(text.split(",")) if text else []

    # ---- Life ----

    @property
    def closed(self) -> bool:
        """Whether the session is over, by our doing or the peer's; one that can be opened again is not."""
        return self._is_over()

    def _is_over(self) -> bool:
        if self._reconnection is not None and self._reconnection.failure is None:
            return False
        return bool(get_global_func("portcall.rpc.IsClosed")(self._module))

    def close(self) -> None:
        """End the session. What it owned cannot be used any more; calling this again does nothing.

        A request that is under way in another thread is cut off, and raises SessionClosedError there.
        """
        self._reconnection = None
        if self._explanation is not None:
            self._explanation.replaced = False
        get_global_func("portcall.rpc.Close")(self._module)
        self._stop_digest()
        if self._output is not None:
            self._output.stop()
        if self._pump is not None:
            self._pump.join(timeout=1.0)
        if self._at_close is not None:
            self._at_close()

    def end_reason(self) -> errors.RPCError | None:
        """Ask the server why it ended the session; None when it does not know, or is not a portcall server."""
        return self._explanation.find() if self._explanation else None

    def activity(self) -> Activity | None:
        """Return what the session waits for at this moment, if it does: for a display, from another thread."""
        facts = get_global_func("portcall.rpc.Activity")(self._module)
        request, transfer = Activity(*facts) if facts else None, self._transfer
        return transfer.activity(request) if transfer else request

    def set_call_timeout(self, seconds: float) -> None:
        """Let each request from now on take so long at most; 0 for no limit."""
        self._call_timeout = float(seconds)
        get_global_func("portcall.rpc.SetCallTimeout")(self._module, self._call_timeout)

    def stats(self) -> dict[str, Any]:
        """Return counts of requests and bytes, and the seconds that each kind of work took, in ``seconds``.

        ``queue`` and ``connect`` are over once the session is open; ``upload`` and ``load`` are those of this object;
        ``copy``, ``run`` and ``fetch`` are copies to the session, calls, and copies and downloads from it.
        """
        counts = dict(get_global_func("portcall.rpc.Stats")(self._module))
        with self._lock:
            seconds = dict(self._clocks)
        for clock in _REQUESTS:
            seconds[clock] += counts.pop(clock)
        return {**counts, "seconds": seconds}

    @contextlib.contextmanager
    def _clock(self, what: str) -> Iterator[None]:
        """Count the time of a block for a clock, and not for those of the requests of which it may consist."""
        stats = get_global_func("portcall.rpc.Stats")
        module = self.module
        start, before = time.perf_counter(), stats(module)
        try:
            yield
        finally:
            after = stats(module)
            with self._lock:
                self._clocks[what] += time.perf_counter() - start
                for clock in _REQUESTS:
                    self._clocks[clock] -= after[clock] - before[clock]

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<portcall.rpc.Session with {self.name}{', closed' if self.closed else ''}>"

    def _repr_html_(self) -> str:
        counts = get_global_func("portcall.rpc.Stats")(self._module)
        facts = [
            ("with", f"{self.name}, a server of {self.peer_kind}" if self.peer_kind else self.name),
            ("state", "closed" if self.closed else "open"),
            ("requests", f"{counts['requests']:,}"),
            ("sent", f"{counts['bytes_sent']:,} bytes"),
            ("received", f"{counts['bytes_received']:,} bytes"),
        ]
        return facts_as_html("portcall.rpc.Session", facts)


# The sessions whose Session is alive, by the number that the core gives each.
sessions: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()


def session_of(module: Module) -> Session:
    """Return the Session of a module of type ``rpc``."""
    found = sessions.get(get_global_func("portcall.rpc.SessionId")(module))
    return found or Session(module, get_global_func("portcall.rpc.SessionName")(module))


def remote_caller(func: PackedFunc) -> PackedFunc | None:
    """Return what calls a function of a session with names for its last arguments; None for functions of this process.

    Raises:
        ArgumentError: the server takes positional arguments only.
    """
    root: Module | None = get_global_func("portcall.rpc.FunctionSession")(func)
    if root is None:
        return None
    session = session_of(root)
    caller = session._find_own("portcall.rpc.call_with_names")
    if caller is None:
        raise errors.ArgumentError(f"{session.name} takes positional arguments only", function=func.name,
                                   expected="positional arguments", got="keywords")  # fmt: skip
    timeout = get_global_func("portcall.rpc.TimeoutOf")(func)
    return caller.with_timeout(timeout) if timeout else caller


def remote_signature(func: PackedFunc) -> inspect.Signature | None:
    """Ask the server for a function's signature; None where it says none, and for functions of this process."""
    root: Module | None = get_global_func("portcall.rpc.FunctionSession")(func)
    if root is not None:
        # A session that is over has no signatures: who asks for an attribute gets no other error.
        with contextlib.suppress(errors.RPCError, TypeError, ValueError):
            ask = session_of(root)._find_own("portcall.rpc.object_signature")
            plain = ask(func) if ask is not None else None
            return None if plain is None else from_plain(plain)
    return None


find_sessions_by(session_of)
