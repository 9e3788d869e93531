# SPDX-License-Identifier: Apache-2.0
"""A few of onnx's node tests; ``make test-onnx`` runs all of them."""

from __future__ import annotations

import pytest

from compile import node_tests

pytestmark = pytest.mark.peers
EVERY = 40


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # onnx divides by zero when it makes its tests
def test_node_tests_that_passed_pass() -> None:
    names = node_tests.PASSES.read_text().split()[::EVERY]
    verdicts = {name: node_tests.guarded(name) for name in names}
    assert {name: verdict for name, verdict in verdicts.items() if verdict != "passed"} == {}
