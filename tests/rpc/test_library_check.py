# SPDX-License-Identifier: Apache-2.0
"""A library is checked before upload: one that the server's machine cannot load is not sent."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from portcall import _compilers, rpc, toolchain
from portcall.errors import ModuleLoadError, RemoteError
from portcall.inspect._machine import this_machine, to_json
from portcall.rpc.server._files import Files
from rpc.serving import FUNCTIONS, Serving, serving

PLAIN = "int f(void) { return 1; }"
LACKING = "int nobody_has_this(void); int f(void) { return nobody_has_this(); }"
HELPER = (
    '#include <stdio.h>\nint helper(void) { return 42; }\n__attribute__((constructor)) void g(void) { remove("kept"); }'
)
ANSWER = """
#include <portcall/portcall.h>
extern "C" int helper(void);
PORTCALL_EXPORT_TYPED(answer, [] { return int64_t{helper()}; })
"""
MODERN = "void* __tvm_ffi__library_ctx; int __tvm_ffi_f(void* s, void* a, int n, void* r) { return 0; }"
CLASSIC = "void* __tvm_module_ctx; int f(void* a, int* c, int n, void* r, int* rc, void* e) { return 0; }"
# A server of the user's own, which offers what those before this check did; {more} changes it.
OLDER_SERVER = """#!{python}
import sys, tempfile
import portcall
from portcall.rpc.server._files import Files
with tempfile.TemporaryDirectory() as place:
    files = Files()
    files.enter(place)
    files.register()
    patterns = ["tvm.rpc.server.*", "portcall.rpc.file_*"]
    {more}
    portcall.get_global_func("portcall.rpc.ServeFds")(int(sys.argv[1]), int(sys.argv[2]), patterns, 0, None)
"""
MAPS = FUNCTIONS + 'register("maps")(lambda: open("/proc/self/maps").read())'
Make = Callable[..., Path]
Own = Callable[[str], rpc.PopenSession]


@pytest.fixture
def remote(server: Serving) -> Iterator[rpc.Session]:
    with rpc.connect(server.address) as session:
        yield session


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Compile a text into a library (or an object, with ``-c`` among the options) in the test's folder."""

    def made(name: str, text: str, *options: str, target: str | None = None) -> Path:
        source = tmp_path / f"source.{'cc' if 'PORTCALL_EXPORT' in text else 'c'}"
        source.write_text(text)
        if "-c" not in options:
            return toolchain.create_shared(source, tmp_path / name, target, options)
        compiler = toolchain.find_compiler("c", target)
        _compilers.execute((*compiler.command, "-c", str(source), "-o", str(tmp_path / name)), "compiling")
        return tmp_path / name

    return made


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Own]:
    """Open a session with a server as older ones were, changed by a line of Python."""
    opened: list[rpc.PopenSession] = []

    def open_session(more: str) -> rpc.PopenSession:
        program = tmp_path / "server.py"
        program.write_text(OLDER_SERVER.format(python=sys.executable, more=more))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        opened.append(rpc.PopenSession(program))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


def refused(session: rpc.Session, *args: Any, **options: Any) -> str:
    """Try an upload that is to be refused with nothing sent, and return why; the session goes on."""
    before, sent = session.listdir(), session.stats()["bytes_sent"]
    with pytest.raises(ModuleLoadError) as raised:
        session.upload(*args, **options)
    assert session.stats()["bytes_sent"] - sent < 4000
    assert session.listdir() == before
    assert raised.value.problems
    assert "; ".join(raised.value.problems) in str(raised.value)
    assert f"will not load on {session.name}: " in str(raised.value)
    assert raised.value.path == str(args[0] if isinstance(args[0], Path) else args[1])
    return str(raised.value)


# ---- What fits ----------------------------------------------------------------------------------------------------


