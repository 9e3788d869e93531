# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="index, union-attr"
"""Libraries: what a module says of itself, what it imports, how long it lives, and how bad files are refused."""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

import portcall
from portcall import errors, toolchain

MACHINES = {"x86_64": "x86-64", "aarch64": "AArch64", "riscv64": "RISC-V"}
SCRIPTS = Path(__file__).parent / "scripts"
C_NAMES = [
    "answer", "call_import", "context_is_set", "fail_silently", "first_index", "greeting", "handle_is_null",
]  # fmt: skip
PREAMBLE = """
#include <stdint.h>
typedef struct { int32_t type_index; uint32_t zero; int64_t value; } Any;
#define FUNCTION(name, number) \\
  int __tvm_ffi_##name(void* self, const Any* args, int32_t n, Any* result) { \\
    result->type_index = 1; result->value = number; return 0; }
"""

Register = Callable[..., portcall.PackedFunc]


def compile_c(source: str, output: Path, **options: Any) -> Path:
    """Compile C code that has PREAMBLE before it."""
    file = output.with_suffix(".c")
    file.write_text(PREAMBLE + source)
    return toolchain.create_shared(file, output, **options)


def copied(library: Path, path: Path) -> Path:
    path.write_bytes(library.read_bytes())
    return path


def is_mapped(stem: str) -> bool:
    """Whether this process maps a file whose name begins so, or a copy of one."""
    maps = Path("/proc/self/maps").read_text()
    return f"/{stem}" in maps or f"/memfd:{stem}" in maps


# ---- What a module says ----------------------------------------------------------------------------------------------


def test_list_function_names_is_sorted(c_libraries: dict[str, Path]) -> None:
    assert portcall.load_module(c_libraries["modern"]).list_function_names() == C_NAMES


@pytest.mark.parametrize("convert", [str, Path, lambda path: str(path).encode()], ids=["str", "Path", "bytes"])
def test_load_module_takes_str_path_or_bytes(c_libraries: dict[str, Path], convert: Callable[[Path], Any]) -> None:
    assert portcall.load_module(convert(c_libraries["modern"]))["answer"]() == 42


