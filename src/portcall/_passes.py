# SPDX-License-Identifier: Apache-2.0
"""Passes: functions that turn one object into another, named, composed and timed. What runs them is in C++.

    @portcall.register_pass("demo.fold", level=1)
    def fold(expr):
        return portcall.rewrite(expr, fold_one, Add)

    clean = portcall.Sequential([fold, "demo.simplify", lambda expr: expr], name="clean")
    with portcall.PassContext(level=3, disabled=["demo.simplify"]) as ctx:
        better = clean(expr)
    ctx.show_timings()

A registered pass is a global function, which C++ finds by its name; any global function is a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from portcall import _ir
from portcall._container import Array, List, Map
from portcall._core import Object, PackedFunc
from portcall._object import register_object

if TYPE_CHECKING:
    from rich.table import Table

_ir.library()  # defines the types that the classes here stand for


@register_object("portcall.ir.Pass")
class Pass(Object):
    """A function that turns one object into another, with a name; ``Pass(name, function, level=0, required=())``.

    Call it with the object. An error that leaves it says in a note which pass it was, and where in which Sequential;
    it is the same exception all the same.

    Attributes:
        name: what it is called, in ``disabled`` and ``required`` too.
        run: the function; None for a Sequential.
        level: in a Sequential it runs in contexts of at least this level.
        required: names of passes that must have run before it in a Sequential, which runs those that have not.
    """

    if TYPE_CHECKING:
        name: str
        run: PackedFunc | None
        level: int
        required: Array

        def __init__(
            self, name: str, run: Callable[[Any], Any], level: int = 0, required: Sequence[str] = ()
        ) -> None: ...

    def __call__(self, obj: Any) -> Any:
        """Run it in the current context.

        Raises:
            TypeError: it returned None.
        """
        return _ir.function("RunPass")(self, obj)


@register_object("portcall.ir.Sequential")
class Sequential(Pass):
    """Passes, one after the other: each a Pass, a function, or the name of a global one, looked up when it runs.

    Attributes:
        passes: what it runs.
    """

    if TYPE_CHECKING:
        passes: Array

    def __init__(
        self,
        passes: Iterable[Pass | Callable[[Any], Any] | str],
        name: str = "sequential",
        *,
        level: int = 0,
        required: Iterable[str] = (),
    ) -> None:
        made = {"required": _names(required), "passes": tuple(map(_as_pass, _items(passes, "passes")))}
        Object.__init__(self, name=name, level=level, **made)


@register_object("portcall.ir.PassTiming")
class PassTiming(Object):
    """One pass that ran.

    Attributes:
        name: the pass.
        seconds: how long it took, with all that it called.
        depth: 0 if the user called it, 1 if that one did or it stands in that Sequential, and so on.
        failed: whether it ended with an error.
    """

    if TYPE_CHECKING:
        name: str
        seconds: float
        depth: int
        failed: bool = False


@register_object("portcall.ir.PassContext")
class PassContext(Object):
    """How passes run in this thread, inside of ``with``: ``PassContext(level=2, required=(), disabled=(), config={},
    before=None, after=None)``. Use one in one thread at a time; each thread begins without.

    Attributes:
        level: passes of a higher level are left out of every Sequential.
        required: names of passes that run whatever their level.
        disabled: names of passes that are left out.
        config: settings by name, for passes to read.
        timings: a PassTiming for each pass that ran, in the order of their ends.
        before, after: called with pass and object before each pass, with pass and result after it.
    """

    if TYPE_CHECKING:
        level: int
        required: Array
        disabled: Array
        config: Map
        timings: List
        before: PackedFunc | None
        after: PackedFunc | None

        def __init__(
            self,
            level: int = 2,
            required: Sequence[str] = (),
            disabled: Sequence[str] = (),
            config: Mapping[str, Any] = {},
            before: Callable[[Any, Any], object] | None = None,
            after: Callable[[Any, Any], object] | None = None,
        ) -> None: ...

    def __enter__(self) -> PassContext:
        _ir.function("EnterPassContext")(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _ir.function("ExitPassContext")(self)

    @staticmethod
    def current() -> PassContext:
        """Return the context that this thread entered last; one with the defaults if it entered none."""
        context: PassContext = _ir.function("CurrentPassContext")()
        return context

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
        required: names of passes that must have run before it in a Sequential.
        override: replace a function of that name.

    Raises:
        AlreadyRegisteredError: the name is taken and ``override`` is false.
        TypeError: the name, or what is required, is no text or texts.
    """
    if not isinstance(name, str):
        raise TypeError(f'register_pass takes a name, as in @register_pass("demo.fold"); got {name!r}')
    names = _names(required)

    def register(func: Callable[[Any], Any]) -> Pass:
        made = Pass(name, func, level, names)
        _ir.function("RegisterPass")(made, override)
        return made

    return register


def _names(required: Iterable[str]) -> tuple[str, ...]:
    return tuple(_items(required, "required"))


def _items(given: Iterable[Any], what: str) -> Iterable[Any]:
    if isinstance(given, str):
        raise TypeError(f"{what} is a list, got {given!r} alone; put it in brackets")
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
    waiting: dict[int, list[PassTiming]] = {}  # rows for whatever runs one level further out
    for timing in timings:
        rows = [timing, *waiting.pop(timing.depth + 1, [])]
        waiting.setdefault(timing.depth, []).extend(rows)
    return [timing for depth in sorted(waiting) for timing in waiting[depth]]
