# SPDX-License-Identifier: Apache-2.0
"""What a shell runs on a machine to which a server is deployed: POSIX, with no more than a router has.

Each script is a function that is called in its last line: a connection that is cut inside of one runs nothing of it.
What is changed, is changed by a process that goes on without the connection, so a server is replaced or left alone.

A server of Python is the same, but that ``portcall-server`` is a script, which starts it in its environment: the folder
``portcall-server-…``.

Files in ``~/.local/share/portcall``: ``portcall-server``; ``run``, which starts it; ``settings``, as JSON; the tokens;
``pid`` or a unit of systemd; ``ready``, written by the server; ``log``; ``lock``. What begins
with ``new-`` or ``part-`` is not in use.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from portcall.rpc.client._ssh import DEPLOYED

UNIT = "portcall.service"

# What the other scripts need.
_COMMON = f"""
d={DEPLOYED}
unit={UNIT}
: "${{XDG_RUNTIME_DIR:=/run/user/$(id -u)}}"
export XDG_RUNTIME_DIR
units="${{XDG_CONFIG_HOME:-$HOME/.config}}/systemd/user"
has_systemd() {{ systemctl --user show-environment >/dev/null 2>&1; }}
nap() {{ sleep 0.1 2>/dev/null || sleep 1; }}
# One at a time: the kernel frees the file when the last process that has it ends. Without flock nobody waits.
lock() {{
  command -v flock >/dev/null || return 0
  n=0
  while [ $n -lt 600 ]; do
    mkdir -p "$d" && exec 9>"$d/lock" || return 1
    if flock -n 9 && [ "$d/lock" -ef /proc/self/fd/9 ]; then return 0; fi  # not one that was removed meanwhile
    nap
    n=$((n + 1))
  done
  return 1
}}
server_pid() {{
  if [ -f "$units/$unit" ] && has_systemd; then
    pid=$(systemctl --user show -p MainPID --value $unit) && [ "$pid" != 0 ] || pid=
  else
    pid=$(cat "$d/pid" 2>/dev/null)
    grep -q portcall-server "/proc/${{pid:-none}}/cmdline" 2>/dev/null || pid=
  fi
  [ -n "$pid" ]
}}
stop_server() {{
  if [ -f "$units/$unit" ] && has_systemd; then systemctl --user stop $unit; fi
  if server_pid; then
    kill "$pid"
    n=0
    while server_pid && [ $n -lt 100 ]; do nap; n=$((n + 1)); done
    if server_pid; then kill -9 "$pid"; fi
  fi
  rm -f "$d/ready" "$d/pid"
}}
"""

LOOK = """
look() {
  echo "system $(uname -s)"
  echo "machine $(uname -m)"
  echo "bits $(getconf LONG_BIT 2>/dev/null)"
  for path in /lib/ld-musl-*.so.1 /lib/ld-linux*.so.* /lib64/ld-linux*.so.*; do
    if [ -e "$path" ]; then echo "loader ${path##*/}"; fi
  done
  echo "python $(python3 -c 'import platform; print(platform.python_version())' 2>/dev/null)"
  if has_systemd; then echo "service systemd"; else echo "service detached"; fi
  if [ -x "$d/portcall-server" ]; then
    echo "digest $(sha256sum 2>/dev/null <"$d/portcall-server" | cut -d ' ' -f 1)"
    echo "version $("$d/portcall-server" --version 2>/dev/null)"
  fi
  if [ -f "$d/settings" ]; then echo "settings $(cat "$d/settings")"; fi
  if server_pid; then
    echo "pid $pid"
    if [ -f "$d/ready" ]; then echo "ready $(cat "$d/ready")"; fi
  fi
}
look
"""

# These two: one word in single quotes; what is sent comes on standard input.
_RECEIVE = f"""
d={DEPLOYED}
umask 077
mkdir -p "$d" || exit 1
for part in "$d"/part-*; do
  if ! kill -0 "${{part##*-}}" 2>/dev/null; then rm -rf "$part"; fi
done
part="$d/part-$$"
"""
UPLOAD = f"""{_RECEIVE}
cat >"$part" || exit 1
[ $(wc -c <"$part") -eq {{size}} ] || exit 1
chmod 700 "$part" && mv "$part" "$d/new-server"
"""
# An archive with wheels, and a file ``server``. The environment gets its name when all of it is there.
INSTALL = f"""{_RECEIVE}
mkdir "$part" && cd "$part" && cat >sent || exit 1
[ $(wc -c <sent) -eq {{size}} ] && python3 -m tarfile -e sent . || exit 1
if [ ! -d "$d/{{name}}" ]; then
  python3 -m venv python >said 2>&1 &&
    python/bin/python -m pip install -q --disable-pip-version-check *.whl >said 2>&1 ||
    {{ tail -n 5 said >&2; cd /; rm -rf "$part"; exit 1; }}
  mv python "$d/{{name}}"
