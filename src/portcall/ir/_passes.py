# SPDX-License-Identifier: Apache-2.0
"""Passes: functions that turn one object into another, named, composed and timed.

    @portcall.ir.register_pass("demo.fold", level=1)
    def fold(expr):
        return portcall.ir.rewrite(expr, fold_one, Add)

    clean = portcall.ir.Sequential([fold, "demo.simplify", lambda expr: expr], name="clean")
    with portcall.ir.PassContext(level=3, disabled=["demo.simplify"]) as ctx:
        better = clean(expr)
    ctx.show_timings()

Any global function is a pass, whichever language it is written in; a registered pass is a global function. A pass is
callable, so C++ takes one, or a whole pipeline, as a function.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from portcall._core import PackedFunc
from portcall._function import get_global_func, register_func

if TYPE_CHECKING:
    from rich.table import Table


class Pass:
    """A function that turns one object into another, with a name.

    Call it with the object. An error that leaves it has a note that says which pass it was, and where in which
    Sequential; it is the same exception all the same.

    Parameters:
        run: the function.

    Attributes:
        name: its name, in ``disabled`` and ``required`` too.
        level: in a Sequential it runs in contexts of at least this level.
        required: names of passes that must run before it in a Sequential, which runs those that have not.

    Raises:
        TypeError: ``run`` is not callable.
    """

    def __init__(self, name: str, run: Callable[[Any], Any], level: int = 0, required: Iterable[str] = ()) -> None:
        if not callable(run):
            raise TypeError(f"the pass {name!r} needs a function, got {type(run).__name__}")
        self._function = run
        self._describe(name, level, required)

    def _describe(self, name: str, level: int, required: Iterable[str]) -> None:
        self.name = name
        self.level = level
        self.required = tuple(_as_list(required, "required"))

    def __repr__(self) -> str:
        return f"Pass({self.name!r}, level={self.level}, required={list(self.required)})"

    def __call__(self, obj: Any) -> Any:
        """Run it in the current context.

        Raises:
            TypeError: it returned None.
        """
        with PassContext.current() as context, note_on_error(f"in pass '{self.name}'"):  # passes that it calls share it
            return _run(self, obj, context)

    def run(self, obj: Any) -> Any:
        """Call the function alone: without hooks, timing and notes."""
        return self._function(obj)


class Sequential(Pass):
    """Passes, one after the other: each a Pass, a function, or the name of a global one, looked up when it runs.

    Attributes:
        passes: what it runs.
    """

    def __init__(
        self,
        passes: Iterable[Pass | Callable[[Any], Any] | str],
        name: str = "sequential",
        *,
        level: int = 0,
        required: Iterable[str] = (),
    ) -> None:
        self._describe(name, level, required)
        self.passes = tuple(map(_as_pass, _as_list(passes, "passes")))

    def __repr__(self) -> str:
        names = [one if isinstance(one, str) else one.name for one in self.passes]
        return f"Sequential({names}, {self.name!r}, level={self.level}, required={list(self.required)})"

    def run(self, obj: Any) -> Any:
        """Run the passes that the current context does not skip."""
        context = PassContext.current()
        done: set[str] = set()
        for place, item in enumerate(self.passes, 1):
            found = _find(item) if isinstance(item, str) else item
            if context.skips(found):
                continue
            where = f"number {place} of {len(self.passes)} in '{self.name}'"
            for one in _with_required(found, done, context):
                needed = "" if one is found else ", which is required there"
                with note_on_error(f"in pass '{one.name}'{needed}, {where}"):
                    obj = _run(one, obj, context)
                done.add(one.name)
        return obj


@dataclass(frozen=True, slots=True)
class PassTiming:
    """One pass that ran.

    Attributes:
        name: the pass.
        seconds: how long it took, with all that it called.
        depth: 0 if the user called it, 1 if that one did or it stands in that Sequential, and so on.
        failed: whether it ended with an error.
    """

    name: str
    seconds: float
    depth: int
    failed: bool = False


@dataclass(eq=False)
class PassContext:
    """How passes run in this thread, inside ``with``. Use one in one thread at a time; each thread starts without.

    Attributes:
        level: passes of a higher level are skipped in every Sequential.
        required: names of passes that run at any level.
        disabled: names of passes that are skipped.
        config: settings by name, for passes to read. C++ reads one with the global function
            ``portcall.ir.pass_setting(name)``, which returns None for a name that is not set.
        before, after: called with pass and object before each pass, with pass and result after it.
        timings: a PassTiming for each pass that ran, in the order of their ends.
    """

    level: int = 2
    required: Iterable[str] = ()
    disabled: Iterable[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    before: Callable[[Pass, Any], object] | None = None
    after: Callable[[Pass, Any], object] | None = None
    timings: list[PassTiming] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.required = frozenset(_as_list(self.required, "required"))
        self.disabled = frozenset(_as_list(self.disabled, "disabled"))

    def __enter__(self) -> PassContext:
        _thread.contexts.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        if not _thread.contexts or _thread.contexts[-1] is not self:
            raise RuntimeError("cannot exit this pass context: this thread entered another one after it")
        _thread.contexts.pop()

    @staticmethod
    def current() -> PassContext:
        """Return the context that this thread entered last; one with the defaults if it entered none."""
        return _thread.contexts[-1] if _thread.contexts else PassContext()

    def skips(self, one: Pass) -> bool:
        """Return whether a Sequential skips a pass in this context."""
        return one.name in self.disabled or (one.level > self.level and one.name not in self.required)

    def timing_table(self) -> Table:
        """Return the timings as a table of rich: passes in the order in which they began, inner ones indented."""
        from rich.table import Table

        table = Table("pass", box=None, pad_edge=False)
        table.add_column("seconds", justify="right")
        table.add_column("share", justify="right")
        rows = _in_order_of_beginning(self.timings)
        total = sum(timing.seconds for timing in rows if timing.depth == 0)
        for timing in rows:
            share = f"{timing.seconds / total:.1%}" if total else ""
            name = f"{timing.name} (failed)" if timing.failed else timing.name
            table.add_row("  " * timing.depth + name, f"{timing.seconds:.6f}", share)
        return table

    def show_timings(self, file: IO[str] | None = None) -> None:
        """Print the table of timings, to standard output unless ``file`` is given."""
        from rich.console import Console

        Console(file=file, soft_wrap=True).print(self.timing_table())


def register_pass(
    name: str, *, level: int = 0, required: Iterable[str] = (), override: bool = False
) -> Callable[[Callable[[Any], Any]], Pass]:
    """Register the decorated function under a global name, as a pass, which takes its place.

    Parameters:
        name: the name; ``remove_global_func`` removes it.
        level: in a Sequential it runs in contexts of at least this level.
        required: names of passes that must run before it in a Sequential.
        override: replace a function of that name.

    Raises:
        AlreadyRegisteredError: the name is taken and ``override`` is false.
        TypeError: the name is not a str, or ``required`` is not a list of them.
    """
    if not isinstance(name, str):
        raise TypeError(f'register_pass takes a name, as in @register_pass("demo.fold"); got {name!r}')
    names = tuple(_as_list(required, "required"))

    def register(func: Callable[[Any], Any]) -> Pass:
        made = Pass(name, func, level, names)
        registered = register_func(name, func, override=override)
        _known[name] = (hash(registered), level, names)
        return made

    return register


class _Thread(threading.local):
    """What is running in a thread."""

    def __init__(self) -> None:
        self.contexts: list[PassContext] = []
        self.depth = 0  # of passes inside one another


_thread = _Thread()

# What is known of registered passes beside their functions: identity of the function, level, required passes. It does
# not hold the functions: a name that is registered again means the new function alone.
_known: dict[str, tuple[int, int, tuple[str, ...]]] = {}


def _find(name: str) -> Pass:
    func = get_global_func(name, allow_missing=True)
    if func is None:
        raise KeyError(f"no pass or global function is named {name!r}")
    registered, level, required = _known.get(name, (0, 0, ()))
    return Pass(name, func, level, required) if registered == hash(func) else Pass(name, func)


def _with_required(one: Pass, done: set[str], context: PassContext, pending: tuple[str, ...] = ()) -> Iterator[Pass]:
    """Yield the passes that ``one`` requires and that are not done, then ``one``."""
    for name in one.required:
        if name in done:
            continue
        if name in context.disabled:
            raise ValueError(f"pass '{one.name}' requires '{name}', which is disabled")
        if name in pending:
            raise ValueError(f"pass '{name}' requires itself, through '{one.name}'")
        yield from _with_required(_find(name), done, context, (*pending, name))
    yield one


def _run(one: Pass, obj: Any, context: PassContext) -> Any:
    """Run a pass with hooks and timing."""
    if context.before is not None:
        context.before(one, obj)
    start, depth, failed = time.perf_counter(), _thread.depth, True
    _thread.depth += 1
    try:
        result = one.run(obj)
        if result is None:
            raise TypeError(f"pass '{one.name}' returned None; a pass returns the object, changed or not")
        failed = False
    finally:
        _thread.depth -= 1
        context.timings.append(PassTiming(one.name, time.perf_counter() - start, depth, failed))
    if context.after is not None:
        context.after(one, result)
    return result


@contextlib.contextmanager
def note_on_error(note: str) -> Iterator[None]:
    """Add a note to an exception that passes through."""
    try:
        yield
    except Exception as error:
        error.__notes__ = [*getattr(error, "__notes__", ()), note]  # add_note() is not in Python 3.10
        raise


def _as_list(given: Iterable[Any], what: str) -> Iterable[Any]:
    if isinstance(given, str):
        raise TypeError(f"{what} takes a list, got {given!r}: put it in brackets")
    return given


def _as_pass(item: Any) -> Pass | str:
    if isinstance(item, (Pass, str)):
        return item
    if not callable(item):
        raise TypeError(f"a pass is a Pass, a function, or the name of one; got {type(item).__name__}")
    name = item.name if isinstance(item, PackedFunc) else getattr(item, "__qualname__", type(item).__qualname__)
    return Pass(name or "function", item)


def _in_order_of_beginning(timings: Iterable[PassTiming]) -> list[PassTiming]:
    """Outer passes end after inner ones, and began before."""
    waiting: dict[int, list[PassTiming]] = {}  # rows of inner passes, for the one a level further out
    for timing in timings:
        rows = [timing, *waiting.pop(timing.depth + 1, [])]
        waiting.setdefault(timing.depth, []).extend(rows)
    return [timing for depth in sorted(waiting) for timing in waiting[depth]]


@register_func("portcall.ir.pass_setting", override=True)
def _setting(name: str) -> Any:
    return PassContext.current().config.get(name)