def test_upload_asks_once_for_libraries_with_equal_needs(remote: rpc.Session, kernel_library: Path) -> None:
    remote["testing.nop"]()
    counts = [remote.stats()["requests"]]
    for check in (True, True, False):
        remote.upload(kernel_library, check=check)
        counts.append(remote.stats()["requests"])
    # Two functions are looked up, one asked, the other sends; after that only bytes go.
    assert [after - before for before, after in itertools.pairwise(counts)] == [4, 1, 1]
    assert remote.load_module(kernel_library.name)["add"](3, 4) == 7


@pytest.mark.parametrize("text", [MODERN, CLASSIC, PLAIN])
def test_upload_accepts_libraries_of_every_known_abi(remote: rpc.Session, make: Make, text: str) -> None:
    remote.upload(make("k.so", text))
    assert remote.listdir() == ["k.so"]


def test_upload_of_data_checks_nothing(remote: rpc.Session, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\x7fELF and other bytes")
    remote.upload(b"", "empty")
    before = remote.stats()["requests"]
    remote.upload(tmp_path / "weights.bin")
    remote.upload(b"int f(void);", "k.c")
    assert remote.stats()["requests"] == before + 2


def test_session_machine_describes_the_last_server_of_a_chain(server: Serving) -> None:
    further = ["rpc.Connect", "127.0.0.1", server.port, "", False]
    with rpc.connect(server.address, session_constructor_args=further) as session:
        assert session.machine() == this_machine()


def test_session_machine_describes_the_server(remote: rpc.Session) -> None:
    assert remote.machine() == this_machine()
    with rpc.LocalSession() as local, rpc.PopenSession() as child:
        assert local.machine() == child.machine() == this_machine()


# ---- What does not ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "made_for"),
    [
        ("arm-linux-gnueabihf", "arm (32-bit, little-endian)"),
        ("riscv64-linux-gnu", "riscv64 (64-bit, little-endian)"),
        ("mips-linux-gnueabihf", "mips (32-bit, big-endian)"),
    ],
)
def test_upload_refuses_a_library_for_another_machine(
    remote: rpc.Session, make: Make, target: str, made_for: str
) -> None:
    library = make("k.so", PLAIN, target=target)
    here = this_machine()
    assert f" {made_for} and that machine is {here}: " in refused(remote, library)
    assert f"--target {here.target}" in refused(remote, library.read_bytes(), "other.so")


def test_upload_names_a_missing_symbol_first(remote: rpc.Session, make: Make) -> None:
    said = refused(remote, make("k.so", LACKING))
    assert "'nobody_has_this'" in said
    assert said.endswith(". upload(…, check=False) sends it all the same")


def test_upload_asks_for_needed_libraries_first(remote: rpc.Session, make: Make, tmp_path: Path) -> None:
    helper = make("libhelper.so", HELPER, "-Wl,-soname,libhelper.so")
    library = make("k.so", ANSWER, f"-L{tmp_path}", "-lhelper", "-Wl,-rpath,$ORIGIN")
    assert " libhelper.so, " in refused(remote, library)
    remote.upload(helper)
    remote.upload(library)
    assert remote.load_module("k.so")["answer"]() == 42


def test_upload_accepts_needs_that_the_server_has_loaded(make: Make, tmp_path: Path) -> None:
    helper = make("libhelper.so", HELPER + MODERN, "-Wl,-soname,libhelper.so")
    library = make("k.so", ANSWER, f"-L{tmp_path}", "-lhelper")
    with serving() as plain, rpc.connect(plain.address) as session:
        refused(session, library)
    with serving("--load-library", helper) as server, rpc.connect(server.address) as session:
        helper.unlink()
        session.upload(library)
        assert session.load_module("k.so")["answer"]() == 42


def test_upload_reports_an_older_libc_on_the_server(remote: rpc.Session, make: Make) -> None:
    library = make("k.so", "int puts(const char*); int f(void) { return puts(0); }")
    library.write_bytes(library.read_bytes().replace(b"GLIBC_2.", b"GLIBC_9."))
    said = refused(remote, library)
    here = this_machine()
    assert " it needs GLIBC_9." in said
    assert f" of libc.so.6 and that machine has glibc {here.libc_version}: compile it with " in said
    assert f"--target {here.target}.{here.libc_version}" in said


