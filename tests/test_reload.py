# SPDX-License-Identifier: Apache-2.0
"""Libraries whose constructors register global functions: names that are taken, and a file that is built again.

Each test runs in a process of its own: what a library registers stays.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

START = """
import portcall
from portcall import errors, toolchain

def build(name, **functions):
    lines = ["#include <portcall/portcall.h>", "PORTCALL_EXPORT_TYPED(version, [] { return %d; })" % build.count]
    for function, value in functions.items():
        lines.append('PORTCALL_REGISTER_GLOBAL("lib.%s").set_body_typed([] { return %s; });' % (function, value))
    build.count += 1
    with open("source.cc", "w") as file:
        file.write("\\n".join(lines) + "\\n" + build.more)
    return toolchain.create_shared("source.cc", name + ".so", options=("-O0",))

build.count, build.more = 1, ""
get = portcall.get_global_func

def fails(path):
    try:
        portcall.load_module(path)
    except errors.ModuleLoadError as error:
        return str(error)
"""


def run(folder: Path, code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START + code], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_load_module_of_a_rebuilt_library_takes_over_its_global_functions(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
first = portcall.load_module(build("lib", answer=41, old=1))
answer, held = get("lib.answer"), get("lib.old")
second = portcall.load_module(build("lib", answer=42, new=2))
assert (first["version"](), second["version"]()) == (1, 2)
assert (answer(), get("lib.answer")(), get("lib.new")()) == (41, 42, 2)
assert get("lib.old", allow_missing=True) is None  # the file no longer has it
assert held() == 1

# The same file, once nobody holds its module: it is the same mapping, or one that takes over.
del first, second
assert portcall.load_module("lib.so")["version"]() == 2
assert get("lib.answer")() == 42
""",
    )


def test_load_module_again_of_a_library_with_context_variables(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
build.more = 'extern "C" { __attribute__((visibility("default"))) void* __tvm_ffi__library_ctx = nullptr; }'
path = build("lib", answer=42)
for _ in range(3):
    assert portcall.load_module(path)["version"]() == 1
    assert get("lib.answer")() == 42
""",
    )


def test_load_module_refuses_global_names_of_another_library(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
mine = portcall.register_func("lib.mine", lambda: "mine")
path = build("taken", mine=1)
assert fails(path).startswith(f"cannot load '{path}': a global function 'lib.mine' is already registered"), fails(path)
assert get("lib.mine")() == "mine"
one = build("one", answer=1)
portcall.load_module(one)
two = build("two", answer=2)
message = fails(two)
assert message.startswith(f"cannot load '{two}': ") and str(one) in message, message
assert get("lib.answer")() == 1
assert "remove_global_func" in message and "override" not in message, message
portcall.remove_global_func("lib.answer")
portcall.load_module(two)
assert get("lib.answer")() == 2
# Corrected and built again, it loads; what the user replaces is the user's.
portcall.load_module(build("taken", other=3))
portcall.register_func("lib.other", lambda: "mine", override=True)
assert "already registered" in fails(build("taken", other=4))
assert get("lib.other")() == "mine"
""",
    )


def test_load_module_of_a_private_copy_names_the_users_file(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
portcall.load_module(build("lib", answer=1))
build.more = 'extern "C" int nobody_has_it(); int x = nobody_has_it();'
path = build("lib", answer=2)
message = fails(path)
assert str(path) in message and "nobody_has_it" in message and "/proc/self/fd" not in message, message
build.more = 'struct Big { char bytes[1 << 24]; }; thread_local Big big; Big* f() { return &big; }'
path = build("lib", answer=3)
toolchain.create_shared("source.cc", "lib.so", options=("-O0", "-ftls-model=initial-exec"))
message = fails(path)
assert str(path) in message and "/proc/self/fd" not in message, message
assert get("lib.answer")() == 1
""",
    )


def test_load_module_library_may_register_testing_names(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
build.more = 'PORTCALL_REGISTER_GLOBAL("testing.echo").set_body_typed([](int x) { return x + 1; });'
assert get("testing.echo")("text") == "text"
portcall.load_module(build("lib"))
assert get("testing.echo")(1) == 2
try:
    portcall.register_func("testing.nop", len)
except errors.AlreadyRegisteredError:
    pass
else:
    raise AssertionError("Python passes override")
""",
    )
