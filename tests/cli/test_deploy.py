# SPDX-License-Identifier: Apache-2.0
"""``portcall deploy`` with Debian's sshd: deploy, again, update, remove, a farm, and a connection that is cut."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import site
import sys
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import portcall
from farm.running import running_farm
from portcall import deploy, errors, rpc
from portcall.cli._store import read_remotes
from rpc import board, sshd
from rpc.processes import command_of
from rpc.serving import wait_until

Invoke = Callable[..., Result]
InvokeJson = Callable[..., dict[str, Any]]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Machine]:
    """A machine to which nothing was deployed; what is deployed is ended afterwards."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with sshd.machine(tmp_path) as made:
        monkeypatch.setenv("PORTCALL_SSH", made.ssh)
        yield made
        monkeypatch.setenv("PORTCALL_SSH", made.ssh)
        deploy.remove("board")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return board.program()


@pytest.fixture
def other_program(tmp_path: Path) -> Path:
    """A server that is another file, and does the same."""
    path = tmp_path / "other-server"
    shutil.copy(board.program(), path)
    with path.open("ab") as file:
        file.write(b"\0")
    return path


def settings(port: int = 0, **more: Any) -> deploy.Settings:
    return deploy.Settings("rasp", "127.0.0.1", port or sshd.free_port(), **more)


def works(done: deploy.Deployed) -> bool:
    with rpc.connect(done.address, token=done.token, timeout=60) as remote:
        return remote.peer_kind == "portcall"


def test_deploy_command_brings_a_server_saves_a_remote_and_examines_it(
    there: sshd.Machine, program: Path, invoke: Invoke, invoke_json: InvokeJson
) -> None:
    words = ("deploy", "behind", "--name", "rasp", "--host", "127.0.0.1", "--program", program)  # by a jump host
    port = sshd.free_port()
    facts = invoke_json(*words, "--port", port, "--key", "k")
    assert (facts["name"], facts["address"]) == ("rasp", f"127.0.0.1:{port}")
    assert (facts["sent"], facts["restarted"]) == (True, True)
    assert facts["machine"]["target"] == "x86_64-linux-gnu"
    assert facts["doctor"]["takes_libraries"]
    remote = read_remotes()["rasp"]
    assert (remote.address, remote.key, len(remote.token)) == (f"127.0.0.1:{port}", "k", 64)
    assert remote.token not in json.dumps(facts)
    assert remote.deploy.split()[:3] == ["behind", "--name", "rasp"]
    folder = there.program.parent
    assert (folder / "token").read_text().strip() == remote.token
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o077 == 0
    assert remote.token.encode() not in command_of(facts["pid"])

    again = invoke_json(*words, "--port", port, "--key", "k")
    assert (again["sent"], again["restarted"], again["pid"]) == (False, False, facts["pid"])
    assert read_remotes()["rasp"] == remote
    shown = invoke(*words, "--port", port, "--key", "k")
    assert shown.exit_code == 0, shown.output
    assert "the server works" in shown.output
    assert "before" not in shown.output
    moved = invoke(*words, "--port", sshd.free_port())
    assert (
        f"before, it was that of portcall deploy behind --name rasp --host 127.0.0.1 --port {port} --key k"
        in moved.output
    )
    facts = invoke_json(*words, "--port", port, "--key", "k")

    status = invoke_json("deploy", "board", "--status")
    assert (status["pid"], status["address"]) == (facts["pid"], f"127.0.0.1:{port}")
    assert status["settings"]["port"] == port
    assert invoke("deploy", "board", "--status").exit_code == 0

    assert invoke_json("deploy", "board", "--remove")["removed"]
    assert not command_of(facts["pid"])
    assert not folder.exists()
    assert not invoke_json("deploy", "board", "--remove")["removed"]


def test_deploy_update_replaces_the_program_and_keeps_settings_and_token(
    there: sshd.Machine, program: Path, other_program: Path
) -> None:
    with pytest.raises(errors.StartError):
        deploy.update("board", other_program)
    first = deploy.deploy("board", settings(key="k"), program)
    second = deploy.update("board", other_program)
    assert (second.sent, second.restarted, second.settings) == (True, True, first.settings)
    assert (second.token, second.address) == (first.token, first.address)
    assert not command_of(first.pid)
    assert there.program.read_bytes() == other_program.read_bytes()
    with rpc.connect(second.address, key="k", token=second.token, timeout=60):
        pass


