# SPDX-License-Identifier: Apache-2.0
"""Libraries that are loaded for what they register: global functions and types, by their constructors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import portcall
from portcall import errors, toolchain

SOURCE = """
#include <portcall/c_api.h>
static int answer(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = 42;
  return 0;
}
__attribute__((constructor)) static void tell(void) {
  TVMFFIObjectHandle function;
  const TVMFFIByteArray name = {"registers.answer", 16}, key = {"registers.Type", 14};
  TVMFFIFunctionCreate(0, answer, 0, &function);
  TVMFFIFunctionSetGlobal(&name, function, 0);
  TVMFFIObjectDecRef(function);
  TVMFFITypeGetOrAllocIndex(&key, -1, 1, 0, 0, kTVMFFIObject);
}
int plain(void) { return 1; }
"""
NAMES = ["registers.answer", "registers.Type"]


@pytest.fixture(autouse=True)
def removed() -> Iterator[None]:
    yield
    portcall.remove_global_func(NAMES[0])


def compiled(source: str, output: Path) -> Path:
    file = output.with_suffix(".c")
    file.write_text(source)
    return toolchain.create_shared(file, output)


def test_load_module_takes_a_library_that_only_registers(tmp_path: Path) -> None:
    path = compiled(SOURCE, tmp_path / "registers.so")
    module = portcall.load_module(path)
    assert module.registered in (NAMES, NAMES[:1])  # the type stays, when another test has loaded its library
    assert NAMES[0] in repr(module)
    assert (module.list_function_names(), "plain" in module) == ([], False)
    assert portcall.get_global_func("registers.answer")() == 42
    assert portcall.load_module(path).registered == module.registered
    with pytest.raises(errors.FunctionNotFoundError):
        module.get_function("plain")


def test_load_module_that_is_refused_names_what_constructors_registered(tmp_path: Path) -> None:
    blob = "const char __tvm_ffi__library_bin[4] = {1};"
    path = compiled(SOURCE + blob, tmp_path / "refused.so")
    with pytest.raises(errors.ModuleLoadError) as caught:
        portcall.load_module(path)
    assert f"'{NAMES[0]}'" in str(caught.value)  # the type may have been there
