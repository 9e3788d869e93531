# SPDX-License-Identifier: Apache-2.0
"""Commands that belong to a place or a farm: check, prepare, clean up, cycle the power. Each has a limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping

_MOST_WORDS = 300  # characters of what a command says that are passed on


def run_hook(command: str, limit: float, variables: Mapping[str, str]) -> str:
    """Run a command of the shell; return why it failed, or an empty text.

    Args:
        command: its last line of output is part of the answer where it fails.
        limit: seconds after which it is ended, with all that it started.
        variables: of the environment, beside ours.
    """
    try:
        process = subprocess.Popen(
            command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **variables}, start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        return f"{command!r} does not start: {error}"
    with process:
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"{command!r} took longer than {limit:g} s"
    if not process.returncode:
        return ""
    lines = said.decode(errors="replace").strip().splitlines()
    return f"{command!r} failed with code {process.returncode}" + (f": {lines[-1][:_MOST_WORDS]}" if lines else "")
