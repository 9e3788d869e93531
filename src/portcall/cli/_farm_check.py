# SPDX-License-Identifier: Apache-2.0
"""Checks of a farm's idle places: a command in a lease, whose time is compared."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from portcall.bench import format_duration
from portcall.cli._output import print_json, print_line
from portcall.errors import FarmError, RPCError

if TYPE_CHECKING:
    from portcall.farm import Farm, Lease

_LEFT_OUT = ("retired", "maintenance", "bad")


def check_places(farm: Farm, names: tuple[str, ...], job: str, tolerance: float, limit: float, json_to: Any) -> int:
    """Check the idle places, or those of these names; print how it went, and return how many failed."""
    failed = 0
    places = [p["place"] for p in farm.status()["places"]
              if (p["place"] in names if names else p["free"] or p["health"] == "quarantined")
              and p["peer"] == "portcall" and (names or p["health"] not in _LEFT_OUT)]  # fmt: skip
    for name in names or places:
        try:
            with farm.check(name, ttl=60) as lease:
                why, seconds = run_job(lease, job, limit)
                why = lease.checked(job, seconds, why, tolerance)
        except FarmError as error:
            if error.reason == "busy" and not names:
                continue  # somebody uses it: that is a check, too
            why, seconds = str(error), 0.0
        failed += bool(why)
        if json_to is not None:
            print_json({"place": name, "passed": not why, "why": why, "seconds": seconds}, json_to)
        else:
            time = f" in {format_duration(seconds)}" if seconds else ""
            print_line(f"{name}: {f'failed: {why}' if why else f'passed{time}'}")
    return failed


def run_job(lease: Lease, job: str, limit: float) -> tuple[str, float]:
    """Run a command in a lease, or open a session; return why it failed, and the seconds that it says it took."""
    if not job:
        try:
            with lease.session() as session:
                session.cpu()
            return "", 0.0
        except RPCError as error:
            return str(error), 0.0
    environment = {**os.environ, **lease.environment}
    try:
        done = subprocess.run(
            job, shell=True, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return f"the command took longer than {format_duration(limit)}", 0.0
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        return f"the command failed with code {done.returncode}{f': {said[0]}' if said else ''}", 0.0
    return "", median_of(done.stdout)


def median_of(text: str) -> float:
    """Return the median seconds of a report in JSON; 0 where there is none."""
    try:
        report: Any = json.loads(text)
    except (ValueError, RecursionError):
        return 0.0
    left = [report]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if isinstance(value.get("median_s"), (int, float)):
                return float(value["median_s"])
            left += value.values()
    return 0.0