def test_load_module_makes_a_module_of_type_library(c_libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(c_libraries["modern"])
    assert lib.type_key == "library"
    path, names = c_libraries["modern"].resolve(), ", ".join(C_NAMES)
    assert repr(lib) == f"<portcall.Module '{path}': {names}>"
    assert lib.imported_modules == []


def test_module_call_uses_the_only_function(libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(libraries["single"])
    x, y = portcall.tensor(np.arange(5, dtype="float32")), portcall.empty((5,), "float32")
    assert lib.entry_name == "main"
    lib(x, y)
    np.testing.assert_array_equal(y.numpy(), np.arange(5) + 1)


def test_module_call_uses_the_named_entry_of_a_classic_library(c_libraries: dict[str, Path]) -> None:
    assert portcall.load_module(c_libraries["classic"]).entry_name == "add_one"


def test_module_call_without_entry_function_lists_functions(c_libraries: dict[str, Path]) -> None:
    with pytest.raises(errors.FunctionNotFoundError) as caught:
        portcall.load_module(c_libraries["modern"])()
    assert str(caught.value) == (f"a module of type 'library' has no function 'main'; there are {', '.join(C_NAMES)}")


def test_module_getitem_missing_function_proposes_similar_names(c_libraries: dict[str, Path]) -> None:
    with pytest.raises(errors.FunctionNotFoundError) as caught:
        portcall.load_module(c_libraries["modern"])["anwser"]
    assert str(caught.value) == "a module of type 'library' has no function 'anwser'; did you mean 'answer'?"
    assert (caught.value.name, caught.value.near) == ("anwser", ("answer",))


@pytest.mark.parametrize("name", ["", "__tvm_ffi__library_ctx", "_library_ctx", "__tvm_ffi_answer", "answer\0"])
def test_module_hides_names_of_the_compiler(c_libraries: dict[str, Path], name: str) -> None:
    lib = portcall.load_module(c_libraries["modern"])
    assert not lib.implements_function(name)
    with pytest.raises(errors.FunctionNotFoundError):
        lib[name]


def test_module_does_not_find_functions_of_other_libraries(c_libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(c_libraries["classic"])
    for name in ("strlen", "malloc", "dlopen"):
        assert not lib.implements_function(name)


def test_module_getitem_refuses_other_types(c_libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(c_libraries["modern"])
    for name in (3, None, b"answer"):
        with pytest.raises(errors.ArgumentError, match="expected str"):
            lib[name]


def test_get_source_of_a_library_is_an_error(c_libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(c_libraries["modern"])
    with pytest.raises(ValueError, match=r"^a module of type 'library' has no source$"):
        lib.get_source()
    with pytest.raises(ValueError, match=r"^a module of type 'library' has no source as ll$"):
        lib.get_source("ll")


# ---- Results and contexts of hand-written code -----------------------------------------------------------------------


def test_library_function_returns_values(c_libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(c_libraries["modern"])
    assert lib["answer"]() == 42
    assert lib["greeting"]() == "hi"
    assert lib["context_is_set"]() == 1


@pytest.mark.parametrize(
    ("value", "index"),
    [
        (None, 0),
        (1, 1),
        (True, 2),
        (1.5, 3),
        (portcall.DataType("int8"), 5),
        (portcall.cpu(), 6),
        ("small", 11),
        (b"", 12),
    ],
    ids=["none", "int", "bool", "float", "dtype", "device", "str", "bytes"],
)
def test_library_function_receives_type_indices(c_libraries: dict[str, Path], value: Any, index: int) -> None:
    assert portcall.load_module(c_libraries["modern"])["first_index"](value) == index


def test_library_function_receives_tensors(c_libraries: dict[str, Path]) -> None:
    first_index = portcall.load_module(c_libraries["modern"])["first_index"]
    assert first_index(portcall.empty((2,), "float32")) == 70
    assert first_index(np.zeros(2)) in (7, 70)


def test_library_function_failing_without_error_is_named(c_libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(c_libraries["modern"])
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            lib["fail_silently"]()
        assert str(caught.value).startswith("fail_silently() ")
    assert lib["answer"]() == 42


def test_library_function_failing_without_error_reports_no_earlier_one(c_libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(c_libraries["modern"])
    with pytest.raises(ValueError, match="earlier"):
        portcall.get_global_func("testing.test_raise_error")("ValueError", "earlier")
    with pytest.raises(RuntimeError, match="nonzero return"):
        lib["fail_silently"]()


# ---- Imports ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def importing(c_libraries: dict[str, Path], tmp_path: Path) -> Path:
    """A library of its own for a test, whose ``call_import`` calls portcall_test.from_import."""
    return copied(c_libraries["modern"], tmp_path / "importing.so")


def exporting(tmp_path: Path, number: int, name: str = "exporter") -> portcall.Module:
    """A library whose function ``portcall_test.from_import`` returns ``number``."""
    source = (
        f'int from_import(void*, const Any*, int32_t, Any*) __asm__("__tvm_ffi_portcall_test.from_import");\n'
        f"int from_import(void* self, const Any* args, int32_t n, Any* result) {{\n"
        f"  result->type_index = 1; result->value = {number}; return 0; }}\n"
    )
    return portcall.load_module(compile_c(source, tmp_path / f"{name}.so"))


def test_import_module_offers_functions_to_compiled_code(importing: Path, tmp_path: Path) -> None:
    importer = portcall.load_module(importing)
    importer.import_module(exporting(tmp_path, 7))
    assert importer["call_import"]() == 7


def test_import_module_offers_functions_of_nested_imports(
    importing: Path, c_libraries: dict[str, Path], tmp_path: Path
) -> None:
    importer = portcall.load_module(importing)
    between = portcall.load_module(c_libraries["classic06"])
    between.import_module(exporting(tmp_path, 8))
    importer.import_module(between)
    assert importer["call_import"]() == 8


def test_import_module_wins_over_global_functions(importing: Path, tmp_path: Path, register: Register) -> None:
    importer = portcall.load_module(importing)
    register("portcall_test.from_import", lambda *args: "global")
    importer.import_module(exporting(tmp_path, 9))
    assert importer["call_import"]() == 9


def test_library_code_calls_global_functions(importing: Path, register: Register) -> None:
    importer = portcall.load_module(importing)
    register("portcall_test.from_import", lambda *args: list(args))
    assert list(importer["call_import"](1, "two", 3.0)) == [1, "two", 3.0]


def test_library_code_missing_function_is_named(importing: Path) -> None:
    importer = portcall.load_module(importing)
    with pytest.raises(RuntimeError) as caught:
        importer["call_import"]()
    assert str(caught.value) == (
        "compiled code needs the function 'portcall_test.from_import', which no imported module has and which "
        'is not registered; register it with register_func("portcall_test.from_import", …)'
    )


def test_library_code_finds_a_function_registered_later(importing: Path, register: Register) -> None:
    importer = portcall.load_module(importing)
    with pytest.raises(RuntimeError):
        importer["call_import"]()
    register("portcall_test.from_import", lambda: "now")
    assert importer["call_import"]() == "now"


def test_get_function_searches_imports_only_if_asked(importing: Path, tmp_path: Path) -> None:
    importer = portcall.load_module(importing)
    importer.import_module(exporting(tmp_path, 10))
    name = "portcall_test.from_import"
    assert not importer.implements_function(name)
    assert importer.implements_function(name, query_imports=True)
    with pytest.raises(errors.FunctionNotFoundError):
        importer.get_function(name)
    assert importer.get_function(name, query_imports=True)() == 10


def test_get_function_searches_imports_in_order(importing: Path, tmp_path: Path) -> None:
    importer = portcall.load_module(importing)
    first, second = exporting(tmp_path, 1, "first"), exporting(tmp_path, 2, "second")
    importer.import_module(first)
    importer.import_module(second)
    assert importer.imported_modules == [first, second]
    assert importer.get_function("portcall_test.from_import", query_imports=True)() == 1


def test_import_module_keeps_the_imported_module(importing: Path, tmp_path: Path) -> None:
    importer = portcall.load_module(importing)
    importer.import_module(exporting(tmp_path, 11))
    gc.collect()
    assert importer["call_import"]() == 11


def test_import_module_refuses_cycles(importing: Path, tmp_path: Path) -> None:
    importer = portcall.load_module(importing)
    with pytest.raises(ValueError, match=r"^a module cannot import itself, not even through others$"):
        importer.import_module(importer)
    other, third = exporting(tmp_path, 1, "other"), exporting(tmp_path, 2, "third")
    importer.import_module(other)
    other.import_module(third)
    with pytest.raises(ValueError, match="not even through others"):
        third.import_module(importer)
    assert third.imported_modules == []


@pytest.mark.parametrize("other", [None, 3, "module", len], ids=str)
def test_import_module_refuses_other_values(importing: Path, other: Any) -> None:
    importer = portcall.load_module(importing)
    with pytest.raises(TypeError):
        importer.import_module(other)
    assert importer.imported_modules == []


# ---- Embedded modules ------------------------------------------------------------------------------------------------


def test_embedded_module_of_an_unknown_kind_is_kept(c_libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(c_libraries["unknown_blob"])
    (embedded,) = lib.imported_modules
    assert embedded.type_key == "portcall_unknown_kind"
    assert embedded.list_function_names() == []
    assert embedded.get_source() == embedded.get_source("bytes") == "payload"
    assert lib["answer"]() == 42


def test_embedded_module_of_an_unknown_kind_is_named_for_missing_functions(c_libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(c_libraries["unknown_blob"])
    with pytest.raises(errors.FunctionNotFoundError) as caught:
        lib["vadd"]
    assert str(caught.value).startswith(
        "a module of type 'library' has no function 'vadd' (it brings modules of types that cannot run here: "
        "portcall_unknown_kind)"
    )
    with pytest.raises(errors.FunctionNotFoundError) as caught:
        lib.imported_modules[0]["vadd"]
    assert str(caught.value) == "a module of type 'portcall_unknown_kind' cannot run here, so it has no function 'vadd'"


def test_embedded_module_of_an_unknown_kind_is_named_to_compiled_code(c_libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(c_libraries["unknown_blob"])
    with pytest.raises(RuntimeError, match=r"a module of a type that cannot run here \(portcall_unknown_kind\)"):
        lib["call_import"]()


def test_embedded_module_is_loaded_by_the_loader_of_its_kind(
    c_libraries: dict[str, Path], tmp_path: Path, register: Register
) -> None:
    payloads = []

    def load(payload: bytes) -> portcall.Module:
        payloads.append(payload)
        return exporting(tmp_path, 12)

    register("ffi.Module.load_from_bytes.portcall_unknown_kind", load)
    path = copied(c_libraries["unknown_blob"], tmp_path / "with_known_kind.so")
    lib = portcall.load_module(path)
    assert payloads == [b"payload"]
    assert lib["call_import"]() == 12


def test_embedded_module_loader_error_is_the_load_error(
    c_libraries: dict[str, Path], tmp_path: Path, register: Register
) -> None:
    error = KeyError("no device for this module")

    def load(payload: bytes) -> portcall.Module:
        raise error

    register("ffi.Module.load_from_bytes.portcall_unknown_kind", load)
    path = copied(c_libraries["unknown_blob"], tmp_path / "with_failing_kind.so")
    with pytest.raises(KeyError) as caught:
        portcall.load_module(path)
    assert caught.value is error
    error.__traceback__ = None


def test_embedded_module_damaged_is_refused_with_the_path(c_libraries: dict[str, Path]) -> None:
    path = c_libraries["corrupt_blob"]
    with pytest.raises(errors.ModuleLoadError) as caught:
        portcall.load_module(path)
    assert str(caught.value) == (
        f"cannot load '{path}': the modules embedded in the library are damaged: a length goes past the end"
    )
    assert caught.value.path == str(path)


def test_embedded_device_code_without_device_is_kept_and_reported(libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(libraries["metal"])
    assert [module.type_key for module in lib.imported_modules] == ["metal"]
    with pytest.raises(errors.FunctionNotFoundError, match="metal"):
        lib["add_kernel"]


# ---- How long a library lives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "function", "result"),
    [("modern", "answer", 42), ("unknown_blob", "answer", 42), ("classic", "first_code", -1)],
)
def test_library_is_unmapped_with_its_last_function(
    c_libraries: dict[str, Path], tmp_path: Path, name: str, function: str, result: int
) -> None:
    path = copied(c_libraries[name], tmp_path / f"lives_{name}.so")
    lib = portcall.load_module(path)
    kept = lib[function]
    del lib
    gc.collect()
    assert is_mapped(path.stem)
    assert kept() == result
    del kept
    gc.collect()
    assert not is_mapped(path.stem)


def test_library_is_unmapped_after_an_error_was_handled(c_libraries: dict[str, Path], tmp_path: Path) -> None:
    path = copied(c_libraries["modern"], tmp_path / "fails_and_goes.so")
    with pytest.raises(RuntimeError):
        portcall.load_module(path)["fail_silently"]()
    gc.collect()
    assert not is_mapped(path.stem)


def test_load_module_same_file_is_the_same_module(c_libraries: dict[str, Path], tmp_path: Path) -> None:
    lib = portcall.load_module(c_libraries["modern"])
    link = tmp_path / "link.so"
    link.symlink_to(c_libraries["modern"])
    assert portcall.load_module(c_libraries["modern"]) == lib
    assert portcall.load_module(link) == lib


def test_load_module_by_threads_at_once_is_one_module(c_libraries: dict[str, Path], tmp_path: Path) -> None:
    path = copied(c_libraries["modern"], tmp_path / "loaded_by_threads.so")
    start, found = threading.Barrier(8), []

    def load() -> None:
        start.wait()
        found.append(portcall.load_module(path))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_load_module_again_after_unmapping(c_libraries: dict[str, Path], tmp_path: Path) -> None:
    path = copied(c_libraries["modern"], tmp_path / "comes_back.so")
    for _ in range(3):
        assert portcall.load_module(path)["answer"]() == 42
        gc.collect()
        assert not is_mapped(path.stem)


CONTEXT = "void* __tvm_ffi__library_ctx;\n"  # a library that has it is mapped from a private copy


def test_load_module_private_copies_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [compile_c(f"{CONTEXT}FUNCTION(number, {i})", tmp_path / f"copied{i}.so") for i in range(3)]
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))  # the copies are in memory
    before = sorted(os.listdir("/proc/self/fd"))
    kept = [portcall.load_module(path) for path in paths]
    assert [lib["number"]() for lib in kept] == [0, 1, 2]
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_load_module_private_copy_of_a_large_library_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = f"{CONTEXT}const char large[6 << 20] = {{7}};\nFUNCTION(number, large[0])"
    path, folder = compile_c(large, tmp_path / "large.so"), tmp_path / "temporary"
    monkeypatch.setenv("TMPDIR", str(folder))
    assert str(folder) in refusal(path)
    folder.mkdir()
    assert portcall.load_module(path)["number"]() == 7
    assert not list(folder.iterdir())


def test_load_module_of_a_rebuilt_file_keeps_old_functions(tmp_path: Path) -> None:
    path = tmp_path / "rebuilt.so"
    functions = []
    for number in range(3):
        functions.append(portcall.load_module(compile_c(f"FUNCTION(number, {number})", path))["number"])
        assert [function() for function in functions] == list(range(number + 1))


def test_load_module_of_a_file_that_was_overwritten(tmp_path: Path) -> None:
    one, two = (compile_c(f"FUNCTION(number, {n})", tmp_path / f"n{n}.so").read_bytes() for n in (1, 2))
    path = tmp_path / "copied.so"
    path.write_bytes(one)
    old = portcall.load_module(path)["number"]
    fresh = tmp_path / "fresh.so"
    fresh.write_bytes(two)
    fresh.rename(path)
    assert (old(), portcall.load_module(path)["number"]()) == (1, 2)


def test_load_module_library_with_a_context_is_not_shared(c_libraries: dict[str, Path], tmp_path: Path) -> None:
    path = copied(c_libraries["modern"], tmp_path / "one_context.so")
    copy = copied(c_libraries["modern"], tmp_path / "another.so")
    one, two = portcall.load_module(path), portcall.load_module(copy)
    one.import_module(exporting(tmp_path, 1, "first"))
    two.import_module(exporting(tmp_path, 2, "second"))
    assert (one["call_import"](), two["call_import"]()) == (1, 2)


# ---- What cannot be loaded -------------------------------------------------------------------------------------------


def refusal(path: Path | str) -> str:
    """The message of the refusal to load a file, with its path as PATH."""
    with pytest.raises(errors.ModuleLoadError) as caught:
        portcall.load_module(path)
    assert caught.value.path == str(path)
    assert isinstance(caught.value, OSError)
    return str(caught.value).replace(str(path), "PATH")


def test_load_module_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.so") == "cannot open 'PATH': No such file or directory"


def test_load_module_refuses_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder.so"
    folder.mkdir()
    assert refusal(folder) == "'PATH' is not a file"


def test_load_module_refuses_an_invalid_path() -> None:
    assert (
        refusal("no_suffix") == "cannot load 'PATH': no loader for a file without suffix; a shared library ends in .so"
    )
    assert "no loader for a file without suffix" in refusal("folder.so/plain")
    assert refusal("model.json") == "cannot load 'PATH': no loader for '.json'; a shared library ends in .so"


@pytest.mark.parametrize("content", [b"", b"\x7f", b"\x7fELF", b"print('hello')\n" * 100, bytes(4096)])
def test_load_module_refuses_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.so"
    path.write_bytes(content)
    assert refusal(path) == "cannot load 'PATH': it is not an ELF shared library"


def test_load_module_refuses_an_object_file_of_a_library_name(tmp_path: Path) -> None:
    compiler = toolchain.find_compiler("c")
    (tmp_path / "object.c").write_text("int x;")
    subprocess.run([*compiler.command, "-c", tmp_path / "object.c", "-o", tmp_path / "object.so"], check=True)
    assert refusal(tmp_path / "object.so") == (
        "cannot load 'PATH': it is not a shared library (an object file or a program must be linked first)"
    )


def test_load_module_library_without_functions_says_what_to_export(tmp_path: Path) -> None:
    path = compile_c("int plain(void) { return 1; }", tmp_path / "plain.so")
    assert refusal(path) == (
        "cannot load 'PATH': it exports no function of TVM, tvm-ffi or portcall (names start with __tvm_ffi_), and "
        "registers none; export some with PORTCALL_EXPORT_TYPED, or compile it with a kernel compiler"
    )
    assert not is_mapped("plain.so")


@pytest.mark.parametrize("machine", sorted(MACHINES.keys() - {platform.machine()}))
def test_load_module_library_for_another_machine_names_both(tmp_path: Path, machine: str) -> None:
    path = compile_c("FUNCTION(number, 1)", tmp_path / "elsewhere.so", target=f"{machine}-linux-gnu")
    here = MACHINES[platform.machine()]
    assert refusal(path) == f"cannot load 'PATH': it is a library for {MACHINES[machine]}; this process runs on {here}"


def test_load_module_refuses_a_32_bit_library(tmp_path: Path) -> None:
    path = compile_c("FUNCTION(number, 1)", tmp_path / "narrow.so", target="arm-linux-gnueabihf")
    assert refusal(path) == "cannot load 'PATH': it is a 32-bit library; this process is 64-bit"


@pytest.mark.parametrize("binding", ["-Wl,-z,lazy", "-Wl,-z,now"])
def test_load_module_names_a_missing_symbol(tmp_path: Path, binding: str) -> None:
    source = "int nobody_defines_this(void);\nFUNCTION(number, nobody_defines_this())"
    path = compile_c(source, tmp_path / "incomplete.so", options=[binding])
    assert refusal(path) == (
        "cannot load 'PATH': it needs the symbol 'nobody_defines_this', which no library provides; "
        "link the library that defines it"
    )


def test_load_module_names_a_missing_symbol_of_kernels(libraries: dict[str, Path]) -> None:
    assert "'portcall_no_such_symbol'" in refusal(libraries["missing_extern"])


def test_load_module_names_a_missing_runtime_function(tmp_path: Path) -> None:
    source = "int TVMFFINoSuchFunction(void);\nFUNCTION(number, TVMFFINoSuchFunction())"
    path = compile_c(source, tmp_path / "future.so")
    assert "'TVMFFINoSuchFunction'" in refusal(path)


def test_load_module_names_a_missing_dependency(tmp_path: Path) -> None:
    other = compile_c("FUNCTION(other, 1)", tmp_path / "libneeded.so", options=["-Wl,-soname,libneeded.so"])
    path = compile_c("FUNCTION(number, 1)", tmp_path / "needy.so", options=["-Wl,--no-as-needed", f"{other}"])
    assert refusal(path) == (
        "cannot load 'PATH': libneeded.so: cannot open shared object file: No such file or directory"
    )


# ---- Damaged files ---------------------------------------------------------------------------------------------------


def outcomes(library: Path, cases: list[dict[str, Any]], folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, SCRIPTS / "load_damaged.py", library, folder],
        input=json.dumps(cases), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    assert len(found) == len(cases)
    return found


def test_load_module_refuses_truncated_libraries(c_libraries: dict[str, Path], tmp_path: Path) -> None:
    size = c_libraries["unknown_blob"].stat().st_size
    cuts = sorted({*range(0, size, size // 150), *range(1, 70), *range(size - 20, size)})
    found = outcomes(c_libraries["unknown_blob"], [{"cut": cut} for cut in cuts], tmp_path)
    wrong = {
        cut: text for cut, text in zip(cuts, found, strict=True) if not text.startswith("ModuleLoadError: cannot load")
    }
    assert not wrong


def regions(library: Path) -> dict[str, tuple[int, int]]:
    """Where those parts of a file lie that portcall reads before or after the dynamic linker: (offset, size)."""
    with library.open("rb") as file:
        elf = ELFFile(file)
        names = elf.get_section_by_name(".dynstr")
        data = next(s for s in elf.get_section_by_name(".dynsym").iter_symbols() if s.name.endswith(("_bin", "_mblob")))
        (blob,) = elf.address_offsets(data["st_value"])
        return {
            "header": (0, elf["e_ehsize"]),
            "section headers": (elf["e_shoff"], elf["e_shentsize"] * elf["e_shnum"]),
            "names": (names["sh_offset"], names["sh_size"]),
            "embedded modules": (blob, data["st_size"]),
        }


@pytest.mark.parametrize("region", ["header", "section headers", "names", "embedded modules"])
@pytest.mark.parametrize("name", ["unknown_blob", "classic_unknown_blob"])
def test_load_module_of_flipped_bits_is_an_error_or_loads(
    c_libraries: dict[str, Path], tmp_path: Path, name: str, region: str
) -> None:
    # The rest of a file (segments, relocations, code) is for the dynamic linker and the processor to judge.
    offset, size = regions(c_libraries[name])[region]
    chance = random.Random(f"{name} {region}")
    cases: list[dict[str, Any]] = [
        {
            "flip": [
                [offset + chance.randrange(size), 1 << chance.randrange(8)] for _ in range(chance.choice([1, 1, 2, 8]))
            ]
        }
        for _ in range(100)
    ]
    found = outcomes(c_libraries[name], cases, tmp_path)
    wrong = [
        (case, text)
        for case, text in zip(cases, found, strict=True)
        if text != "loads" and not text.startswith("ModuleLoadError: ")
    ]
    assert not wrong
    assert any(text != "loads" for text in found)


# ---- Modules of functions --------------------------------------------------------------------------------------------


def test_from_functions_makes_a_module_of_functions_of_any_language() -> None:
    module = portcall.Module.from_functions(
        {"double": lambda x: 2 * x, "echo": portcall.get_global_func("testing.echo"), "main": lambda: "entered"}
    )
    assert (module["double"](21), module["echo"]("x"), module()) == (42, "x", "entered")
    assert sorted(module.list_function_names()) == ["double", "echo", "main"]
    assert module.type_key == "functions"
    with pytest.raises(errors.FunctionNotFoundError) as caught:
        module["doubel"]
    assert caught.value.near == ("double",)
    outer = portcall.Module.from_functions({})
    outer.import_module(module)
    assert outer.get_function("double", query_imports=True)(1) == 2


def test_from_functions_refuses_what_is_not_callable() -> None:
    with pytest.raises(errors.ArgumentError):
        portcall.Module.from_functions({"five": 5})  # type: ignore[dict-item]


def test_export_library_writes_what_was_loaded(c_libraries: dict[str, Path], tmp_path: Path) -> None:
    lib = portcall.load_module(c_libraries["modern"])
    assert lib.is_runnable()
    for write, name in ((lib.export_library, "a.so"), (lib.save, "b.so")):
        write(tmp_path / name)
        assert portcall.load_module(tmp_path / name)["answer"]() == 42
    made = portcall.Module.from_functions({"f": len})
    for write in (made.export_library, made.save):
        with pytest.raises(ValueError, match="functions"):
            write(tmp_path / "c.so")
    assert not (tmp_path / "c.so").exists()


def test_clear_imports_forgets_imported_modules(importing: Path, tmp_path: Path) -> None:
    importer = portcall.load_module(importing)
    importer.import_module(portcall.Module.from_functions({"portcall_test.from_import": lambda: 7}))
    with pytest.raises(ValueError, match="functions"):
        importer.export_library(tmp_path / "a.so")
    importer.clear_imports()
    assert importer.imported_modules == []
    importer.export_library(tmp_path / "a.so")
    with pytest.raises(RuntimeError):
        importer["call_import"]()