fi
chmod 700 server && mv server "$d/new-server" && cd / && rm -rf "$part"
"""
SERVER = """\
#!/bin/sh
# The server of Python, of portcall deploy --wheel.
if [ "$1" = --version ]; then echo "portcall {version}"; exit; fi
exec "${0%/*}/{name}/bin/python" -m portcall serve "$@"
"""

_SWITCH = """
start_server() {
  rm -f "$d/ready"
  if has_systemd; then
    mkdir -p "$units"
    printf '%s\\n' '[Unit]' 'Description=The server of portcall' '[Service]' "ExecStart=/bin/sh \\"$d/run\\"" \\
      'Restart=on-failure' '[Install]' 'WantedBy=default.target' >"$units/$unit"
    loginctl enable-linger >/dev/null 2>&1
    systemctl --user daemon-reload && systemctl --user enable $unit >/dev/null 2>&1
    systemctl --user restart $unit
  else
    if command -v setsid >/dev/null; then setsid sh "$d/run" </dev/null >"$d/log" 2>&1 9>&- &
    else nohup sh "$d/run" </dev/null >"$d/log" 2>&1 9>&- &
    fi
    echo $! >"$d/pid"
  fi
  n=0
  while [ ! -f "$d/ready" ] && [ $n -lt 300 ]; do
    nap
    n=$((n + 1))
    if [ $n -gt 10 ] && ! server_pid; then return 1; fi
  done
  [ -f "$d/ready" ]
}
# Does the new program run here? It has a socket of its own for that, so the old one goes on meanwhile.
new_runs() {
  c="$d/new-check"
  rm -rf "$c"
  mkdir "$c" || return 1
  # A relative path: that of a socket has 107 bytes at most.
  (cd "$c" && exec "$d/new-server" --unix s --ready-file ready --silent) </dev/null >/dev/null 2>"$d/log.check" 9>&- &
  checked=$!
  n=0
  while [ ! -f "$c/ready" ] && [ $n -lt 300 ] && kill -0 $checked 2>/dev/null; do nap; n=$((n + 1)); done
  [ -f "$c/ready" ]
  good=$?
  kill $checked 2>/dev/null
  wait $checked 2>/dev/null
  rm -rf "$c"
  return $good
}
# The last words of a server, whose log is read; what it proposes for its own command line has blanks in front.
last_words() { grep -v '^  ' | tail -n 1; }
log() {
  if has_systemd; then journalctl --user _SYSTEMD_USER_UNIT=$unit -n 20 -o cat -q; else cat "$d/log"; fi
}
swap() {
  trap '' HUP PIPE
  if [ -f "$d/new-server" ] && ! new_runs; then
    rm -f "$d"/new-*
    echo "failed $(last_words <"$d/log.check")"
    return
  fi
  for file in portcall-server run settings token farm-token; do
    if [ -f "$d/$file" ]; then cp -p "$d/$file" "$d/old-$file"; fi
  done
  stop_server
  for file in server run settings token farm-token; do
    if [ "$file" = server ]; then to=portcall-server; else to=$file; fi
    if [ -f "$d/new-$file" ]; then mv "$d/new-$file" "$d/$to"; fi
  done
  if start_server; then
    echo "good"
  else
    echo "failed $(log | last_words)"
    stop_server
    for file in portcall-server run settings token farm-token; do
      if [ -f "$d/old-$file" ]; then mv "$d/old-$file" "$d/$file"; fi
    done
    if [ -f "$d/old-ran" ]; then start_server; fi
  fi
  rm -f "$d"/old-*
  for environment in "$d"/portcall-server-*; do
    grep -q "${environment##*/}" "$d/portcall-server" "$d/new-server" 2>/dev/null || rm -rf "$environment"
  done
}
switch() {
  umask 077
  if ! lock; then
    echo "failed another deployment to this machine does not end"
    if server_pid; then echo "pid $pid"; fi
    return
  fi
  mkdir -p "$d" && cd "$d" || exit 1
  printf '%s\\n' "$settings" >new-settings
  printf '%s\\n' 'cd "$(dirname "$0")"' "$run" >new-run
  if [ -n "$token" ] && [ ! -s token ]; then printf '%s\\n' "$token" >new-token; fi
  if [ -n "$farm_token" ]; then printf '%s\\n' "$farm_token" >new-farm-token; fi
  if server_pid; then
    : >old-ran
    if [ ! -f new-server ] && [ -s ready ] && cmp -s new-run run && cmp -s new-settings settings &&
       [ ! -f new-token ] && { [ ! -f new-farm-token ] || cmp -s new-farm-token farm-token; }; then
      rm -f new-* old-*
      same=1
    fi
  fi
  if [ -z "$same" ]; then
    swap </dev/null >"$d/result" 2>/dev/null &
    wait $!
    cat "$d/result"
  else
    echo "good"
    echo "same yes"
  fi
  if [ -f token ]; then echo "token $(cat token)"; fi
  if [ -f ready ]; then echo "ready $(cat ready)"; fi
  if server_pid; then echo "pid $pid"; fi
}
switch
"""

REMOVE = """
remove() {
  if [ ! -d "$d" ]; then return; fi
  lock
  stop_server
  if [ -f "$units/$unit" ]; then
    systemctl --user disable $unit >/dev/null 2>&1
    rm -f "$units/$unit"
    systemctl --user daemon-reload >/dev/null 2>&1
  fi
  rm -rf "$d"
  echo "removed yes"
}
remove
"""


def look() -> str:
    """Return the script that says what the machine is, and what runs there."""
    return _COMMON + LOOK


def upload(size: int) -> str:
    """Return the script that receives a program of this size."""
    return UPLOAD.replace("{size}", str(size))


def install(size: int, name: str) -> str:
    """Return the script that receives an archive and installs its wheels in an environment of this name."""
    return INSTALL.replace("{size}", str(size)).replace("{name}", name)


def server(version: str, name: str) -> str:
    """Return the script that is a server of Python, in an environment of this name."""
    return SERVER.replace("{version}", version).replace("{name}", name)


def switch(values: Mapping[str, str]) -> str:
    """Return the script that has the server run with these values: run, settings, token and farm_token."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()) + "same=\n" + _COMMON + _SWITCH


def remove() -> str:
    """Return the script that ends the server and deletes its files."""
    return _COMMON + REMOVE


def read(text: str) -> dict[str, list[str]]:
    """Return what a script said: words that begin a line, and what follows in each such line."""
    said: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        said.setdefault(name, []).append(value)
    return said