def test_deploys_at_the_same_time_leave_one_server_with_one_token(
    there: sshd.Machine, program: Path, other_program: Path
) -> None:
    same = settings()
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda i: deploy.deploy("board", same, (program, other_program)[i % 2]), range(4)))
    assert len({each.token for each in done}) == 1
    assert there.program.read_bytes() in (program.read_bytes(), other_program.read_bytes())
    last = deploy.look("board")
    assert [pid for pid in {each.pid for each in done} if command_of(pid)] == [last.pid]
    assert works(done[0])
    names = {path.name for path in there.program.parent.iterdir()}
    assert not [name for name in names if name.startswith(("new-", "part-", "old-"))]


def test_deploy_waits_for_one_that_is_under_way(there: sshd.Machine, program: Path) -> None:
    first = deploy.deploy("board", settings(), program)
    with (there.program.parent / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the server does not hold it
        with ThreadPoolExecutor(1) as pool:
            removing = pool.submit(deploy.remove, "board")
            assert works(first)
            fcntl.flock(held, fcntl.LOCK_UN)
            assert removing.result()
    assert not command_of(first.pid)


def test_deployed_server_serves_sessions_by_ssh(there: sshd.Machine, program: Path) -> None:
    deploy.deploy("board", settings(), program)
    with rpc.connect("ssh://board", timeout=60) as remote:
        assert remote.peer_kind == "portcall"


@pytest.mark.parametrize("broken", ["not a program", "#!/bin/sh\necho it is broken >&2\nexit 3\n"])
def test_deploy_leaves_the_old_server_where_the_new_one_does_not_run(
    there: sshd.Machine, program: Path, tmp_path: Path, broken: str
) -> None:
    first = deploy.deploy("board", settings(), program)
    bad = tmp_path / "bad"
    bad.write_text(broken)
    with pytest.raises(errors.StartError):
        deploy.update("board", bad)
    assert deploy.look("board").pid == first.pid
    assert works(first)
    assert not deploy.deploy("board", first.settings, program).restarted


def test_deploy_goes_back_to_the_old_server_where_the_new_settings_fail(there: sshd.Machine, program: Path) -> None:
    first = deploy.deploy("board", settings(), program)
    with pytest.raises(errors.StartError, match=r"runs on: port \d+ of 127.0.0.1 is taken; --port takes another$"):
        deploy.deploy("board", settings(there.port), program)  # sshd listens there
    assert deploy.look("board").settings == first.settings
    assert works(first)


@pytest.mark.parametrize(
    ("name", "text"),
    [("settings", '{"na'), ("settings", '{"port": "x"}'), ("ready", ""), ("pid", "abc")],
)
def test_deploy_mends_files_that_a_loss_of_power_has_spoilt(
    there: sshd.Machine, program: Path, name: str, text: str
) -> None:
    first = deploy.deploy("board", settings(), program)
    if name == "pid":
        os.kill(first.pid, signal.SIGTERM)
        wait_until(lambda: not command_of(first.pid))
    (there.program.parent / name).write_text(text)
    assert (deploy.look("board").settings is None) == (name == "settings")
    again = deploy.deploy("board", first.settings, program)
    assert works(again)
    found = deploy.look("board")
    assert (found.settings, found.address, found.pid) == (first.settings, first.address, again.pid)


@pytest.mark.parametrize("half", [False, True], ids=["before", "half-way"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_deploy_over_a_connection_that_is_cut_leaves_the_old_server(
    there: sshd.Machine, program: Path, other_program: Path, monkeypatch: pytest.MonkeyPatch, call: int, half: bool
) -> None:
    first = deploy.deploy("board", settings(), program)
    failing = there.failing_ssh()
    monkeypatch.setenv("PORTCALL_SSH", failing.command)
    failing.fail_at(call, half)
    with pytest.raises(errors.ConnectError) as caught:
        deploy.deploy("board", first.settings, other_program)
    assert (caught.value.reason, failing.calls) == ("ssh", call)
    failing.fail_at(0)
    assert deploy.look("board").pid == first.pid
    assert works(first)
    second = deploy.deploy("board", first.settings, other_program)
    assert second.restarted
    assert second.token == first.token
    assert works(second)
    assert not list(there.program.parent.glob("new-*"))
    assert not list(there.program.parent.glob("old-*"))


def test_deploy_that_loses_the_connection_while_it_switches_has_switched(
    there: sshd.Machine, program: Path, other_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = deploy.deploy("board", settings(), program)
    failing = there.failing_ssh()
    monkeypatch.setenv("PORTCALL_SSH", failing.command)
    failing.fail_at(3, when_seen=there.program.parent / "new-check")
    with pytest.raises(errors.ConnectError):
        deploy.deploy("board", first.settings, other_program)
    monkeypatch.setenv("PORTCALL_SSH", there.ssh)
    result = there.program.parent / "result"
    wait_until(lambda: result.read_text().startswith("good"))
    found = deploy.look("board")
    assert found.pid not in (0, first.pid)
    assert there.program.read_bytes() == other_program.read_bytes()
    assert works(first)  # the address and the token are the same


def test_deploy_has_systemd_run_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Path, other_program: Path
) -> None:
    with sshd.machine_with_services(tmp_path) as there:
        monkeypatch.setenv("PORTCALL_SSH", there.ssh)
        first = deploy.deploy("board", settings(), program)
        assert first.machine.service == "systemd"
        assert works(first)
        assert not deploy.deploy("board", first.settings, program).restarted
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: deploy.look("board").pid not in (0, first.pid))  # it is started again
        wait_until(lambda: bool(deploy.look("board").address))
        second = deploy.update("board", other_program)
        assert works(second)
        bad = tmp_path / "bad"
        bad.write_text("not a program")
        with pytest.raises(errors.StartError):
            deploy.update("board", bad)
        assert deploy.look("board").pid == second.pid
        said = "error: port 1 is taken; --port takes another\n  next: --port 0 takes a free one\n"
        (there.home / "journal").write_text(said)
        with pytest.raises(errors.StartError, match=r"is taken; --port takes another$"):
            deploy.deploy("board", settings(there.port), other_program)
        assert "portcall.service" in (there.home / "journal-asked").read_text()
        assert works(second)
        unit = there.home / ".config" / "systemd" / "user" / "portcall.service"
        assert unit.exists()
        assert deploy.remove("board")
        assert not unit.exists()
        assert not command_of(second.pid)


def test_deploy_makes_a_place_of_a_farm(there: sshd.Machine, program: Path, tmp_path: Path) -> None:
    with running_farm() as farm:
        address = f"{farm.host}:{farm.port}"
        done = deploy.deploy("board", settings(key="k", farm=address), program, farm_token="")
        assert done.token == ""
        with portcall.farm.connect(address, token="", user="ann") as client, client.lease("k", wait=60) as lease:
            assert lease.place == "rasp"
            with lease.session(timeout=60) as remote:
                assert remote.peer_kind == "portcall"


def wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    """Make a wheel of these files."""
    facts = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.1\n", "RECORD": "",
             "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}  # fmt: skip
    path = folder / f"{name}-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, **{f"{name}-0.0.1.dist-info/{fact}": text for fact, text in facts.items()}}.items():
            archive.writestr(file, text)
    return path


@pytest.mark.parametrize(
    "name", ["portcall-1.0.zip", "other-1.0-py3-none-any.whl", "portcall-1.0$(id)-py3-none-any.whl"]
)
def test_deploy_refuses_files_that_are_no_wheels_of_portcall(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="one wheel must be portcall's"):
        deploy._of_python("board", deploy.Machine("Linux", "x86_64"), [tmp_path / name])


def test_deploy_installs_wheels_where_there_is_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Path, invoke_json: InvokeJson
) -> None:
    # Its server is portcall of this environment, as long as there is the other wheel, too.
    ours = "".join(f"import site, other; site.addsitedir({folder!r})\n" for folder in site.getsitepackages())
    first = wheel(tmp_path, "portcall", {"ours.pth": ours})
    other = wheel(tmp_path, "other", {"other.py": ""})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    port = sshd.free_port()
    words = ("deploy", "board", "--name", "rasp", "--host", "127.0.0.1", "--port", port)
    with sshd.machine(tmp_path, programs=f"{Path(sys.base_prefix, 'bin')}:/usr/bin:/bin") as there:
        monkeypatch.setenv("PORTCALL_SSH", there.ssh)
        facts = invoke_json(*words, "--wheel", first, "--wheel", other)
        assert (facts["sent"], facts["doctor"]["takes_libraries"]) == (True, True)
        folder = there.program.parent
        [environment] = folder.glob("portcall-server-*")
        assert f"{environment}/bin/python".encode() in command_of(facts["pid"])
        again = invoke_json(*words, "--wheel", first, "--wheel", other)
        assert (again["sent"], again["restarted"], again["pid"]) == (False, False, facts["pid"])
        with rpc.connect("ssh://board", timeout=60) as remote:
            assert remote.peer_kind == "portcall"
        assert invoke_json("deploy", "board", "--status")["version"] == "portcall 0.0.1"

        with pytest.raises(errors.StartError, match="--wheel"):  # and not a program in its place
            deploy.update("board")
        with pytest.raises(ValueError, match="other"):
            deploy.update("board", wheels=[other])
        (tmp_path / "bad").mkdir()
        with pytest.raises(errors.StartError, match="invalid"):  # it is not installed; pip's words
            deploy.update("board", wheels=[shutil.copy(program, tmp_path / "bad" / first.name)])
        assert deploy.look("board").pid == facts["pid"]
        assert list(folder.glob("portcall-server-*")) == [environment]
        assert not list(folder.glob("part-*"))

        assert deploy.update("board", program).restarted
        assert not environment.exists()
        assert deploy.remove("board")


def test_deploy_says_why_ssh_does_not_get_there(there: sshd.Machine, program: Path) -> None:
    with pytest.raises(errors.ConnectError) as caught:
        deploy.deploy("nobody@board", settings(), program)
    assert caught.value.reason == "ssh"
    with pytest.raises(ValueError, match="ssh://"):
        deploy.look("-oProxyCommand=x")


@pytest.mark.parametrize(
    ("machine", "bits", "loaders", "target"),
    [
        ("x86_64", "64", ["ld-linux-x86-64.so.2", "ld-musl-x86_64.so.1"], "x86_64-linux-gnu"),
        ("aarch64", "64", ["ld-linux-aarch64.so.1"], "aarch64-linux-gnu"),
        ("aarch64", "32", ["ld-linux.so.3", "ld-linux-armhf.so.3"], "arm-linux-gnueabihf"),  # under a 64-bit kernel
        ("aarch64", "", ["ld-musl-armhf.so.1"], "arm-linux-musleabihf"),  # without getconf
        ("armv7l", "", ["ld-musl-armhf.so.1"], "arm-linux-musleabihf"),
        ("riscv64", "64", ["ld-linux-riscv64-lp64d.so.1"], "riscv64-linux-gnu"),
        ("x86_64", "32", ["ld-linux.so.2"], ""),
        ("mips", "32", ["ld-musl-mips-sf.so.1"], ""),
        ("aarch64", "64", [], ""),
    ],
)
def test_deploy_takes_the_server_for_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, bits: str, loaders: list[str], target: str
) -> None:
    lines = ["system Linux", f"machine {machine}", f"bits {bits}", *(f"loader {name}" for name in loaders)]
    (tmp_path / "said").write_text("\n".join(lines))
    (tmp_path / "ssh").write_text(f"#!/bin/sh\ncat >/dev/null\nexec cat {tmp_path}/said\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PORTCALL_SSH", str(tmp_path / "ssh"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = deploy.look("board")
    assert found.target == target
    made: list[str] = []

    def build(target: str, output: Path) -> Path:
        made.append(target)
        return output

    monkeypatch.setattr(portcall.board, "build_server", build)
    if target:
        assert deploy.program_for(found) == tmp_path / "cache" / "portcall" / "board" / f"portcall-server-{target}"
        assert made == [target]
    else:
        with pytest.raises(errors.StartError):
            deploy.program_for(found)
