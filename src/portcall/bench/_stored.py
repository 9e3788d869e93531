# SPDX-License-Identifier: Apache-2.0
"""Results that were kept: JSON of ``portcall bench``, alone or inside of a report, checked when it is read."""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import re
import statistics
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from portcall.bench._units import format_duration

SCHEMA = 1
MOST_BYTES = 64 << 20  # of a file, and of the data of a report when they are unpacked
MOST_S, MOST_NUMBER = 1e9, 1e30  # seconds of a call, and any number, above which it is damaged
_DATA = re.compile(r'<pre id="portcall-data" hidden>([A-Za-z0-9+/=\s]*)</pre>')
Result = Mapping[str, Any]


def read_results(path: str | os.PathLike[str]) -> list[Result]:
    """Return the results of a file of JSON, or of a report.

    Raises:
        ValueError: it is neither, or it is damaged.
        OSError: it cannot be read.
    """
    if os.path.getsize(path) > MOST_BYTES:
        raise ValueError(f"{os.fspath(path)} is larger than a stored result can be")
    text = Path(path).read_bytes().decode("utf-8", "replace")
    if text.lstrip()[:1] == "<":
        return _of_report(text, os.fspath(path))
    return _of_json(text, os.fspath(path))


def is_result(path: str | os.PathLike[str]) -> bool:
    """Say whether a file is meant as a stored result: JSON that is no graph, or a page."""
    name = os.fspath(path)
    if name.endswith(".html"):
        return True
    if not name.endswith(".json") or not os.path.isfile(path) or os.path.getsize(path) > MOST_BYTES:
        return False
    try:
        found = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError):
        return True
    return not (isinstance(found, dict) and "nodes" in found)


def _of_json(text: str, name: str) -> list[Result]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{name} is no JSON: {why}") from None
    several = found.get("results") if isinstance(found, dict) else None
    results = several if isinstance(several, list) and several else [found]
    for each in results:
        check_result(each, name)
    return results


def _of_report(text: str, name: str) -> list[Result]:
    match = _DATA.search(text)
    if match is None:
        raise ValueError(f"{name} is no report of portcall bench, or one without its data")
    try:
        unpacker = zlib.decompressobj()
        packed = base64.b64decode(match[1], validate=False)
        unpacked = unpacker.decompress(packed, MOST_BYTES)
        found = json.loads(unpacked) if unpacker.eof else None
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found:
        raise ValueError(f"the data of the report {name} are damaged")
    for each in found:
        check_result(each, name)
    return found


def packed(results: Sequence[Result]) -> str:
    """Return results as they are in a report, from which ``read_results`` has them again."""
    return base64.b64encode(zlib.compress(json.dumps(results).encode(), 9)).decode()


def check_result(found: object, name: str) -> None:
    """Refuse what is no result.

    Raises:
        ValueError: see there.
    """
    if not isinstance(found, dict) or "schema" not in found:
        raise ValueError(f"{name} is no result of portcall bench --json")
    if found["schema"] != SCHEMA:
        raise ValueError(f"{name} has schema {found['schema']!r}; this version reads {SCHEMA}")
    if isinstance(found.get("comparison"), dict):
        numbers: Any = found["comparison"].get("ratios")
        if isinstance(numbers, list) and 0 in numbers:
            numbers = None
    else:
        numbers = found.get("results_s")
    if not isinstance(numbers, list) or not numbers or not all(_is_time(each) for each in numbers):
        raise ValueError(f"{name} has no times in it, or values that are no times")
    for field, kind in (("verdict", dict), ("conditions", list), ("warnings", list), ("environment", dict)):
        if not isinstance(found.get(field, kind()), kind):
            raise ValueError(f"{name} is damaged: its {field!r} is no {kind.__name__}")


def _is_number(value: object) -> TypeGuard[float]:
    """Say whether it is a number that one can reckon with: finite, and a float without overflow."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST_NUMBER


def _is_time(value: object) -> bool:
    return _is_number(value) and 0 <= value <= MOST_S


def part_of(result: object, name: str) -> Result:
    """Return a part of a result that has parts itself; an empty one where there is none."""
    value = result.get(name) if isinstance(result, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def list_of(result: object, name: str) -> list[Result]:
    """Return the parts in a list of a result; those that have no parts themselves are left out."""
    value = result.get(name) if isinstance(result, Mapping) else None
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def number_of(result: object, name: str) -> float | None:
    """Return a number of a result, or of a part of it; None where there is none."""
    value = result.get(name) if isinstance(result, Mapping) else None
    return float(value) if _is_number(value) else None


def title_of(result: Result) -> str:
    """Return what was measured, in words."""
    if "comparison" in result:
        return f"{result.get('new', 'the new one')} against {result.get('old', 'the old one')}"
    if isinstance(result.get("title"), str):
        return str(result["title"])
    if "function" in result:
        library = os.path.basename(str(result.get("library") or ""))
        return f"{result['function']} of {library}" if library else str(result["function"])
    files = [str(result[each]) for each in ("bundle", "graph", "file", "model", "library") if result.get(each)]
    return os.path.basename(files[0]) if files else "a measurement"


def headline_of(result: Result) -> str:
    """Return what a result says, in a line."""
    if isinstance(result.get("text"), str):
        return str(result["text"])
    if "comparison" not in result:
        told = part_of(result, "verdict").get("text")
        return str(told or f"median {format_duration(median_of(result))}, without a verdict")
    found = result["comparison"]
    low, high = ends_of(found.get("interval")) or (math.nan, math.nan)
    ratio = number_of(found, "ratio") or math.nan
    what = f"{ratio:.3f} of the time of {result.get('old', 'the old one')}, {low:.3f} to {high:.3f}"
    return f"{found.get('gate') or found.get('verdict')}: {what}"


def median_of(result: Result) -> float:
    """Return the median of the windows of a result, in seconds."""
    return float(statistics.median(result["results_s"]))


def ends_of(value: object) -> tuple[float, float] | None:
    """Return both ends of an interval; None where it is none."""
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_number, value)):
        return float(value[0]), float(value[1])
    return None
