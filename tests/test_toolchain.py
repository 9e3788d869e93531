# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, union-attr"
"""The compiler helper: what it makes with real compilers, for which machines, and what it says when it cannot."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

import portcall
from portcall import _compilers, errors, toolchain
from portcall.errors import CompileError

PLAIN_C = "int twice(int value) { return 2 * value; }\n"
PLAIN_CPP = """
#include <numeric>
#include <vector>
extern "C" int sum_to(int n) {
  std::vector<int> all(n);
  std::iota(all.begin(), all.end(), 1);
  if constexpr (true) return std::accumulate(all.begin(), all.end(), 0);  // C++17
}
"""
# Calls into the core, which no library links: the symbol must stay undefined.
KERNEL_C = """
#include <portcall/c_api.h>
int __tvm_ffi_fail(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)args, (void)num_args, (void)result;
  TVMFFIErrorSetRaisedFromCStr("ValueError", "no");
  return -1;
}
"""
# The headers are read by Clang too, and several functions in one file are usual.
KERNEL_CPP = """
#include <portcall/portcall.h>
PORTCALL_EXPORT_TYPED(mul, [](int64_t a, int64_t b) { return a * b; })
PORTCALL_EXPORT_TYPED(size, [](portcall::TensorView x) { return static_cast<int64_t>(x.numel()); })
"""


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)


pytestmark = pytest.mark.usefixtures("no_variables")


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def undefined(path: Path) -> set[str]:
    with path.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        return {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"}


def dynamic_tags(path: Path) -> list[tuple[str, object]]:
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        return [(tag.entry.d_tag, getattr(tag, "needed", tag.entry.d_val)) for tag in section.iter_tags()]


def test_create_shared_links_c_cpp_and_objects(tmp_path: Path) -> None:
    made = toolchain.create_shared(write(tmp_path, "part.c", "int half(int v) { return v / 2; }"), tmp_path / "p.so")
    assert made == tmp_path / "p.so"
    part = tmp_path / "part.o"
    subprocess.run([*toolchain.find_compiler("c").command, "-fPIC", "-c", tmp_path / "part.c", "-o", part], check=True)
    sources = [write(tmp_path, "a.c", PLAIN_C), str(write(tmp_path, "b.cc", PLAIN_CPP)), part]
    library = ctypes.CDLL(str(toolchain.create_shared(sources, tmp_path / "all.so")))
    assert (library.twice(21), library.sum_to(10), library.half(9)) == (42, 55, 4)


def test_create_shared_compiles_c_as_c(tmp_path: Path) -> None:
    source = write(tmp_path, "c.c", "int f(void) { int class = 1; return class; }")
    assert ctypes.CDLL(str(toolchain.create_shared([source], tmp_path / "c.so"))).f() == 1


def test_create_shared_of_c_needs_no_cpp_runtime(tmp_path: Path) -> None:
    plain = toolchain.create_shared(write(tmp_path, "a.c", PLAIN_C), tmp_path / "a.so")
    assert not {name for tag, name in dynamic_tags(plain) if tag == "DT_NEEDED"} - {"libc.so.6"}
    source = "#include <math.h>\nfloat f(float v) { return erff(v); }"
    maths = toolchain.create_shared(write(tmp_path, "m.c", source), tmp_path / "m.so")
    assert ("DT_NEEDED", "libm.so.6") in dynamic_tags(maths)


def test_create_shared_finds_portcall_headers(tmp_path: Path) -> None:
    made = toolchain.create_shared(write(tmp_path, "k.c", KERNEL_C), tmp_path / "k.so")
    assert "TVMFFIErrorSetRaisedFromCStr" in undefined(made)
    tags = dict(dynamic_tags(made))
    assert "DT_BIND_NOW" not in tags
    assert not int(str(tags.get("DT_FLAGS", 0))) & 8
    assert not int(str(tags.get("DT_FLAGS_1", 0))) & 1


def test_create_shared_options_win_over_defaults(tmp_path: Path) -> None:
    source = write(tmp_path, "o.cc", 'extern "C" long f() { return ANSWER * 1000000L + __cplusplus; }')
    made = toolchain.create_shared(source, tmp_path / "o.so", options=["-DANSWER=42", "-std=c++20"])
    function = ctypes.CDLL(str(made)).f
    function.restype = ctypes.c_long
    assert function() == 42_000_000 + 202002


def test_create_shared_optimizes_for_any_processor() -> None:
    flags = toolchain.find_compiler().flags()
    assert "-O3" in flags
    assert not any(flag.startswith("-march") for flag in flags)


def test_two_builds_of_one_source_have_variables_of_their_own(tmp_path: Path) -> None:
    """Such as a type's index, which differs where the builds are on two runtimes."""
    text = 'struct Type { inline static int index = 0; }; extern "C" int next_index() { return ++Type::index; }'
    source = write(tmp_path, "t.cc", text)
    one, other = (ctypes.CDLL(str(toolchain.create_shared(source, tmp_path / name))) for name in ("a.so", "b.so"))
    assert (one.next_index(), one.next_index(), other.next_index()) == (1, 2, 1)


