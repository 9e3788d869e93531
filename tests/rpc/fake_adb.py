# SPDX-License-Identifier: Apache-2.0
"""A command that answers as adb does, for a device with the serial number "board", which is this machine.

Usage: fake_adb.py FOLDER adb's words. FOLDER is the home of the device; what is forwarded is kept beside it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

HOME = Path(sys.argv[1])
WAYS = HOME.with_name(f"{HOME.name}-ways")  # files: named by process id, with what is here and there


def main(words: list[str]) -> int:
    if words[0] == "-s":
        if words[1] != "board":
            print(f"error: device '{words[1]}' not found", file=sys.stderr)
            return 1
        words = words[2:]
    if words[:2] == ["shell", "-T"]:
        os.chdir(HOME)
        os.execvpe("sh", ["sh", "-c", words[2]], {"HOME": str(HOME), "PATH": "/usr/bin:/bin"})
    if words[0] == "relay":
        relay(*words[1:])
    assert words[0] == "forward"
    WAYS.mkdir(exist_ok=True)
    if words[1] == "--list":
        for way in WAYS.iterdir():
            print("board", way.read_text())
    elif words[1] == "--remove":
        for way in WAYS.iterdir():
            if way.read_text().split()[0] == words[2]:
                os.kill(int(way.name), signal.SIGTERM)
                way.unlink()
                if words[2].startswith("localfilesystem:"):
                    os.unlink(words[2].partition(":")[2])
                return 0
        print(f"adb: error: listener '{words[2]}' not found", file=sys.stderr)
        return 1
    else:
        start([sys.executable, __file__, str(HOME), "relay", *words[1:]], words[2])
    return 0


def start(command: list[str], there: str) -> None:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    here = process.stdout.readline().strip()
    (WAYS / str(process.pid)).write_text(f"{here} {there}")
    if here.startswith("tcp:"):
        print(here.partition(":")[2])
    process.returncode = 0  # it goes on


def relay(here: str, there: str) -> None:
    kind, _, place = here.partition(":")
    listener = socket.socket(socket.AF_UNIX if kind == "localfilesystem" else socket.AF_INET)
    listener.bind(place if kind == "localfilesystem" else ("127.0.0.1", int(place)))
    listener.listen()
    print(here if kind == "localfilesystem" else f"tcp:{listener.getsockname()[1]}", flush=True)
    os.close(1)
    while True:
        ours, _ = listener.accept()
        kind, _, place = there.partition(":")
        theirs = socket.socket(socket.AF_UNIX if kind == "localfilesystem" else socket.AF_INET)
        try:
            theirs.connect(place if kind == "localfilesystem" else ("127.0.0.1", int(place)))
        except OSError:
            ours.close()
            continue
        for ends in ((ours, theirs), (theirs, ours)):
            threading.Thread(target=move, args=ends, daemon=True).start()


def move(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
