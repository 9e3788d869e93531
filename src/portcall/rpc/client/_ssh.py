# SPDX-License-Identifier: Apache-2.0
"""A server behind the system's own ssh, or adb: it is started for a session, and ends with it. No port, no token.

They carry a Unix socket of the other machine, in a folder of its own, to one in a folder of this machine. The server
ends when their standard input does there: when the session closes, this process ends, or the connection is lost.
"""

from __future__ import annotations

import collections
import contextlib
import os
import secrets
import shlex
import subprocess
import tempfile
import threading

from portcall.errors import ConnectError
from portcall.rpc.client._deadline import Deadline
from portcall.rpc.wire._address import Address
from portcall.rpc.wire._facts import SILENCE

DEPLOYED = '"${XDG_DATA_HOME:-$HOME/.local/share}/portcall"'  # the folder of `portcall deploy`, for the shell there
NO_SERVER = 69  # the script's exit code where there is none; EX_UNAVAILABLE
LAST_LINES = 5  # of what ssh says that an error repeats
_EXIT_TIMEOUT = 5.0  # seconds for ssh to end, once its input has
_ADB_SAYS = ("error:", "adb:")  # in front of what is wrong with adb itself, whose exit codes are those of the command

# No single quotes: it is one word in such, which every login shell reads in the same way. Folders of shells that were
# killed are empty, and those of servers that run are not.
_SCRIPT = """
umask 077
if [ -x {deployed}/portcall-server ]; then set -- {deployed}/portcall-server
elif command -v portcall-server >/dev/null; then set -- portcall-server
elif command -v portcall >/dev/null; then set -- portcall serve
elif [ -x "$HOME/.local/bin/portcall" ]; then set -- "$HOME/.local/bin/portcall" serve
else exit {missing}
fi
mkdir {folder} || exit 1
exec 3<&0
"$@" --unix {folder}/s --silent </dev/null 3<&- &
server=$!
(cat <&3; kill $server) >/dev/null 2>&1 &
exec 3<&- </dev/null
wait $server
code=$?
rm -rf {folder}
find /tmp -maxdepth 1 -name "portcall-ssh-*" -mmin +60 -exec rmdir {{}} ";" >/dev/null 2>&1
exit $code
"""


def ssh_command() -> list[str]:
    """Return the words that start ssh: those of the variable PORTCALL_SSH, or ``ssh``."""
    return shlex.split(os.environ.get("PORTCALL_SSH", "")) or ["ssh"]


def adb_command(there: Address) -> list[str]:
    """Return the words that start adb for a device: those of the variable PORTCALL_ADB, or ``adb``."""
    words = shlex.split(os.environ.get("PORTCALL_ADB", "")) or ["adb"]
    return [*words, *(["-s", there.host] if there.host else [])]


def words_there(there: Address, command: str, *options: str) -> list[str]:
    """Return the words that run a shell's command on a machine; the options are ssh's."""
    if there.adb:
        return [*adb_command(there), "shell", "-T", command]
    port = [f"-p{there.port}"] if there.port else []
    return [*ssh_command(), "-T", *options, *port, there.host, command]