def test_create_shared_reads_cflags_and_cxxflags_before_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFLAGS", "-DA=1 -DB=1")
    monkeypatch.setenv("CXXFLAGS", "-std=c++20 '-DC=1' -DD=1")
    of_c = write(tmp_path, "a.c", "int of_c(void) { return 10 * A + B; }")
    of_cpp = write(tmp_path, "b.cc", 'extern "C" int of_cpp() { return 10 * C + D + (__cplusplus >= 202002); }')
    options = ["-UB", "-DB=2", "-UD", "-DD=2"]
    library = ctypes.CDLL(str(toolchain.create_shared([of_c, of_cpp], tmp_path / "o.so", options=options)))
    assert (library.of_c(), library.of_cpp()) == (12, 13)
    monkeypatch.setenv("CFLAGS", "'no end")
    with pytest.raises(CompileError, match=r"\$CFLAGS is ''no end'"):
        toolchain.create_shared(of_c, tmp_path / "o.so")


def test_create_shared_links_libraries_of_its_options(tmp_path: Path) -> None:
    toolchain.create_shared(write(tmp_path, "a.c", PLAIN_C), tmp_path / "libtwice.so")
    user = write(tmp_path, "b.c", "int twice(int); int four(int x) { return twice(twice(x)); }")
    options = ["-Werror", f"-L{tmp_path}", "-ltwice", f"-Wl,-rpath,{tmp_path}"]
    assert ctypes.CDLL(str(toolchain.create_shared(user, tmp_path / "b.so", options=options))).four(3) == 12


def test_create_shared_ends_a_compiler_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = write(tmp_path, "slow", "#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CC", str(slow))
    monkeypatch.setattr(_compilers, "STEP_LIMIT", 0.1)
    with pytest.raises(CompileError, match="no end after") as caught:
        toolchain.create_shared(write(tmp_path, "a.c", PLAIN_C), tmp_path / "a.so")
    assert caught.value.command[0] == str(slow)


def test_create_shared_replaces_a_loaded_library(tmp_path: Path) -> None:
    source = write(tmp_path, "v.c", "int version(void) { return 1; }")
    loaded = ctypes.CDLL(str(toolchain.create_shared(source, tmp_path / "v.so")))
    source.write_text("int version(void) { return 2; }")
    toolchain.create_shared(source, tmp_path / "v.so")
    assert loaded.version() == 1


def test_create_shared_failed_build_leaves_the_old_output(tmp_path: Path) -> None:
    output = write(tmp_path, "k.so", "old")
    source = write(tmp_path, "bad.cc", "int f() { return undeclared_thing; }\nint g() { return second_fault; }")
    with pytest.raises(CompileError) as caught:
        toolchain.create_shared(source, output)
    assert output.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.cc", "k.so"]
    # The compiler's text is whole, and the command can be pasted.
    error = caught.value
    assert "undeclared_thing" in error.output
    assert "second_fault" in error.output
    assert error.output in str(error)
    assert error.command[0] in str(error)
    assert "bad.cc" in str(error)


def test_create_shared_link_error_names_the_output(tmp_path: Path) -> None:
    broken = write(tmp_path, "broken.o", "not an object")
    with pytest.raises(CompileError, match=r"linking '.*out\.so' failed"):
        toolchain.create_shared(broken, tmp_path / "out.so")


