# SPDX-License-Identifier: Apache-2.0
"""Servers that many tests share, and a library to send to them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from portcall import toolchain
from rpc.serving import FUNCTIONS, Serving, serving

# What scripts of apache-tvm's server register, too: see tvm_server.py.
CLIENT_FUNCTIONS = (
    FUNCTIONS
    + """
register("add")(lambda a, b: a + b)
register("iota")(lambda n: portcall.tensor(__import__("numpy").arange(n, dtype="float32")))
register("sum")(lambda x: float(x.numpy().sum()))
register("array")(lambda: portcall.Array([3, 4, 5]))
register("length")(len)
register("lose_device")(lambda: portcall.get_global_func("portcall.DeviceFailed")())
register("functions")(lambda: portcall.Array([len]))
register("imported")(lambda path: portcall.load_module(path).imported_modules[0])
register("nap")(time.sleep)
register("print")(lambda text: print(text))
register("call")(lambda f, *args: f(*args))
@register("twice")
def twice(x, y): x.numpy()[...] += 1; y.numpy()[...] += 1
@register("fill_with")
def fill_with(x, value): x.numpy()[...] = value
@register("readonly")
def readonly(x): return x.readonly
@register("raise")
def raise_(kind, text): raise getattr(__import__("builtins"), kind)(text)
class Odd(Exception): pass
@register("odd")
def odd(text): raise Odd(text)
@register("shape_of")
def shape_of(x): return ",".join(map(str, x.shape))
@register("touch")
def touch(path): open(path, "w").close()
@register("wait_for")
def wait_for(path):
    while not os.path.exists(path): time.sleep(0.005)
"""
)
KERNELS = """
#include <portcall/portcall.h>
using portcall::TensorView;
static void AddOne(TensorView x, TensorView y) {
  for (size_t i = 0; i < x.numel(); ++i) y.data<float>()[i] = x.data<float>()[i] + 1;
}
PORTCALL_EXPORT_TYPED(add_one, AddOne)
PORTCALL_EXPORT_TYPED(add, [](int64_t a, int64_t b) { return a + b; })
PORTCALL_EXPORT_TYPED(refuse, [] { PORTCALL_CHECK(false, ValueError) << "refused by the kernel"; })
"""


@pytest.fixture(scope="session")
def serving_functions() -> Iterator[Serving]:
    """A portcall server with many functions, for tests that do not harm it."""
    with serving("--key", "k", functions=CLIENT_FUNCTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Serving]:
    """A server for the tests of a file, with its functions SERVED and the options SERVER_OPTIONS."""
    options = getattr(request.module, "SERVER_OPTIONS", ())
    with serving(*options, functions=getattr(request.module, "SERVED", FUNCTIONS)) as running:
        yield running


@pytest.fixture(scope="session")
def tvm_port() -> Iterator[int]:
    """The port of a server of apache-tvm, which has the key ``k`` and serves one client at a time."""
    script = str(Path(__file__).with_name("tvm_server.py"))
    with subprocess.Popen(
        [sys.executable, script, "k"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline())
        assert server.stdin is not None
        server.stdin.close()
        assert server.wait(30) == 0


@pytest.fixture(scope="session")
def kernel_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "kernels.cc"
    path.write_text(KERNELS)
    return path


@pytest.fixture(scope="session")
def kernel_library(kernel_source: Path) -> Path:
    return toolchain.create_shared(kernel_source, kernel_source.with_suffix(".so"))
