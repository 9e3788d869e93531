# SPDX-License-Identifier: Apache-2.0
"""Forms of a result for other programs: annotations of GitHub's actions, JUnit, pyperf."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def annotation(gate: str | None, text: str) -> str:
    """Return the line from which GitHub's actions make an annotation; empty where nothing is wrong."""
    if gate not in ("slower", "not settled"):
        return ""
    kind = "error" if gate == "slower" else "warning"
    return f"::{kind} title=portcall bench::" + text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def write_junit(file: str, name: str, seconds: float, text: str, failed: bool, error: str = "") -> None:
    """Write a result as one test case, which fails where the command does.

    Parameters:
        error: what ended the command early; empty if nothing did.
    """
    kind = "error" if error else "failure"
    counts = {f"{each}s": str(int(failed and each == kind)) for each in ("failure", "error")}
    suite = ElementTree.Element("testsuite", {"name": "portcall bench", "tests": "1", **counts})
    case = ElementTree.SubElement(
        suite, "testcase", classname="portcall.bench", name=_NO_XML.sub("?", name), time=f"{seconds:.9f}"
    )
    text = _NO_XML.sub("?", text)
    if failed:
        ElementTree.SubElement(case, kind, message=_NO_XML.sub("?", error) or text)
    ElementTree.SubElement(case, "system-out").text = text
    ElementTree.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)


def write_pyperf(file: str, report: Mapping[str, Any]) -> None:
    """Write windows as a benchmark of pyperf (version 1.0 of its JSON), one run with a value for each window."""
    environment = report["environment"]
    metadata = {
        "name": report["title"], "unit": "second", "loops": report["number"], "date": environment["time"],
        "python_version": environment["python"], "platform": environment["system"], "cpu_count": environment["cpus"],
        "portcall_version": environment["portcall"], "portcall_verdict": report["verdict"]["text"],
    }  # fmt: skip
    if report["memory_peak_bytes"] is not None:
        metadata["mem_max_rss"] = report["memory_peak_bytes"]
    # pyperf's dates have neither T nor Z
    metadata["date"] = metadata["date"].replace("T", " ").rstrip("Z")
    values = [value for value in report["results_s"] if value > 0]
    suite = {"version": "1.0", "metadata": metadata, "benchmarks": [{"runs": [{"values": values}]}]}
    Path(file).write_text(json.dumps(suite), encoding="utf-8")