def test_upload_refuses_objects_and_archives_for_another_machine(
    remote: rpc.Session, make: Make, tmp_path: Path
) -> None:
    ours, other = make("ours.o", PLAIN, "-c"), make("other.o", PLAIN, "-c", target="aarch64-linux-gnu")
    assert "aarch64" in refused(remote, other)
    archive = tmp_path / "k.tar"
    with tarfile.open(archive, "w:gz") as made:
        for member in (ours, other):
            made.add(member, f"lib/{member.name}")
    assert "its member 'lib/other.o' is made for aarch64" in refused(remote, archive)
    assert "its member 'lib/other.o' is made for aarch64" in refused(remote, archive.read_bytes(), "k.tar")
    remote.upload(ours)
    for name in ("ours.o", "notes.txt"):
        with tarfile.open(archive, "w") as made:
            made.addfile(tarfile.TarInfo(name), io.BytesIO()) if name == "notes.txt" else made.add(ours, name)
        remote.upload(archive)


def test_upload_refuses_an_object_named_as_a_library(remote: rpc.Session, make: Make) -> None:
    assert "this is an object file, not a library: link it first" in refused(remote, make("k.so", PLAIN, "-c"))


@pytest.mark.parametrize(
    ("name", "content"),
    [("k.so", b""), ("k.so.1", b"\0asm\1\0\0\0"), ("k.o", b"\x7fELF\2\1"), ("k.tar", b"no archive")],
)
def test_upload_refuses_other_files_named_as_a_library(
    remote: rpc.Session, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    assert refused(remote, tmp_path / name)


def test_upload_refuses_truncated_libraries(remote: rpc.Session, make: Make) -> None:
    whole = make("k.so", PLAIN).read_bytes()
    for size in range(4, len(whole) - 1, 997):
        assert "damaged" in refused(remote, whole[:size], "k.so")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_upload_of_a_damaged_archive_is_refused_or_sent(
    remote: rpc.Session, make: Make, tmp_path: Path, mode: str
) -> None:
    with tarfile.open(tmp_path / "k.tar", mode) as made:  # type: ignore[call-overload]
        made.add(make("k.o", PLAIN, "-c"), "k.o")
    whole = (tmp_path / "k.tar").read_bytes()
    for place in range(0, len(whole), len(whole) // 40):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        for content in (damaged, whole[:place]):
            with contextlib.suppress(ModuleLoadError):
                remote.upload(content, "k.tar")


def test_upload_without_check_sends_everything(remote: rpc.Session, make: Make) -> None:
    library = make("k.so", LACKING)
    remote.upload(library, check=False)
    remote.upload(b"text", "text.so", check=False)
    assert remote.listdir() == ["k.so", "text.so"]
    with pytest.raises(RemoteError, match="nobody_has_this"):
        remote.load_module("k.so")


def test_upload_to_local_and_popen_sessions_checks_as_well(make: Make) -> None:
    library = make("k.so", LACKING)
    with rpc.LocalSession() as local, rpc.PopenSession() as child:
        for session in (local, child):
            with pytest.raises(ModuleLoadError, match="nobody_has_this"):
                session.upload(library)


def test_upload_through_a_chain_checks_the_last_server(server: Serving, make: Make) -> None:
    further = ["rpc.Connect", "127.0.0.1", server.port, "", False]
    with rpc.connect(server.address, session_constructor_args=further) as session:
        assert "riscv64" in refused(session, make("k.so", PLAIN, target="riscv64-linux-gnu"))


# ---- Other servers ------------------------------------------------------------------------------------------------


def test_upload_is_unchecked_where_the_server_cannot_answer(own_server: Own, make: Make) -> None:
    library = make("k.so", LACKING)
    for more in (
        "",
        'patterns += ["portcall.rpc.*"]; portcall.remove_global_func("portcall.rpc.machine")',
        'patterns += ["*"]; portcall.register_func("portcall.rpc.machine", lambda *a: 1 / 0, override=True)',
    ):
        with own_server(more) as session:
            assert session.machine() is None
            session.upload(library)
            assert session.listdir() == ["k.so"]


def answering(text: str) -> str:
    return f'patterns += ["*"]; portcall.register_func("portcall.rpc.machine", lambda *a: {text!r}, override=True)'


@pytest.mark.parametrize("answer", ["", "[]", "null", '{"machine": 3}', '{"unmet": {}}', "[" * 5000, "\x1b[2J"])
def test_upload_ignores_an_invalid_answer(own_server: Own, make: Make, answer: str) -> None:
    session = own_server(answering(answer))
    assert session.machine() is None
    session.upload(make("k.so", LACKING))


def test_upload_refuses_abis_that_the_server_lacks(own_server: Own, make: Make) -> None:
    nothing: dict[str, Any] = {"libraries": {}, "versions": {}, "contexts": [], "symbols": []}
    facts = {**vars(this_machine()), "abis": ["modern"], "portcall": "7\x1b[2J"}
    session = own_server(answering(to_json({"machine": facts, "unmet": nothing})))
    assert "called in the classic way (TVM 0.6 to 0.20), and portcall 7[2J there knows modern" in refused(
        session, make("k.so", CLASSIC)
    )
    session.upload(make("k.so", MODERN))


def test_upload_refuses_libraries_where_none_can_be_loaded(own_server: Own, make: Make) -> None:
    nothing: dict[str, Any] = {"libraries": {}, "versions": {}, "contexts": [], "symbols": ["not_asked"]}
    facts = {**vars(this_machine()), "abis": []}
    session = own_server(answering(to_json({"machine": facts, "unmet": nothing})))
    text = refused(session, make("k.so", MODERN))
    assert "static" in text
    assert "not_asked" not in text


# ---- The server's side --------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    (tmp_path / "session").mkdir()
    made = Files()
    made.enter(str(tmp_path / "session"))
    yield made
    made.close()


def needs(**facts: Any) -> str:
    none: dict[str, Any] = {"needed": [], "runpath": [], "versions": {}, "contexts": [], "symbols": []}
    return json.dumps({"build": vars(this_machine().build), "abi": "plain", **none, **facts})


def test_upload_check_loads_nothing(make: Make, tmp_path: Path) -> None:
    make("libhelper.so", HELPER)
    with (
        serving(functions=MAPS, LD_LIBRARY_PATH=str(tmp_path)) as server,
        rpc.connect(server.address) as session,
    ):
        session.upload(b"", "kept")  # the library's constructor would remove it
        asked = needs(needed=["libhelper.so"], symbols=["helper", "none"])
        unmet = json.loads(session["portcall.rpc.machine"]("k.so", asked))["unmet"]
        assert (unmet["libraries"], unmet["symbols"]) == ({}, ["none"])
        assert "libhelper" not in session["demo.maps"]()
        assert session.listdir() == ["kept"]


def test_library_check_refuses_invalid_questions(remote: rpc.Session) -> None:
    ask = remote["portcall.rpc.machine"]
    for question in ("x", "[]", "{}", needs(symbols=[1]), needs(needed=["x"] * 300), "[" * 100_000, "1" * (17 << 20)):
        with pytest.raises(ValueError, match=r"."):
            ask("k.so", question)
    with pytest.raises(TypeError, match=r"needs|argument #1"):
        ask("k.so", 3)
    with pytest.raises(PermissionError):
        ask("../k.so", needs())
    assert remote["demo.scale"](3, 4) == 12


def test_library_check_accepts_odd_names(files: Files, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("text")
    odd = ["", "/", ".", "..", "a\0b", "é", "x" * 5000, "/dev/zero", "/proc/self/mem", str(tmp_path / "text.so")]
    asked = needs(needed=odd, symbols=odd, runpath=odd)
    unmet = json.loads(files.functions["portcall.rpc.machine"]("k.so", asked))["unmet"]
    assert set(unmet["libraries"]) == set(unmet["symbols"]) == set(odd)
