# SPDX-License-Identifier: Apache-2.0
"""``portcall deploy`` to an aarch64 machine: Debian's sshd here, which runs all that it is asked for in a folder with a
system for that machine, by qemu.

    python tests/rpc/cross_deploy.py ROOT

The one-file server is built by zig, sent, started, used with a library for the machine, found again as it is, and
removed. `ssh://` would need an sshd in that folder. `make test-deploy-arm64` makes the folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from portcall import rpc, toolchain
from portcall.cli._store import read_remotes
from rpc import sshd

IN_ARM64 = Path(__file__).parents[2] / "scripts" / "in_arm64.sh"
TARGET = "aarch64-linux-gnu"
SOURCE = """
#include <portcall/portcall.h>
PORTCALL_EXPORT_TYPED(add_one, [](int x) { return x + 1; })
"""


def portcall(*words: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "portcall", *map(str, words), "--json"], stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == 0, done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def use(session: rpc.Session, library: Path) -> None:
    assert session.load_module(session.upload(library))["add_one"](41) == 42


def main(root: Path) -> None:
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir=root / "tmp") as home:
        folder = Path(name)
        os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
        (folder / "add_one.cc").write_text(SOURCE)
        library = toolchain.create_shared(folder / "add_one.cc", folder / "add_one.so", target=TARGET)
        script = folder / "in_root"
        inside = f"/usr/bin/env HOME=/{Path(home).relative_to(root)} /bin/sh -c"
        script.write_text(f'#!/bin/sh\nexec {IN_ARM64} {root} {inside} "$SSH_ORIGINAL_COMMAND"\n')
        script.chmod(0o755)
        with sshd.machine(folder, programs="/usr/sbin:/usr/bin:/bin", command=str(script)) as there:
            os.environ["PORTCALL_SSH"] = there.ssh
            words = (
                "deploy",
                "board",
                "--name",
                "rasp",
                "--host",
                "127.0.0.1",
                "--port",
                sshd.free_port(),
                "--key",
                "k",
            )
            try:
                first = portcall(*words)
                print(json.dumps(first), flush=True)
                assert first["machine"]["target"] == TARGET
                assert (first["sent"], first["restarted"]) == (True, True)
                remote = read_remotes()["rasp"]
                use(rpc.connect(remote.address, key="k", token=remote.token, timeout=60), library)
                again = portcall(*words)
                assert (again["sent"], again["restarted"], again["pid"]) == (False, False, first["pid"])
                assert portcall("deploy", "board", "--status")["pid"] == first["pid"]
            finally:
                assert portcall("deploy", "board", "--remove")["removed"]
            assert not Path(home, ".local/share/portcall").exists()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
