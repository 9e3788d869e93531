# SPDX-License-Identifier: Apache-2.0
"""A client of apache-tvm, in a process without portcall: tvm_client.py PORT SCENARIO [PATH]."""

import sys
import threading
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm import rpc

PORT = int(sys.argv[1])
FOLDER = Path(sys.argv[3]) if len(sys.argv) > 3 else Path()


def connect(**options):
    return rpc.connect("127.0.0.1", PORT, key="k", **options)


def raised(function, *arguments, kind=tvm.error.RPCError):
    try:
        function(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")


def values():
    remote = connect()
    echo = remote.get_function("testing.echo")
    long = "a text longer than seven bytes, ä"
    for value in (None, 0, -(2**63), True, 2.5, "", "short", long, b"", b"short", b"longer than seven \0"):
        result = echo(value)
        assert result == value, (value, result)
    large = bytes(range(256)) * 6000  # sent and received in parts
    assert echo(large) == large
    assert remote.get_function("demo.scale")(large, 2) == large * 2
    assert type(echo(True)) is bool
    assert echo(tvm_ffi.dtype("bfloat16")) == "bfloat16"
    assert remote.get_function("demo.scale")("ab", 2) == "abab"
    raised(remote.get_function, "no.such.function", kind=AttributeError)


def tensors():
    remote = connect()
    dev = remote.cpu(0)
    data = np.random.rand(3, 5).astype("float32")
    x = tvm.runtime.tensor(data, dev)
    np.testing.assert_array_equal(x.numpy(), data)
    remote.get_function("demo.fill")(x, 7.0)
    assert (x.numpy() == 7).all()
    x.copyfrom(data)
    y = tvm.runtime.empty((3, 5), "float32", dev)
    x.copyto(y)
    np.testing.assert_array_equal(y.numpy(), data)
    made = remote.get_function("demo.make")(10)
    np.testing.assert_array_equal(made.numpy(), np.arange(10, dtype="float32"))
    empty = tvm.runtime.empty((0, 4), "float32", dev)
    assert empty.numpy().shape == (0, 4)
    big = np.random.randint(0, 255, 1 << 20).astype("uint8")
    np.testing.assert_array_equal(tvm.runtime.tensor(big, dev).numpy(), big)
    assert remote.cpu(0).exist
    # Their client sends offset 0 for copies of a view, and the right one in calls.
    view = x._create_view((5,), "float32", 20)
    remote.get_function("demo.fill")(view, 9.0)
    assert (x.numpy()[1] == 9).all()
    np.testing.assert_array_equal(x.numpy()[0], data[0])


def functions():
    remote = connect()
    add = remote.get_function("demo.adder")(10)
    assert add(5) == 15
    for _ in range(100):
        assert remote.get_function("demo.adder")(1)(1) == 2
    shape = remote.get_function("demo.shape")(3)
    assert remote.get_function("demo.sum")(shape) == 6
    assert isinstance(remote.system_lib(), tvm.runtime.Module)


def exceptions():
    remote = connect()
    assert "boom" in raised(remote.get_function("demo.fail"), "boom")
    assert "--expose" in raised(remote.get_function, "portcall.LiveNodes")
    assert remote.get_function("testing.echo")(1) == 1
    text = raised(remote.get_function("demo.crash"), 11)
    assert "SIGSEGV" in text, text


def files():
    remote = connect()
    remote.upload(bytearray(b"hello" * 1000), "a.txt")
    assert bytes(remote.download("a.txt")) == b"hello" * 1000
    assert remote.get_function("tvm.rpc.server.listdir")("") == "a.txt"
    remote.remove("a.txt")
    remote.remove("a.txt")
    assert "cannot find file" in raised(remote.download, "a.txt")
    for path in ("/etc/passwd", "../x"):
        assert "outside" in raised(remote.download, path)
        assert "outside" in raised(remote.upload, bytearray(b"x"), path)


def use(lib, remote):
    dev = remote.cpu(0)
    x = tvm.runtime.tensor(np.arange(64, dtype="float32"), dev)
    y = tvm.runtime.empty((64,), "float32", dev)
    lib["add_one"](x, y)
    np.testing.assert_array_equal(y.numpy(), np.arange(64, dtype="float32") + 1)
    timer = lib.time_evaluator("add_one", dev, number=5, repeat=3)
    result = timer(x, y)
    assert len(result.results) == 3
    assert 0 < result.mean < 1
    flushed = lib.time_evaluator("add_one", dev, number=2, repeat=2, f_preproc="cache_flush_cpu_non_first_arg")
    assert flushed(x, y).mean > 0
    raised(lambda: lib["no_such_function"], kind=AttributeError)
    raised(lib["add_one"], x)


def modules():
    remote = connect()
    remote.upload(str(FOLDER / "kernel.so"))
    use(remote.load_module("kernel.so"), remote)
    assert "cannot find file" in raised(remote.load_module, "missing.so")


def archives():
    remote = connect()
    for name in ("kernel.so", "kernel.tar"):
        remote.upload(str(FOLDER / name))
    use(remote.load_module("kernel.tar"), remote)
    assert bytes(remote.download_linked_module("kernel.tar"))[:4] == b"\x7fELF"
    parent, child = remote.load_module("kernel.so"), remote.load_module("kernel.tar")
    parent.import_module(child)


def compiled():
    remote = connect()
    remote.upload(str(FOLDER))
    use(remote.load_module(FOLDER.name), remote)


def devices():
    remote = connect()
    remote.upload(str(FOLDER))
    lib, device = remote.load_module(FOLDER.name), remote.device("opencl", 0)
    assert device.exist
    x = tvm.runtime.tensor(np.arange(100, dtype="float32"), device)
    y = tvm.runtime.empty((100,), "float32", device)
    lib["add"](x, x, y)
    np.testing.assert_array_equal(y.numpy(), 2 * np.arange(100, dtype="float32"))
    assert lib.time_evaluator("add", device, number=3)(x, x, y).mean > 0
    with_stream = device.create_raw_stream()
    device.set_raw_stream(with_stream)
    lib["add"](y, y, x)
    device.sync(with_stream)
    np.testing.assert_array_equal(x.numpy(), 4 * np.arange(100, dtype="float32"))


def textures():
    remote = connect()
    remote.upload(str(FOLDER))
    lib, device = remote.load_module(FOLDER.name), remote.device("opencl", 0)
    array = np.arange(1024, dtype="float32").reshape(2, 8, 16, 4)
    x = tvm.runtime.empty(array.shape, "float32", device, "global.texture").copyfrom(array)
    y = tvm.runtime.empty(array.shape, "float32", device)
    lib["from_texture"](x, y)
    np.testing.assert_array_equal(y.numpy(), array[::-1, ::-1, ::-1])
    np.testing.assert_array_equal(x.numpy(), array)


def timeout():
    remote = connect(session_timeout=1)
    error = raised(remote.get_function("demo.hang"), kind=tvm.error.RPCSessionTimeoutError)
    assert "Your 1.0s session has expired" in error


def constructors():
    remote = connect(session_constructor_args=["rpc.LocalSession"])
    assert remote.get_function("testing.echo")(1) == 1
    assert "rpc.Nothing" in raised(lambda: connect(session_constructor_args=["rpc.Nothing"]))


def further():
    remote = connect(session_constructor_args=["rpc.Connect", "127.0.0.1", PORT, "k", False])
    assert remote.get_function("demo.scale")(3, 4) == 12
    x = tvm.runtime.tensor(np.arange(1000, dtype="float32"), remote.cpu(0))
    np.testing.assert_array_equal(x.numpy(), np.arange(1000, dtype="float32"))
    remote.upload(bytearray(b"further"), "a.txt")
    assert bytes(remote.download("a.txt")) == b"further"


def wrong_key():
    text = raised(lambda: rpc.connect("127.0.0.1", PORT, key="other"), kind=Exception)
    assert "cannot find server that matches key" in text


def many():
    for number in range(20):
        assert connect().get_function("demo.scale")(number, 2) == 2 * number


def together():
    failures = []

    def work(number):
        try:
            remote = connect()
            scale = remote.get_function("demo.scale")
            for k in range(50):
                assert scale(k, number) == k * number
        except BaseException as error:
            failures.append(error)

    sessions = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in sessions:
        thread.start()
    for thread in sessions:
        thread.join()
    assert not failures, failures


globals()[sys.argv[2]]()
