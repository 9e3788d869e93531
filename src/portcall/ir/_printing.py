# SPDX-License-Identifier: Apache-2.0
"""How objects of described types read: one line for ``repr``, a tree for people, HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from portcall import _core
from portcall._container import Array, Map, text_once

if TYPE_CHECKING:
    from rich.tree import Tree

_LEVELS = 6  # of nesting that repr shows
_VALUES = 60  # that repr shows
_TEXT = 60  # characters of a string in a tree


class _Line:
    """Writes one line about a value, and stops when it is long or deep enough."""

    def __init__(self, values: int) -> None:
        self.left = values

    def format(self, value: Any, levels: int) -> str:
        self.left -= 1
        if self.left < 0:
            return "…"
        if isinstance(value, (Array, Map)) or _core.fields_of_class(type(value)) is not None:
            return self._format_nested(value, levels)
        return repr(value)

    def _format_nested(self, value: Any, levels: int) -> str:
        name = "" if isinstance(value, (Array, Map)) else type(value).__name__
        start, end = "[]" if isinstance(value, Array) else "{}" if isinstance(value, Map) else "()"
        return text_once(
            value, lambda: self._format_children(value, levels, name, start, end), f"{name}{start}...{end}"
        )

    def _format_children(self, value: Any, levels: int, name: str, start: str, end: str) -> str:
        if levels == 0 and _goes_on(value):
            return f"{name}{start}…{end}"
        hook = getattr(type(value), "__portcall_repr__", None)
        if hook is not None:
            return str(hook(value, lambda part: self._format_part(part, levels)))
        parts = []
        for label, child in children_of(value):
            if self.left <= 0:
                parts.append("…")
                break
            text = self._format_part(child, levels)
            parts.append(f"{label}={text}" if name else f"{label}: {text}" if isinstance(value, Map) else text)
        return f"{name}{start}{', '.join(parts)}{end}"

    def _format_part(self, part: Any, levels: int) -> str:
        own = type(part).__repr__ not in _OURS and _core.fields_of_class(type(part)) is not None
        return repr(part) if own else self.format(part, levels - 1)


def _goes_on(value: Any) -> bool:
    """Return whether a value is longer than its end: a container that is not empty, or what holds another one."""
    if isinstance(value, (Array, Map)):
        return len(value) > 0
    return any(_has_children(child) for _, child in children_of(value))


def children_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value consists of, with labels: fields that are printed, items, or pairs."""
    if isinstance(value, Array):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif isinstance(value, Mapping):
        yield from ((repr(key), item) for key, item in value.items())
    else:
        yield from ((name, getattr(value, name)) for name in getattr(type(value), "__portcall_shown__", ()))


def line(value: Any) -> str:
    """Return one line about an object: its class and fields, with what is deep or long left out."""
    return _Line(_VALUES).format(value, _LEVELS)


def show(obj: Any, *, max_depth: int = 20, max_nodes: int = 500, file: IO[str] | None = None) -> None:
    """Print an object as a tree, each node that occurs more than once only the first time.

    Parameters:
        obj: an object, or a container of them.
        max_depth: levels of nesting to show.
        max_nodes: nodes to show; what is left out is counted.
        file: where to; standard output unless given.
    """
    from rich.console import Console

    Console(file=file, soft_wrap=True).print(tree(obj, max_depth=max_depth, max_nodes=max_nodes))


def tree(obj: Any, *, max_depth: int = 20, max_nodes: int = 500) -> Tree:
    """Return what ``show`` prints, as a tree of rich."""
    from rich.text import Text
    from rich.tree import Tree

    seen: set[int] = set()
    root = Tree(_headline("", obj, Text))
    waiting: list[tuple[Any, Tree, int]] = [(obj, root, 0)]
    shown = 0
    while waiting:
        value, branch, depth = waiting.pop()
        if not _has_children(value):
            continue
        if value.handle_value in seen:
            branch.add(Text("(the same as above)", "dim"))
            continue
        seen.add(value.handle_value)
        children = list(children_of(value))
        if depth >= max_depth or shown + len(children) > max_nodes:
            branch.add(Text(f"… {len(children)} more inside", "dim"))
            continue
        shown += len(children)
        branches = [(child, branch.add(_headline(label, child, Text)), depth + 1) for label, child in children]
        waiting.extend(reversed(branches))
    return root


def as_html(obj: Any) -> str:
    """Return an object as nested lists that open and close, for notebooks."""
    out: list[str] = []
    _write_html("", obj, out, 0, [200])
    return f'<div class="portcall-object">{"".join(out)}</div>'


def _write_html(label: str, value: Any, out: list[str], depth: int, left: list[int]) -> None:
    left[0] -= 1
    head = html.escape(_plain_headline(label, value))
    if not _has_children(value) or depth == _LEVELS or left[0] < 0:
        out.append(f"<div>{head}{' …' if _has_children(value) else ''}</div>")
        return
    out.append(f"<details{' open' if depth < 2 else ''}><summary>{head}</summary><div style='margin-left:1.5em'>")
    for name, child in children_of(value):
        if left[0] < 0:
            out.append("<div>…</div>")
            break
        _write_html(name, child, out, depth + 1, left)
    out.append("</div></details>")


def _has_children(value: Any) -> bool:
    return isinstance(value, (Array, Map)) or _core.fields_of_class(type(value)) is not None


def _plain_headline(label: str, value: Any) -> str:
    if isinstance(value, (Array, Map)):
        text = f"{type(value).__name__} of {len(value)}"
    elif _has_children(value):
        text = f"{type(value).__name__} ({value.type_key})"
    else:
        text = repr(value)
        text = text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"
    return f"{label}: {text}" if label else text


def _headline(label: str, value: Any, text: Any) -> Any:
    line = text(_plain_headline(label, value))
    if label:
        line.stylize("cyan", 0, len(label))
    return line


_OURS: set[Any] = set()


def mark_generated_repr(function: Any) -> Any:
    """Remember a generated ``__repr__``; one that the user wrote is called as it is."""
    _OURS.add(function)
    return function