class Tunnel:
    """A server on another machine, which is started by ssh or adb when it is first asked for its address.

    Parameters:
        address: of the form ``ssh://[user@]host[:port]`` or ``adb://[serial number]``.
        timeout: seconds until it must listen; None for no limit.
        silence: seconds after which ssh ends that hears nothing, so that another one is started.
    """

    def __init__(self, address: Address, timeout: float | None, silence: float = SILENCE) -> None:
        self._there = address
        self._timeout = timeout
        self._silence = silence
        self._lock = threading.Lock()
        self._ssh: subprocess.Popen[bytes] | None = None
        self._folder = ""
        self._closed = False
        self._owner = os.getpid()

    def address(self) -> Address:
        """Return the Unix socket that leads to the server, which is started unless it runs.

        Raises:
            ConnectError: ssh cannot be started, did not get there, or found no server.
            SessionTimeoutError: the server does not listen in time.
        """
        with self._lock:
            if self._ssh is None or self._ssh.poll() is not None:
                self._end()
                self._start()
            return Address(path=f"{self._folder}/s")

    def close(self) -> None:
        """End the server, and ssh."""
        if os.getpid() != self._owner:  # a copy of the process that started it
            return
        self._closed = True
        ssh = self._ssh
        if ssh is not None and self._lock.locked():  # another thread waits for it to listen
            ssh.kill()
        with self._lock:
            self._end()

    def _start(self) -> None:
        name = str(self._there)
        deadline = Deadline(name, self._timeout, None)
        deadline.wait_for("adb" if self._there.adb else "ssh")
        self._folder = tempfile.mkdtemp(prefix="portcall-ssh-")
        there = f"/tmp/portcall-ssh-{secrets.token_hex(16)}"
        script = _SCRIPT.format(deployed=DEPLOYED, missing=NO_SERVER, folder=there)
        # A connection of our own: one that others share would go on forwarding. No questions: nobody may be there.
        options = ["-oBatchMode=yes", "-oControlPath=none", f"-L{self._folder}/s:{there}/s",
                   f"-oServerAliveInterval={max(1, int(self._silence / 3))}", "-oServerAliveCountMax=2"]  # fmt: skip
        words = words_there(self._there, f"exec sh -c '{script}'", *options)
        try:
            # A session of its own: Ctrl-C is for us, and we end it.
            ssh = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   start_new_session=True)  # fmt: skip
        except OSError as error:
            tool = "adb" if self._there.adb else "ssh"
            raise ConnectError(f"cannot start {words[0]}: {error.strerror}", peer=name, reason=f"no-{tool}",
                               hint=f"PORTCALL_{tool.upper()} names the command") from None  # fmt: skip
        self._ssh = ssh
        said: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        reader = threading.Thread(target=_keep_lines, args=(ssh, said), name="portcall-ssh", daemon=True)
        reader.start()
        late = threading.Event()

        def give_up() -> None:
            late.set()
            ssh.kill()

        timer = threading.Timer(deadline.remaining() or 0, give_up)
        if self._timeout is not None:
            timer.start()
        try:
            assert ssh.stdout is not None
            line = b"" if self._closed else ssh.stdout.readline()
        except BaseException:
            self._end()
            raise
        finally:
            timer.cancel()
        if line.startswith(b"listening on") and not late.is_set():
            if self._there.adb:
                self._forward(there)
            return
        self._end()
        if late.is_set():
            raise deadline.timeout_error()
        reader.join(timeout=1)
        raise explain(name, ssh.returncode, list(said))

    def _forward(self, there: str) -> None:
        """Have adb carry the socket; ssh was told when it started."""
        ways = [f"localfilesystem:{folder}/s" for folder in (self._folder, there)]
        done = subprocess.run(
            [*adb_command(self._there), "forward", *ways], capture_output=True, text=True, check=False
        )
        if done.returncode:
            self._end()
            raise explain(str(self._there), 255, done.stderr.splitlines()[-LAST_LINES:])

    def _end(self) -> None:
        ssh, self._ssh = self._ssh, None
        if self._there.adb and ssh is not None and os.path.exists(f"{self._folder}/s"):
            words = [*adb_command(self._there), "forward", "--remove", f"localfilesystem:{self._folder}/s"]
            subprocess.run(words, capture_output=True, check=False)
        if ssh is not None:
            assert ssh.stdin is not None
            assert ssh.stdout is not None
            ssh.stdin.close()
            try:
                ssh.wait(timeout=_EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                ssh.kill()
                ssh.wait()
            ssh.stdout.close()
        if self._folder:
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/s")
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)
            self._folder = ""


def explain(name: str, code: int, said: list[str]) -> ConnectError:
    """Return the error for a machine where ssh, or what it ran, ended with a code and these last lines."""
    if code == NO_SERVER:
        return ConnectError(f"{name} has no server of portcall", peer=name, reason="no-server",
                            hint=f"portcall deploy {name.removeprefix('ssh://')}")  # fmt: skip
    words = "; ".join(said) or f"it ended with code {code}"
    if name.startswith("adb://") and (code == 255 or any(line.startswith(_ADB_SAYS) for line in said)):
        return ConnectError(f"adb does not get to {name}: {words}", peer=name, reason="adb",
                            hint="does `adb devices` list it as a device?")  # fmt: skip
    if code == 255:  # of ssh itself
        return ConnectError(f"ssh does not get to {name}: {words}", peer=name, reason="ssh",
                            hint="does `ssh HOST true` work, without a question?")  # fmt: skip
    return ConnectError(f"{name}: the server did not start: {words}", peer=name, reason="not-started")


def _keep_lines(ssh: subprocess.Popen[bytes], said: collections.deque[str]) -> None:
    """Read what ssh and the server say, to their end; keep the last lines."""
    assert ssh.stderr is not None
    with contextlib.suppress(OSError, ValueError), ssh.stderr:
        for line in ssh.stderr:
            said.append(line.decode(errors="replace").strip())
