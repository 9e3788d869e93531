# SPDX-License-Identifier: Apache-2.0
"""Settings of this user: named servers, and the token of local servers.

They are in ``$XDG_CONFIG_HOME/portcall`` (``~/.config/portcall``), readable by this user only, and written atomically.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from portcall.cli._errors import CommandError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
TOKEN_BYTES = 32


@dataclass(frozen=True)
class Remote:
    """A named server. Paths are absolute; unused settings are empty; ``deploy`` has the words that deploy it again."""

    address: str
    key: str = ""
    token: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    deploy: str = ""

    def to_dict(self, name: str, with_token: bool = False) -> dict[str, object]:
        """Return the facts for JSON; of the token, unless it is asked for, only whether there is one."""
        shown: object = self.token if with_token else bool(self.token)
        return {"name": name, **asdict(self), "token": shown}


def folder() -> Path:
    """Return the folder of the files; it may not exist yet."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(home):  # the XDG specification ignores it
        home = os.path.join(os.path.expanduser("~"), ".config")
    return Path(home, "portcall")


def read_remotes() -> dict[str, Remote]:
    """Return the named servers, by name.

    Raises:
        CommandError: the file is damaged.
    """
    path = folder() / "remotes.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in fields(Remote)}
        return {
            str(name): Remote(**{key: str(value) for key, value in facts.items() if key in known})
            for name, facts in sorted(stored["remotes"].items())
        }
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        text, next_step = f"cannot read '{path}': {error!r}", f"correct it, or remove it: rm {path}"
        raise CommandError(text, "it was edited by hand, or is damaged", next_step) from error


def write_remotes(remotes: dict[str, Remote]) -> None:
    """Save these servers; others are forgotten."""
    stored = {name: {k: v for k, v in asdict(remote).items() if v} for name, remote in sorted(remotes.items())}
    write_private(folder() / "remotes.json", json.dumps({"remotes": stored}, indent=2) + "\n")


def farm_token(address: str) -> str:
    """Return the token that was saved for a farm; empty for none."""
    return _farm_tokens().get(address, "")


def write_farm_token(address: str, token: str) -> Path:
    """Save a token for a farm, and return the file."""
    path = folder() / "farms.json"
    write_private(path, json.dumps({**_farm_tokens(), address: token}, indent=2) + "\n")
    return path


def _farm_tokens() -> dict[str, str]:
    path = folder() / "farms.json"
    try:
        return {str(name): str(token) for name, token in json.loads(path.read_text(encoding="utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as error:
        text, next_step = f"cannot read '{path}': {error!r}", f"correct it, or remove it: rm {path}"
        raise CommandError(text, "it was edited by hand, or is damaged", next_step) from error


def server_token() -> tuple[str, Path, bool]:
    """Return the token of the servers here, the file in which it is kept, and whether it is new.

    Raises:
        CommandError: it cannot be read or saved.
    """
    path = folder() / "server-token"
    try:
        token = path.read_text(encoding="utf-8").strip() if path.exists() else ""
        made = not token
        if made:
            token = secrets.token_hex(TOKEN_BYTES)
            write_private(path, token + "\n")
    except (OSError, ValueError) as error:
        text = f"a server for other machines needs a token, and none can be kept in '{path}': {error}"
        raise CommandError(text, "", "--token-file FILE, or PORTCALL_TOKEN") from error
    return token, path, made


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read; a reader sees the old or the new one, never a part.

    Raises:
        CommandError: this user has no home directory.
        OSError: the file cannot be written.
    """
    if not path.is_absolute():
        raise CommandError("this user has no home directory, in which settings are kept", "", "set XDG_CONFIG_HOME")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp gives it mode 0600
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
