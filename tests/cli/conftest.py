# SPDX-License-Identifier: Apache-2.0
"""A compiled library and two ways to run the command line: inside this process, and as a user does."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from portcall import toolchain
from portcall.cli import cli

KERNELS = """
#include <portcall/portcall.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
using portcall::TensorView;
static void AddOne(TensorView x, TensorView y) {
  const float* from = x.data<float>();
  float* to = y.data<float>();
  for (size_t i = 0; i < x.numel(); ++i) to[i] = from[i] + 1;
}
PORTCALL_EXPORT_TYPED(add_one, AddOne)
PORTCALL_EXPORT_TYPED(add, [](int64_t a, int64_t b) { return a + b; })
PORTCALL_EXPORT_TYPED(half, [](double a) { return a / 2; })
PORTCALL_EXPORT_TYPED(twice, [](int64_t a) { return portcall::Array<int64_t>{a, a}; })
PORTCALL_EXPORT_TYPED(print, [](int64_t a) { std::printf("printed %d\\n", static_cast<int>(a)); })
PORTCALL_EXPORT_TYPED(fill, [](TensorView) {})
PORTCALL_EXPORT_TYPED(shout, [](std::string text) { return text + "!"; })
PORTCALL_EXPORT_TYPED(refuse, [] { PORTCALL_CHECK(false, ValueError) << "refused by the kernel"; })
PORTCALL_EXPORT_TYPED(leave, [](int64_t code) { std::exit(static_cast<int>(code)); })
PORTCALL_EXPORT_TYPED(crash, [] { std::raise(SIGSEGV); })
PORTCALL_EXPORT_TYPED(illegal, [] { std::raise(SIGILL); })
PORTCALL_EXPORT_TYPED(killed, [] { std::raise(SIGKILL); })
PORTCALL_EXPORT_TYPED(stay, [] { if (::write(1, "here\\n", 5) == 5) for (;;) ::pause(); })
PORTCALL_EXPORT_TYPED(rest, [] { if (::write(1, "here\\n", 5) == 5) ::usleep(50000); })
static int64_t calls = 0;
PORTCALL_EXPORT_TYPED(wear, [](int64_t most) {
  ::usleep(100);
  PORTCALL_CHECK(++calls < most, ValueError) << "worn out";
})
PORTCALL_EXPORT_TYPED(worn, [] { return calls; })
PORTCALL_EXPORT_TYPED(hang, [] { for (;;) ::pause(); })
"""


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.cc").write_text(KERNELS)
    return str(toolchain.create_shared(folder / "kernels.cc", folder / "kernels.so"))


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings; return where they would lie."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("PORTCALL_TOKEN", raising=False)
    return tmp_path / "settings" / "portcall"


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Run a command inside this process: no isolation, quick."""
    return lambda *words: CliRunner().invoke(cli, [str(word) for word in words])


@pytest.fixture
def invoke_json(invoke: Callable[..., Result]) -> Callable[..., dict[str, Any]]:
    """Run a command with ``--json`` and return what it printed; nothing else may be on stdout."""

    def run(*words: object, code: int = 0) -> dict[str, Any]:
        result = invoke(*words, "--json")
        assert result.exit_code == code, result.output
        loaded = json.loads(result.stdout)
        assert isinstance(loaded, dict)
        return loaded

    return run


@pytest.fixture
def shell(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``python -m portcall`` in an empty folder, as a user does."""

    def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "portcall", *map(str, words)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **environment},
            check=False,
        )

    return run


@pytest.fixture
def on_terminal() -> Callable[..., tuple[int, bytes]]:
    """Run a command on a terminal of 80 columns; return its exit code, and what the terminal got."""

    def run(*words: object) -> tuple[int, bytes]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        command, environment = [sys.executable, "-m", "portcall", *map(str, words)], {**os.environ, "TERM": "xterm"}
        with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
            os.close(theirs)
            shown = b""
            try:
                while piece := os.read(ours, 4096):
                    shown += piece
            except OSError:  # the other end is closed
                pass
            os.close(ours)
            return process.wait(60), shown

    return run
