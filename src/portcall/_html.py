# SPDX-License-Identifier: Apache-2.0
"""Facts as HTML, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable


def facts_as_html(title: str, facts: Iterable[tuple[str, object]], below: str = "") -> str:
    """Return a table of names and values under a title; ``below`` is text for under it, in its own layout."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
        for name, value in facts
    )
    text = f"<pre>{html.escape(below)}</pre>" if below else ""
    return f"<div class='portcall'><b>{html.escape(title)}</b><table>{rows}</table>{text}</div>"
