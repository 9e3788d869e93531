# SPDX-License-Identifier: Apache-2.0
"""``portcall config``, the CMake package and plain make: real projects are built with what they say, and run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import portcall
from portcall import toolchain

ROOT = Path(__file__).parents[2]
KERNELS = """
#include <portcall/portcall.h>
PORTCALL_EXPORT_TYPED(config_add, [](int64_t a, int64_t b) { return a + b; })
"""
HOST = """
#include <portcall/portcall.h>
#include <cstdio>
int main(int, char** argv) {
  portcall::Module lib = portcall::Module::LoadFromFile(argv[1]);
  std::printf("%d\\n", lib["config_add"](2, 3).cast<int>());
}
"""
OBJECTS = """
#include <portcall/ir.h>
#include <cstdio>
int main() { std::printf("%s\\n", portcall::ir::SaveJson(portcall::Array<int>{7}).c_str()); }
"""
CMAKE = f"""
cmake_minimum_required(VERSION 3.16)
project(user VERSION 1.0 LANGUAGES C CXX)
find_package(portcall {portcall.__version__} REQUIRED)
find_package(portcall REQUIRED)  # a second time, as projects of several parts do
add_library(kernels MODULE kernels.cc plain.c)
set_target_properties(kernels PROPERTIES PREFIX "")
target_link_libraries(kernels PRIVATE portcall::headers)
add_executable(host host.cc)
target_link_libraries(host PRIVATE portcall::portcall)
add_executable(objects objects.cc)
target_link_libraries(objects PRIVATE portcall::ir)
"""
MAKEFILE = """
PORTCALL := $(PYTHON) -m portcall
CPPFLAGS += $(shell $(PORTCALL) config --includes)
LDLIBS += $(shell $(PORTCALL) config --ldflags)
CXXFLAGS += -std=c++17
all: kernels.so host objects
kernels.so: kernels.cc
\t$(CXX) $(CPPFLAGS) $(CXXFLAGS) -shared -fPIC $< -o $@
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "a project"
    folder.mkdir()
    for name, text in (("kernels.cc", KERNELS), ("host.cc", HOST), ("objects.cc", OBJECTS)):
        (folder / name).write_text(text)
    (folder / "plain.c").write_text("#include <portcall/c_api.h>\nint of_c(void) { return sizeof(TVMFFIAny); }\n")
    return folder


def run(*words: str | Path, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHON": sys.executable, "PATH": path}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(built: Path) -> None:
    module = portcall.load_module(built / "kernels.so")
    assert module.config_add(2, 3) == 5
    assert run(built / "host", "kernels.so", folder=built) == "5\n"
    assert "7" in run(built / "objects", folder=built)
    assert b"libportcall" not in (built / "kernels.so").read_bytes()  # it links nothing of portcall's
    assert b"libportcall_ir.so" not in (built / "host").read_bytes()


@pytest.mark.parametrize("variable", ["portcall_DIR", "CMAKE_PREFIX_PATH"])
def test_a_cmake_project_finds_portcall(
    project: Path, variable: str, invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "CMakeLists.txt").write_text(CMAKE)
    monkeypatch.delenv("CXXFLAGS", raising=False)
    place = invoke("config", "--cmake").output.strip()
    words = ("cmake", "-S", ".", "-B", "build", "-G", "Unix Makefiles", f"-D{variable}={place}")
    run(*words, folder=project)
    if variable == "portcall_DIR":  # the other one is found, that is all
        run("cmake", "--build", "build", folder=project)
        check(project / "build")


def test_a_cmake_project_that_wants_another_version_is_told(project: Path, invoke: Callable[..., Result]) -> None:
    (project / "CMakeLists.txt").write_text(CMAKE.replace(f"portcall {portcall.__version__}", "portcall 99.0"))
    place = invoke("config", "--cmake").output.strip()
    done = subprocess.run(
        ["cmake", "-S", ".", "-B", "build", f"-Dportcall_DIR={place}"],
        cwd=project, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert portcall.__version__ in done.stderr


def test_plain_make_builds_with_what_config_says(project: Path) -> None:
    (project / "Makefile").write_text(MAKEFILE)
    run("make", folder=project)
    check(project)


def test_config_shows_all_by_name_or_what_is_asked_for(
    invoke: Callable[..., Result], invoke_json: Callable[..., dict[str, str]]
) -> None:
    facts = invoke_json("config")
    assert set(facts) == {"includes", "ldflags", "libs", "cmake", "tvm_compat", "version"}
    assert facts["includes"] == f"-I{toolchain.include_dir()}"
    assert facts["version"] == portcall.__version__
    assert Path(facts["cmake"], "portcallConfig.cmake").is_file()
    assert invoke("config", "--version").output == f"{portcall.__version__}\n"
    assert invoke("config", "--includes", "--libs").output == f"{facts['includes']} {facts['libs']}\n"
    shown = invoke("config").output
    for name, text in facts.items():
        assert name in shown
        assert text in shown
    assert invoke("config", "--cflags").exit_code == 2


def test_config_names_a_source_for_programs_on_tvms_headers(invoke: Callable[..., Result]) -> None:
    source = Path(invoke("config", "--tvm-compat").output.strip())
    assert source.is_relative_to(toolchain.include_dir().parent)
    assert "Registry::Register" in source.read_text()
