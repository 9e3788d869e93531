# SPDX-License-Identifier: Apache-2.0
"""Commands that belong to a place or a farm: check, prepare, clean up, cycle the power. Each has a limit."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import IO

from portcall.rpc.wire._facts import HOOK_SAID, HOOK_WORDS


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
    until = time.monotonic() + limit
    with process:
        assert process.stdout is not None
        try:
            said = _last_words(process.stdout, until)
            process.wait(max(0.0, until - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):  # what has left its group may keep its output open forever
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return f"{command!r} took longer than {limit:g} s"
    if not process.returncode:
        return ""
    lines = said.decode(errors="replace").strip().splitlines()
    return f"{command!r} failed with code {process.returncode}" + (f": {lines[-1][:HOOK_WORDS]}" if lines else "")


def _last_words(output: IO[bytes], until: float) -> bytes:
    """Return the end of what a command says.

    Raises:
        TimeoutError: it has not closed its output by that time.
    """
    said = b""
    poll = select.poll()
    poll.register(output, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            piece = os.read(output.fileno(), 1 << 16)
            if not piece:
                return said
            said = (said + piece)[-HOOK_SAID:]
    raise TimeoutError