@pytest.mark.parametrize(
    ("sources", "output", "kind", "text"),
    [
        ([], "a.so", ValueError, "no sources"),
        (["kernel.rs"], "a.so", ValueError, r"'\.rs' is not one of \.c"),
        (["kernel"], "a.so", ValueError, "its suffix ''"),
        (["missing.cc"], "a.so", FileNotFoundError, "'missing.cc' does not exist"),
        (["folder.c"], "a.so", FileNotFoundError, "folder.c"),
        (["good.c"], "no/such/a.so", FileNotFoundError, "the folder .* does not exist"),
        (["good.c"], "folder.c", IsADirectoryError, "it is a folder"),
    ],
)
def test_create_shared_checks_input_before_compiling(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sources: list[str],
    output: str,
    kind: type[Exception],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "good.c", PLAIN_C)
    (tmp_path / "folder.c").mkdir()
    with pytest.raises(kind, match=text):
        toolchain.create_shared(sources, output)


# Each line: the target, the source, and what ELF says about the machine. Only one C++ build for another machine:
# zig compiles a C++ runtime first, which takes a minute on a machine that never did it.
@pytest.mark.parametrize(
    ("target", "name", "text", "symbol", "machine"),
    [
        ("riscv64-linux-gnu", "k.c", KERNEL_C, "__tvm_ffi_fail", "EM_RISCV"),
        ("x86_64-linux-musl", "k.c", PLAIN_C, "twice", "EM_X86_64"),
        pytest.param(
            "aarch64-linux-gnu", "k.cc", KERNEL_CPP, "__tvm_ffi_mul", "EM_AARCH64", marks=pytest.mark.timeout(600)
        ),
    ],
)
def test_create_shared_for_another_machine(
    tmp_path: Path, target: str, name: str, text: str, symbol: str, machine: str
) -> None:
    made = toolchain.create_shared(write(tmp_path, name, text), tmp_path / "k.so", target=target)
    with made.open("rb") as file:
        elf = ELFFile(file)
        assert (elf["e_machine"], elf["e_type"], elf.elfclass) == (machine, "ET_DYN", 64)
        symbols = elf.get_section_by_name(".dynsym").get_symbol_by_name(symbol)
        assert symbols is not None
        assert symbols[0]["st_shndx"] != "SHN_UNDEF"
    assert not int(str(dict(dynamic_tags(made)).get("DT_FLAGS", 0))) & 8


def test_create_shared_for_webassembly(tmp_path: Path) -> None:
    made = toolchain.create_shared(write(tmp_path, "k.c", KERNEL_C), tmp_path / "k.wasm", target="wasm32")
    code = made.read_bytes()
    assert code[:4] == b"\0asm"
    imports, exports = wasm_section(code, 2), wasm_section(code, 7)
    assert b"TVMFFIErrorSetRaisedFromCStr" in imports
    assert b"__tvm_ffi_fail" in exports


def test_a_cpp_kernel_for_wasm32_is_refused_with_what_to_write(tmp_path: Path) -> None:
    source = write(tmp_path, "k.cc", "#include <portcall/portcall.h>\n")
    with pytest.raises(CompileError, match=r"<portcall/c_api\.h>"):
        toolchain.create_shared(source, tmp_path / "k.wasm", target="wasm32")


def wasm_section(code: bytes, wanted: int) -> bytes:
    place = 8
    while place < len(code):
        kind, size, shift = code[place], 0, 0
        place += 1
        while True:
            byte = code[place]
            place += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if kind == wanted:
            return code[place : place + size]
        place += size
    return b""


def test_find_compiler_uses_zig_without_another_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    compiler = toolchain.find_compiler("c")
    assert compiler.origin == "ziglang"
    library = ctypes.CDLL(str(toolchain.create_shared(write(tmp_path, "a.c", PLAIN_C), tmp_path / "a.so")))
    assert library.twice(4) == 8


def test_find_compiler_without_any_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(_compilers, "zig_is_installed", lambda: False)
    with pytest.raises(CompileError, match=r"no c\+\+ compiler found; install one .* or the ziglang package"):
        toolchain.find_compiler()
    with pytest.raises(CompileError, match=r"'aarch64-linux-gnu' needs the ziglang package"):
        toolchain.find_compiler(target="aarch64-linux-gnu")
    assert toolchain.compilers() == ()


def test_find_compiler_reads_cc_and_cxx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = toolchain.find_compiler("c").command[0]
    monkeypatch.setenv("CC", f"'{found}' -DANSWER=7")
    compiler = toolchain.find_compiler("c")
    assert (compiler.command, compiler.origin) == ((found, "-DANSWER=7"), "$CC")
    made = toolchain.create_shared(write(tmp_path, "a.c", "int f(void) { return ANSWER; }"), tmp_path / "a.so")
    assert ctypes.CDLL(str(made)).f() == 7


