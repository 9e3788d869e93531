# SPDX-License-Identifier: Apache-2.0
"""What is said about a library before it is loaded: its era, its functions, its needs, and what will go wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import portcall
from portcall import _compilers, toolchain
from portcall.errors import ModuleLoadError
from portcall.inspect import LibraryReport, inspect_library

MODERN = """
#include <portcall/c_api.h>
int (*__TVMBackendParallelLaunch)(void*, void*, int);
void* __tvm_ffi__library_ctx;
int __tvm_ffi_add(void* h, const TVMFFIAny* a, int32_t n, TVMFFIAny* r) {
  const char* parts[] = {"no"};
  TVMFFIErrorSetRaisedFromCStrParts("ValueError", parts, 1);
  return -1;
}
int __tvm_ffi_main(void* h, const TVMFFIAny* a, int32_t n, TVMFFIAny* r) { return __tvm_ffi_add(h, a, n, r); }
int __tvm_ffi__doc_add(void* h, const TVMFFIAny* a, int32_t n, TVMFFIAny* r) { return 0; }
"""
CLASSIC = """
void* __tvm_module_ctx;
int (*__TVMFuncCall)(void);
const char __tvm_main__[] = "scale";
int scale(void* args, int* codes, int n, void* ret, int* ret_code, void* resource) { return 0; }
"""
PORTCALL_CPP = """
#include <portcall/portcall.h>
PORTCALL_EXPORT_TYPED(mul, [](int64_t a, int64_t b) { return a * b; })
"""


def made(folder: Path, text: str, *options: str, name: str = "k.c", target: str | None = None) -> Path:
    source = folder / name
    source.write_text(text)
    return toolchain.create_shared(source, folder / f"{source.stem}.so", target=target, options=options)


def inspected(folder: Path, text: str, *options: str, name: str = "k.c", target: str | None = None) -> LibraryReport:
    return inspect_library(made(folder, text, *options, name=name, target=target))


def test_inspect_library_describes_a_modern_library(tmp_path: Path) -> None:
    report = inspected(tmp_path, MODERN)
    assert (report.abi, report.origin, report.kind) == ("modern", "TVM 0.22 or later", "shared")
    assert report.functions == ("add",)
    assert report.entry
    assert report.documented == ("add",)
    assert report.contexts == ("__TVMBackendParallelLaunch", "__tvm_ffi__library_ctx")
    assert report.runtime_imports == ("TVMFFIErrorSetRaisedFromCStrParts",)
    assert [Path(dependency.path).name for dependency in report.needed] == [d.name for d in report.needed]
    assert (report.missing, report.problems) == ((), ())


def test_inspect_library_recognises_portcall_headers(tmp_path: Path) -> None:
    report = inspected(tmp_path, PORTCALL_CPP, name="k.cc")
    assert (report.abi, report.origin) == ("modern", "C++ on portcall's headers")
    assert report.functions == ("mul",)
    assert (report.missing, report.problems) == ((), ())


def test_inspect_library_describes_a_classic_library(tmp_path: Path) -> None:
    report = inspected(tmp_path, CLASSIC)
    assert (report.abi, report.origin) == ("classic", "TVM 0.6 to 0.20")
    assert (report.functions, report.entry) == (("scale",), True)
    assert report.contexts == ("__TVMFuncCall", "__tvm_module_ctx")
    assert report.problems == ()


def test_inspect_library_recognises_tvm_0_21(tmp_path: Path) -> None:
    report = inspected(tmp_path, "void* __tvm_ffi_library_ctx; int f(void) { return 0; }")
    assert (report.abi, report.functions) == ("modern 0.21", ("f",))


# Names that libraries of the eras define, the functions that can be found in each, and the era.
ERAS = {
    "void* __tvm_ffi_library_ctx; int f(void) { return 0; }": ("modern 0.21", ("f",)),
    "void* __tvm_ffi_library_ctx; int __tvm_ffi_g(void) { return 0; } int f(void) { return 0; }": ("modern", ("g",)),
    "void* __TVMFFIFunctionCall; int f(void) { return 0; }": ("modern 0.21", ("f",)),
    "void* __TVMFFIFunctionCall; int __tvm_ffi_g(void) { return 0; }": ("modern", ("g",)),
    "void* __TVMFFIHandleDeinitOnce; int __tvm_ffi_g(void) { return 0; }": ("modern", ("g",)),
    "int __tvm_ffi___own(void) { return 0; } int __tvm_ffi__kept(void) { return 0; }": ("modern", ("__own",)),
    "int __tvm_ffi_data; int __tvm_ffi_g(void) { return 0; }": ("modern", ("g",)),
    "void* __tvm_module_ctx; int f(void) { return 0; }": ("classic", ("f",)),
    'const char __tvm_main__[] = "f"; int f(void) { return 0; }': ("classic", ("f",)),
    "int portcall_abi_version; int f(void) { return 0; }": ("plain", ("f",)),
}


@pytest.mark.parametrize(("source", "expected"), ERAS.items())
def test_inspect_library_and_load_module_find_the_same_functions(
    tmp_path: Path, source: str, expected: tuple[str, tuple[str, ...]]
) -> None:
    library = made(tmp_path, source)
    report = inspect_library(library)
    assert (report.abi, report.functions) == expected
    assert report.problems == ()
    assert tuple(portcall.load_module(library).list_function_names()) == report.functions


ADDS_A_CONTEXT = """
#include <portcall/c_api.h>
static int data;
int __tvm_ffi_add_context(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  return TVMFFIEnvModRegisterContextSymbol("__TVMThatIsAdded", &data);
}
"""


def test_inspect_library_knows_registered_context_variables(tmp_path: Path) -> None:
    library = made(tmp_path, "void* __TVMThatIsAdded; int __tvm_ffi_g(void) { return 0; }")
    assert "__TVMThatIsAdded" in inspect_library(library).problems[0]
    portcall.load_module(made(tmp_path, ADDS_A_CONTEXT, name="add.c"))["add_context"]()
    assert inspect_library(library).problems == ()


def test_inspect_library_lists_exports_of_a_plain_library(tmp_path: Path) -> None:
    report = inspected(tmp_path, "int f(void) { return 0; } int _private(void) { return 0; } int data;")
    assert (report.abi, report.functions, report.contexts) == ("plain", ("f",), ())


def test_inspect_library_lists_embedded_modules_as_a_tree(tmp_path: Path) -> None:
    def word(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode()

    body = struct.pack("<6Q", 3, 0, 1, 1, 1, 1) + word("_lib") + word("cuda") + word("kernel")
    blob = ",".join(map(str, struct.pack("<Q", len(body)) + body))
    report = inspected(tmp_path, f"const unsigned char __tvm_ffi__library_bin[] = {{{blob}}};")
    assert [(module.kind, module.nbytes, module.imports) for module in report.modules] == [
        ("_lib", None, (1,)),
        ("cuda", 6, ()),
    ]
    assert report.problems == ("it carries a module of kind 'cuda' that is damaged: build the library again",)


def test_inspect_library_embedded_module_without_a_loader_is_a_problem(tmp_path: Path) -> None:
    body = struct.pack("<5Q", 2, 0, 0, 0, 7) + b"hexagon" + struct.pack("<Q", 0)
    blob = ",".join(map(str, struct.pack("<Q", len(body)) + body))
    report = inspected(tmp_path, f"const unsigned char __tvm_ffi__library_bin[] = {{{blob}}};")
    assert report.problems == (
        "it carries a module of kind 'hexagon', which portcall cannot run here: calls into it will fail",
    )


def kernels(tag: bytes = b"") -> bytes:
    """A module with two kernels, in the layout of OpenCL, CUDA and ROCm; ``tag`` is for each argument."""

    def word(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text

    types = struct.pack("<Q", 2) + struct.pack("<BBHBBH", 3, 64, 1, 2, 32, 1)
    info = types + struct.pack("<Q", 1) + word(b"blockIdx.x") + (struct.pack("<Q", 2) + 2 * tag if tag else b"")
    return word(b"cl") + struct.pack("<Q", 2) + b"".join(2 * word(name) + info for name in (b"f", b"g")) + word(b"code")


@pytest.mark.parametrize("tag", [b"", bytes(4)], ids=["TVM 0.20", "TVM 0.21"])
def test_inspect_library_reads_kernels_of_classic_tables_and_what_follows(tmp_path: Path, tag: bytes) -> None:
    items = [b"_lib", b"opencl" + b"%", b"cuda" + b"%", b"_import_tree"]
    body = struct.pack("<Q", len(items))
    for item in items:
        kind, payload = item.rstrip(b"%"), kernels(tag) if item.endswith(b"%") else b""
        body += struct.pack("<Q", len(kind)) + kind + payload
    body += struct.pack("<5Q", 4, 0, 2, 2, 2) + struct.pack("<3Q", 2, 1, 2)
    blob = ",".join(map(str, struct.pack("<Q", len(body)) + body))
    report = inspected(tmp_path, f"const unsigned char __tvm_dev_mblob[] = {{{blob}}};")
    assert [module.kind for module in report.modules] == ["_lib", "opencl", "cuda"]
    for module in report.modules[1:]:
        assert module.nbytes == len(kernels(tag))
        assert module.kernels is not None
        assert (module.kernels.format, module.kernels.source) == ("cl", "code")
        assert [kernel.name for kernel in module.kernels.kernels] == ["f", "g"]
        assert module.kernels.kernels[0].arguments == ("handle", "float32")
        assert module.kernels.kernels[0].launch == ("blockIdx.x",)


@pytest.mark.parametrize(("name", "form"), [("opencl", "cl"), ("cuda", "cuda"), ("metal", "metal")])
def test_inspect_library_shows_the_kernels_that_tvm_compiled(libraries: dict[str, Path], name: str, form: str) -> None:
    report = inspect_library(libraries[name])
    found = report.modules[1].kernels
    assert found is not None
    assert found.format == form
    assert [kernel.name for kernel in found.kernels] == ["add_kernel", "matmul_kernel"]
    assert found.kernels[0].arguments == ("handle", "handle", "handle", "int32")
    assert sorted(found.kernels[0].launch) == ["blockIdx.x", "threadIdx.x"]
    assert "add_kernel" in found.source
    assert bool(report.problems) == (name == "metal")


def test_inspect_library_embedded_module_with_a_loader_is_fine(tmp_path: Path) -> None:
    name = "ffi.Module.load_from_bytes.mine"
    body = struct.pack("<5Q", 2, 0, 0, 0, 4) + b"mine" + struct.pack("<Q", 0)
    blob = ",".join(map(str, struct.pack("<Q", len(body)) + body))
    library = made(tmp_path, f"const unsigned char __tvm_ffi__library_bin[] = {{{blob}}};")
    assert "module of kind 'mine'" in inspect_library(library).problems[0]
    portcall.register_func(name, lambda data: None)
    try:
        assert inspect_library(library).problems == ()
    finally:
        portcall.remove_global_func(name)


def test_inspect_library_damaged_embedded_modules_are_a_problem(tmp_path: Path) -> None:
    report = inspected(tmp_path, 'const char __tvm_ffi__library_bin[] = "rubbish rubbish";')
    assert report.modules == ()
    assert "the modules inside (__tvm_ffi__library_bin) cannot be read" in report.problems[0]


def test_inspect_library_names_a_missing_symbol(tmp_path: Path) -> None:
    report = inspected(tmp_path, "int nobody_has_this(void); int f(void) { return nobody_has_this(); }")
    assert report.missing == ("nobody_has_this",)
    (problem,) = report.problems
    assert "'nobody_has_this', which no library provides: " in problem


def test_inspect_library_finds_symbols_of_process_and_needed_libraries(tmp_path: Path) -> None:
    other = made(tmp_path, "int other(void) { return 1; }", name="libother.c")
    text = 'int other(void); int puts(const char*); int f(void) { return other() + puts(""); }'
    report = inspected(tmp_path, text, str(other), "-Wl,-rpath,$ORIGIN")
    assert report.problems == ()
    other.unlink()
    report = inspect_library(report.path)
    assert report.missing == ("other",)
    assert "it needs" in report.problems[0]
    assert "libother.so" in report.problems[0]
    assert "LD_LIBRARY_PATH" in report.problems[0]


def test_inspect_library_searches_ld_library_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "elsewhere"
    place.mkdir()
    made(place, "int other(void) { return 1; }", "-Wl,-soname,libother.so", name="libother.c")
    text = "int other(void); int f(void) { return other(); }"
    library = made(tmp_path, text, f"-L{place}", "-lother")
    assert any("libother.so" in problem for problem in inspect_library(library).problems)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{place}")
    report = inspect_library(library)
    assert report.problems == ()
    assert str(place / "libother.so") in {dependency.path for dependency in report.needed}


def test_inspect_library_skips_libraries_for_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [tmp_path / "first", tmp_path / "second"]
    for place, target in zip(places, ("riscv64-linux-gnu", None), strict=True):
        place.mkdir()
        made(place, "int other(void) { return 1; }", "-Wl,-soname,libother.so", name="libother.c", target=target)
    text = "int other(void); int f(void) { return other(); }"
    library = made(tmp_path, text, f"-L{places[1]}", "-lother")
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(map(str, places)))
    report = inspect_library(library)
    assert report.problems == ()
    assert str(places[1] / "libother.so") in {dependency.path for dependency in report.needed}


def test_inspect_library_follows_needed_libraries(tmp_path: Path) -> None:
    inner = made(tmp_path, "int inner(void) { return 1; }", "-Wl,-soname,libinner.so", name="libinner.c")
    links = ("-Wl,-soname,libouter.so", "-Wl,-rpath,$ORIGIN", f"-L{tmp_path}")
    made(tmp_path, "int inner(void); int outer(void) { return inner(); }", *links, "-linner", name="libouter.c")
    text = "int outer(void); int f(void) { return outer(); }"
    library = made(tmp_path, text, f"-L{tmp_path}", "-louter", "-Wl,-rpath,$ORIGIN")
    assert inspect_library(library).problems == ()
    inner.unlink()
    assert inspect_library(library).problems[0].startswith("libouter.so needs libinner.so, ")


def test_inspect_library_names_a_missing_symbol_version(tmp_path: Path) -> None:
    script = tmp_path / "map"
    options = ("-Wl,-soname,libver.so", f"-Wl,--version-script={script}")
    script.write_text("VER_1 { global: f; };\nVER_2 { global: g; } VER_1;\n")
    made(tmp_path, "int f(void) { return 1; } int g(void) { return 2; }", *options, name="libver.c")
    text = "int g(void); int h(void) { return g(); }"
    library = made(tmp_path, text, f"-L{tmp_path}", "-lver", "-Wl,-rpath,$ORIGIN")
    assert inspect_library(library).problems == ()
    script.write_text("VER_1 { global: f; g; };\n")
    made(tmp_path, "int f(void) { return 1; } int g(void) { return 2; }", *options, name="libver.c")
    (problem,) = inspect_library(library).problems
    assert "VER_2 of libver.so, which is older here: " in problem


def test_inspect_library_describes_a_library_for_another_machine(tmp_path: Path) -> None:
    report = inspected(tmp_path, MODERN, target="riscv64-linux-gnu")
    assert (report.machine, report.abi, report.functions) == ("riscv64", "modern", ("add",))
    assert "made for riscv64 (64-bit, little-endian) and this machine is" in report.problems[0]
    assert len(report.problems) == 1
    assert {dependency.path for dependency in report.needed} <= {""}


def test_inspect_library_unknown_context_variable_is_a_problem(tmp_path: Path) -> None:
    report = inspected(tmp_path, "void* __TVMFutureFunction; void* __tvm_ffi__library_ctx;")
    assert "'__TVMFutureFunction'" in report.problems[0]


def test_inspect_library_object_file_must_be_linked_first(tmp_path: Path) -> None:
    (tmp_path / "k.c").write_text(MODERN)
    compiler = toolchain.find_compiler("c")
    _compilers.execute(
        (*compiler.command, f"-I{toolchain.include_dir()}", "-c", str(tmp_path / "k.c"), "-o", str(tmp_path / "k.o")),
        "x",
    )
    report = inspect_library(tmp_path / "k.o")
    assert (report.kind, report.functions) == ("object", ("add",))
    assert any("link it first" in problem for problem in report.problems)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "No such file"),
        (b"", "the file is empty"),
        (b"\x7fELF\2\1\1" + bytes(40), "damaged or was not copied whole"),
    ],
)
def test_inspect_library_unreadable_file_is_a_load_error(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "k.so"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModuleLoadError, match=text) as caught:
        inspect_library(path)
    assert caught.value.path == str(path)


def test_inspect_library_folder_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(ModuleLoadError, match="directory"):
        inspect_library(tmp_path)
