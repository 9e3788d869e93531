# SPDX-License-Identifier: Apache-2.0
"""docs/cpp.md, Sessions: its program is a client of both servers, and a server itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from portcall import toolchain
from rpc.serving import Program, serving

PAGE = Path(__file__).parents[2] / "docs" / "cpp.md"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client")
    found = re.search(r"```cpp\n// session.cc\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    (folder / "session.cc").write_text(found[1])
    return toolchain.create_executable(folder / "session.cc", folder / "session", options=STRICT)


@pytest.mark.parametrize("program", ["python", "board"])
def test_cpp_page_session_runs(client: Path, kernel_library: Path, program: Program) -> None:
    with serving("--key", "k", program=program) as server:
        words = [str(client), server.address, "k", str(kernel_library)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["2", "7", "FunctionNotFoundError", "ConnectError"]
