# SPDX-License-Identifier: Apache-2.0
"""What apache-tvm compiles runs as it is: the same values, bit for bit, as bytecode and compiled."""

from __future__ import annotations

import pytest

from vm.compiled import MODES, Compiled, same

pytestmark = pytest.mark.peers
NAMES = (
    "perceptron", "cnn", "encoder", "branch", "loop", "tuples", "outputs", "shapes", "data", "user", "closures",
    "chain", "chain_dynamic", "sort", "argsort", "topk",
)  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_machine_results_equal_tvms(name: str, mode: str, models: Compiled, demo: None) -> None:
    function, calls, results = models.calls(name)
    run = models.machine(name, mode)[function]
    for arguments, expected in zip(calls, results, strict=True):
        assert same(run(*arguments), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_executable_listing_equals_tvms(name: str, mode: str, models: Compiled, demo: None) -> None:
    listing = models.machine(name, mode).info.listing
    assert listing.strip() == models.listing(name, mode).strip()


@pytest.mark.parametrize("mode", MODES)
def test_squeezenet_from_onnx_gives_what_tvm_gives(mode: str, squeezenet: Compiled) -> None:
    function, (arguments,), (expected,) = squeezenet.calls("squeezenet")
    assert same(squeezenet.machine("squeezenet", mode)[function](*arguments), expected)