def test_find_compiler_refuses_a_variable_that_names_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match=r"\$CXX names the compiler 'no-such-compiler', which does not exist"):
        toolchain.find_compiler("c++")


def test_create_shared_compiler_that_does_not_start_is_a_compile_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = write(tmp_path, "fake", "\x7fELF rubbish")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    with pytest.raises(CompileError, match="does not start"):
        toolchain.create_shared(write(tmp_path, "a.c", PLAIN_C), tmp_path / "a.so")
    assert "does not run" in toolchain.find_compiler("c").version()


@pytest.mark.parametrize("target", ["aarch64", "", "a-b-c-d", "aarch64--gnu"])
def test_find_compiler_refuses_a_malformed_target(target: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form machine-system\[-abi\]"):
        toolchain.find_compiler("c", target)


def test_find_compiler_for_this_machine_by_name() -> None:
    name = f"{os.uname().machine}-linux-gnu"
    assert toolchain.find_compiler("c", name) == toolchain.find_compiler("c")


def test_create_shared_unknown_target_is_a_compile_error(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="nonsense"):
        toolchain.create_shared(write(tmp_path, "a.c", PLAIN_C), tmp_path / "a.so", target="nonsense-linux-gnu")


def test_compilers_have_versions() -> None:
    found = toolchain.compilers()
    assert {compiler.language for compiler in found} == {"c", "c++"}
    assert "ziglang" in {compiler.origin for compiler in found}
    for compiler in found:
        assert compiler.version()
        assert "does not run" not in compiler.version()


def test_compiler_is_asked_for_its_version_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    fake = write(tmp_path, "fake", f"#!/bin/sh\necho \"$@\" >> '{asked}'\necho GCC of the Free Software Foundation\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    for _ in range(2):
        compiler = toolchain.find_compiler("c++")
        assert "-fno-gnu-unique" in compiler.flags()
        assert compiler.version() == "GCC of the Free Software Foundation"
    assert asked.read_text().split() == ["--version"]


def test_create_executable_of_c_runs_without_python(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        "program.c",
        """
        #include <portcall/c_api.h>
        #include <stdio.h>
        int main(void) {
          TVMFFIVersion version;
          TVMFFIGetVersion(&version);
          puts("ran");
          return version.major > 100;
        }
        """,
    )
    program = toolchain.create_executable(source, tmp_path / "program")
    done = subprocess.run([program], capture_output=True, text=True, check=True, env={})
    assert done.stdout == "ran\n"
    needed = {str(name) for tag, name in dynamic_tags(program) if tag == "DT_NEEDED"}
    assert "libportcall.so" in needed
    assert not any("python" in name for name in needed)


def test_load_module_links_objects_sources_and_tar_files(tmp_path: Path) -> None:
    source = write(tmp_path, "kernel.cc", KERNEL_CPP)
    compiler = toolchain.find_compiler("c++")
    made = tmp_path / "kernel.o"
    flags = (*compiler.flags(), f"-I{toolchain.include_dir()}", "-O0")
    subprocess.run([*compiler.command, *flags, "-c", source, "-o", made], check=True, timeout=120)
    with tarfile.open(tmp_path / "kernel.tar", "w") as archive:
        archive.add(made, "lib0.o")
        archive.add(write(tmp_path, "readme.txt", "not to link"), "readme.txt")
    for name in ("kernel.o", "kernel.tar", "kernel.cc"):
        assert portcall.load_module(tmp_path / name)["mul"](6, 7) == 42
        assert (tmp_path / f"{name}.so").is_file()


def test_load_module_says_why_a_file_cannot_be_linked(tmp_path: Path) -> None:
    with pytest.raises(errors.ModuleLoadError, match=r"cannot link '.*missing\.o': .*does not exist"):
        portcall.load_module(tmp_path / "missing.o")
    with pytest.raises(errors.ModuleLoadError, match="is not a tar archive"):
        portcall.load_module(write(tmp_path, "damaged.tar", "text"))
    with tarfile.open(tmp_path / "empty.tar", "w") as archive:
        archive.add(write(tmp_path, "readme.txt", "not to link"), "readme.txt")
    with pytest.raises(errors.ModuleLoadError, match="holds nothing to link: "):
        portcall.load_module(tmp_path / "empty.tar")
    with pytest.raises(errors.CompileError):
        portcall.load_module(write(tmp_path, "damaged.o", "text"))
