# SPDX-License-Identifier: Apache-2.0
"""pytest's plug-in of portcall: tests that run on a board, or here when no board is named.

pytest imports this module in every run where portcall is installed, so it imports portcall only when a fixture asks.
See docs/testing-on-boards.md.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import portcall
    from portcall.bench import Measurement
    from portcall.farm import Farm, Lease
    from portcall.rpc import Session

FIXTURES = {"board", "remote", "bench"}
PLACE, FIGURE = "portcall_board", "portcall_bench"  # properties of a test in the report, and in JUnit's XML
BOARD = pytest.StashKey["Board"]()
HEARTBEAT = 30.0  # seconds for which a board may be silent while a test waits for it
CONNECT, AGAIN = 10.0, 2.0  # seconds for a session to open; for one with a board that a moment ago was not there
SILENT = {"unreachable", "no-session", "agent"}  # reasons of errors that take as long


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("portcall", "tests on boards (portcall)")
    options = {
        "remote": ("HOST:PORT", "", "Run on this server: HOST:PORT, or a name that portcall remote add saved."),
        "farm": ("HOST:PORT", "", "Lease a board of this farm for the run; each worker of pytest-xdist leases one."),
        "key": ("WANT", "", "What to ask the farm for, such as 'rasp4 & ram>=4GiB'; or the key of the server."),
        "wait": ("TIME", "10m", "How long to wait for the farm's board (10m)."),
        "against": ("FOLDER", "", "Compare each library that bench() times with the one of its name in this folder."),
    }
    for name, (metavar, default, text) in options.items():
        group.addoption(f"--portcall-{name}", metavar=metavar, default=default, help=text)
    scopes = ("function", "class", "module", "package", "session")
    text = "How long a session with the board lasts: for one test (function), or longer."
    group.addoption("--portcall-scope", choices=scopes, default="function", help=text)


def pytest_configure(config: pytest.Config) -> None:
    remote, farm, key = (config.getoption(f"portcall_{name}") for name in ("remote", "farm", "key"))
    if remote and farm:
        raise pytest.UsageError("--portcall-remote and --portcall-farm both say where to run: leave one out")
    if farm and not key and not os.environ.get("PORTCALL_LEASE"):
        raise pytest.UsageError("--portcall-farm needs --portcall-key, which says what to ask for")
    against = config.getoption("portcall_against")
    if against and not os.path.isdir(against):
        raise pytest.UsageError(f"--portcall-against: there is no folder '{against}'")
    config.addinivalue_line("markers", "needs(constraint): what the board has to have, such as 'ram>=4GiB'; "
                            "the test is skipped on others (portcall)")  # fmt: skip


class Board:
    """Where the tests of a run work: a server that was named, a place of a farm, or a server of the run's own.

    A place that is lost is replaced when the next test asks for a session. A server that does not answer is tried once
    more; then it is given up, as is a farm that has no other place: each further session is an error at once.
    """

    def __init__(self, config: pytest.Config, stack: contextlib.ExitStack) -> None:
        from portcall import rpc
        from portcall.bench import parse_duration
        from portcall.cli import _remote as commands

        self._address: str = config.getoption("portcall_remote")
        self._given = {
            "farm": config.getoption("portcall_farm"), "key": config.getoption("portcall_key"),
            "wait": parse_duration(config.getoption("portcall_wait")),
            "token_file": None, "tls_ca": None, "tls_cert": None,
        }  # fmt: skip
        self._silent = ""  # why the last session did not open in time
        self._lost = False  # the last session was
        self._given_up = ""  # why
        self._farm: Farm | None = None
        self._lease: Lease | None = None
        self._keys: tuple[str, ...] = ()
        self._tags: dict[str, Any] = {}
        self._own = ""
        if commands.uses_farm(self._address, self._given):
            self._farm = stack.enter_context(commands.connect_farm(self._given))
            self._lease = commands.take_lease(self._farm, self._given, None)
        elif not self._address:
            self._own = stack.enter_context(rpc.Server()).address

    @property
    def name(self) -> str:
        """The id of the farm's place, or the address or name of the server; ``a server of this run``."""
        return self._lease.place if self._lease is not None else self._address or "a server of this run"

    @property
    def tags(self) -> dict[str, Any]:
        """What is known of it: ``arch``, ``cores``, ``ram`` (bytes), ``os``, ``libc``; and what the farm knows."""
        if not self._tags and self._farm is not None:
            here = next(place for place in self._farm.status()["places"] if place["place"] == self.name)
            self._tags, self._keys = here["tags"], tuple(here["keys"])
        elif not self._tags:
            with self.session() as remote:
                self._tags = _tags_of(remote)
        return self._tags

    def missing(self, constraint: str) -> list[str]:
        """Return the conditions of a constraint, such as ``gpu=mali & ram>=4GiB``, that this board does not meet.

        Raises:
            ValueError: it is no constraint.
        """
        from portcall.farm._constraints import parse_constraint

        tags = self.tags
        return [str(clause) for clause in parse_constraint(constraint).missing(self._keys, tags)]

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Open a session, and close it at the end. A place of the farm that is lost is replaced, once.

        Raises:
            RPCError: the board is not there.
        """
        from portcall.errors import ConnectError, RPCError

        if self._given_up:
            raise ConnectError(f"given up after an earlier test: {self._given_up}", peer=self.name)
        timeout = AGAIN if self._silent else CONNECT
        with contextlib.ExitStack() as stack:
            try:
                remote = self._placed(stack, timeout) if self._farm is not None else self._served(stack, timeout)
            except RPCError as error:
                if error.reason in SILENT and self._silent:
                    self._given_up = self._silent
                self._silent = str(error) if error.reason in SILENT else ""
                raise
            self._silent = ""
            try:
                yield remote
            finally:
                self._lost = remote.closed

    def _served(self, stack: contextlib.ExitStack, timeout: float) -> Session:
        from portcall.cli import _remote as commands

        given = {**self._given, "key": "" if self._own else self._given["key"], "connect_timeout": timeout}
        opened = commands.open_session(self._own or self._address, given, heartbeat=HEARTBEAT)
        session, _ = stack.enter_context(opened)
        return session

    def _placed(self, stack: contextlib.ExitStack, timeout: float) -> Session:
        from portcall.cli import _remote as commands
        from portcall.errors import ConnectError, FarmError, RPCError, SessionTimeoutError

        assert self._farm is not None
        assert self._lease is not None
        try:
            remote = self._lease.session(
                timeout=AGAIN if self._lost else timeout, on_output=_print, heartbeat=HEARTBEAT
            )
        except (ConnectError, FarmError, SessionTimeoutError):  # the board, or the lease, is gone
            self._lease.release()
            try:
                self._lease, self._tags = commands.take_lease(self._farm, self._given, None), {}
            except RPCError as error:
                self._given_up = str(error)
                raise
            remote = self._lease.session(timeout=timeout, on_output=_print, heartbeat=HEARTBEAT)
        return stack.enter_context(remote)


def _tags_of(remote: Session) -> dict[str, Any]:
    """Return what a server tells of its machine, by the names that boards of a farm have for it."""
    from portcall.bench import Reading
    from portcall.errors import FunctionNotFoundError

    tags: dict[str, Any] = {}
    machine = remote.machine()
    if machine is not None:
        libc = f"{machine.libc} {machine.libc_version}".strip()
        tags = {"arch": machine.target.partition("-")[0], "os": machine.system, "libc": libc,
                "portcall": machine.portcall}  # fmt: skip
    with contextlib.suppress(FunctionNotFoundError):
        reading = Reading.from_json(remote["portcall.rpc.conditions"](False))
        tags |= {"cores": reading.cpus_allowed, "ram": reading.memory_bytes}
    return {name: value for name, value in tags.items() if value is not None}


@contextlib.contextmanager
def _without_trace() -> Iterator[None]:
    """Have an error say what it says, without our frames: it is about the board, or about how it was asked for."""
    try:
        yield
    except Exception as error:
        raise pytest.fail.Exception(f"{type(error).__name__}: {error}", pytrace=False) from None


def _print(line: str, stream: str) -> None:
    """Let pytest show what the board printed with the output of the test."""
    print(line)


# ---- Fixtures ----


@pytest.fixture(scope="session")
def board(pytestconfig: pytest.Config) -> Iterator[Board]:
    """Where the tests of the run work: ``name``, ``tags``, ``session()``; see --portcall-remote and --portcall-farm."""
    with contextlib.ExitStack() as stack:
        with _without_trace():
            pytestconfig.stash[BOARD] = here = Board(pytestconfig, stack)
        yield here
        del pytestconfig.stash[BOARD]


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getoption("portcall_scope")


@pytest.fixture(scope=_scope)
def remote(board: Board) -> Iterator[Session]:
    """A session with the board, for one test, or as long as --portcall-scope says."""
    with contextlib.ExitStack() as stack:
        with _without_trace():
            session = stack.enter_context(board.session())
        yield session


@pytest.fixture
def bench(board: Board, remote: Session, request: pytest.FixtureRequest) -> Callable[..., Measurement]:
    """``bench(library, "add_one", x, y)``: times a function there; returns a ``portcall.bench.Measurement``.

    The library is one that ``remote`` has loaded, or a file of this machine, which is uploaded and loaded.
    Its ``number`` and ``repeat`` are those of ``portcall.bench.measure``, ``dev`` is a device of ``remote``, its
    processor by default. With ``--portcall-against`` a file is compared with the one of its name in that folder, by
    ``portcall.bench.compare`` in sessions of their own; the test fails if it is slower by more than ``margin``.
    """
    import portcall

    def run(
        library: portcall.Module | str | os.PathLike[str], name: str, *args: Any, number: int | None = None,
        repeat: int | None = None, dev: Any = None, margin: float = 0.01,
    ) -> Measurement:  # fmt: skip
        loaded = library if isinstance(library, portcall.Module) else _loaded(remote, library)

        def times(number: int, repeat: int) -> Any:
            return loaded.time_evaluator(name, dev or remote.cpu(), number=number, repeat=repeat)(*args)

        measured = portcall.bench.measure(times, number, repeat, session=remote)
        figure = f"{portcall.bench.format_duration(measured.result.median)}: {measured.verdict}"
        request.node.user_properties.append((FIGURE, figure))
        folder = request.config.getoption("portcall_against")
        if folder and not isinstance(library, portcall.Module):
            new, old = Path(library), Path(folder, Path(library).name)
            sides = (functools.partial(_side, board, file, name, args, dev) for file in (new, old))
            compared = portcall.bench.compare(*sides, margin=margin)
            words = compared.words(str(new), str(old))
            request.node.user_properties.append((FIGURE, words))
            if compared.verdict == "slower":
                pytest.fail(f"{name}: {words}", pytrace=False)
        return measured

    return run


def _loaded(session: Session, library: str | os.PathLike[str]) -> portcall.Module:
    session.upload(library)
    return session.load_module(Path(library).name)


@contextlib.contextmanager
def _side(board: Board, library: Path, name: str, args: Sequence[Any], dev: Any) -> Iterator[Callable[[int], float]]:
    """Open a session for a run of one library, with arguments like those of another session, and return its timer."""
    with board.session() as session:
        where = session.cpu() if dev is None else session.device(str(dev))
        loaded = _loaded(session, library)
        given = [session.tensor(each.numpy(), where) if hasattr(each, "numpy") else each for each in args]

        def timer(number: int) -> float:
            timed = loaded.time_evaluator(name, where, number=number, repeat=1)(*given)
            return float(timed.results[0] * number)

        yield timer


# ---- Hooks ----


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note the board of a test once its fixtures are there, and skip the test where the board lacks something."""
    here = item.config.stash.get(BOARD, None)
    if here is None or FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return
    item.user_properties.append((PLACE, here.name))
    for marker in item.iter_markers("needs"):
        with _without_trace():
            missing = here.missing(*marker.args, **marker.kwargs)
        if missing:
            pytest.skip(f"{here.name} has not {' & '.join(missing)}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which boards ran how many tests, and the figures that were measured."""
    reports = [each for some in terminalreporter.stats.values() for each in some if getattr(each, "when", "") == "call"]
    boards = Counter(value for each in reports for name, value in each.user_properties if name == PLACE)
    if not boards:
        return
    terminalreporter.section("portcall: boards")
    for name, tests in sorted(boards.items()):
        terminalreporter.line(f"{name}: {tests} test{'s' if tests > 1 else ''}")
    for each in reports:
        for name, value in each.user_properties:
            if name == FIGURE:
                terminalreporter.line(f"{each.nodeid}  {value}")
