# SPDX-License-Identifier: Apache-2.0
"""A client in Python, of a server in JavaScript: ``python_client.py portcall|tvm HOST PORT KEY``. Prints ``done``."""

import sys

import numpy as np


def error_of(call, kind):
    """Return the error that a call raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("no error came")


def check(remote, make_tensor, get_numpy, error, missing):
    """Use what test/served.ts offers."""
    echo = remote.get_function("testing.echo")
    for value in (None, True, -5, 2**40, 2.5, "", "text ✓", "x" * 5000, b"", b"\0\1", bytes(range(200))):
        assert echo(value) == value, value
    assert remote.get_function("demo.add")(1, 2) == 3
    assert remote.get_function("demo.adder")(3)(4) == 7
    assert remote.get_function("demo.later")("text") == "text, later"

    data = np.arange(6, dtype="float32").reshape(2, 3)
    tensor = make_tensor(data)
    assert remote.get_function("demo.sum")(tensor) == 15
    assert remote.get_function("demo.double")(tensor) is None
    assert (get_numpy(tensor) == 2 * data).all()
    result = remote.get_function("demo.iota")(5)
    assert get_numpy(result).tolist() == [0, 1, 2, 3, 4]
    large = np.random.default_rng(1).integers(0, 255, 3_000_001).astype("uint8")
    assert (get_numpy(make_tensor(large)) == large).all()

    items = remote.get_function("demo.list")()
    assert remote.get_function("demo.length")(items) == 3
    assert "boom" in str(error_of(lambda: remote.get_function("demo.fail")("boom"), error))
    error_of(lambda: remote.get_function("no.such.function"), missing)

    remote.upload(bytearray(b"contents"), target="a/file")
    assert bytes(remote.download("a/file")) == b"contents"
    remote.remove("a/file")


def with_portcall(host, port, key):
    import portcall.rpc

    with portcall.rpc.connect(host, port, key) as remote:
        check(remote, remote.tensor, lambda tensor: tensor.numpy(), ValueError, LookupError)
        evaluate = remote.module.time_evaluator("demo.add", remote.cpu(), number=3, repeat=2)
        assert len(evaluate(1, 2).results) == 2
        measured = portcall.bench.measure(
            lambda number, repeat: remote.module.time_evaluator("demo.add", remote.cpu(), number, repeat)(1, 2),
            3, 12, session=remote,
        )  # fmt: skip
        assert measured.verdict.known
        first, last = measured.conditions[0], measured.conditions[-1]
        assert first.time_ns < last.time_ns
        assert first.probe_ns > 0
        assert first.clock_step_ns > 0
        if first.hidden is None:  # Node, and no tab
            assert first.on_cpu_ns <= last.on_cpu_ns
            assert first.process_ns < last.process_ns
            assert first.load1 >= 0
        else:
            assert first.hidden in (0, 1)
            assert first.load1 is None
        assert remote.listdir() == []
        large = bytes(range(256)) * 20_000
        remote.upload(large, "large")
        assert remote.download("large") == large
        echo = remote.get_function("testing.echo")
        dtype, device = portcall.dtype("int8x4"), remote.cpu()
        assert echo(dtype) == dtype
        assert str(echo(device)) == "cpu:0"
        assert not remote.device("cuda:0").exist


def with_tvm(host, port, key):
    import tvm
    from tvm import rpc

    remote = rpc.connect(host, port, key)
    cpu = remote.cpu(0)
    error = RuntimeError
    check(remote, lambda array: tvm.runtime.tensor(array, cpu), lambda tensor: tensor.numpy(), error, AttributeError)


if __name__ == "__main__":
    who, host, port, key = sys.argv[1:]
    {"portcall": with_portcall, "tvm": with_tvm}[who](host, int(port), key)
    print("done")
