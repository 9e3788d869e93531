# SPDX-License-Identifier: Apache-2.0
"""A graph of a million objects goes through everything, in a process of its own, in less than 2 GB."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODE = """
import json, pickle, random, resource, portcall

@portcall.register_object("test.million.Node")
class Node(portcall.Object):
    value: int
    left: object = None
    right: object = None

def graph():
    draw, nodes = random.Random(7), []
    for i in range({size}):
        before = nodes[draw.randrange(i)] if i else None
        nodes.append(Node(i, nodes[-1] if nodes else None, before))
    return nodes[-1]

one, other = graph(), graph()
assert portcall.ir.structural_equal(one, other)
number = portcall.ir.structural_hash(one)
assert number == portcall.ir.structural_hash(other)
del other
for save, load in (
    (portcall.ir.save_json, portcall.ir.load_json),
    (portcall.ir.to_bytes, portcall.ir.from_bytes),
    (pickle.dumps, pickle.loads),
):
    again = load(save(one))
    assert portcall.ir.first_mismatch(one, again) is None
    assert portcall.ir.structural_hash(again) == number
    assert portcall.ir.to_bytes(again) == portcall.ir.to_bytes(one)
    del again
assert len(portcall.ir.walk(one, Node)) == {size}
changed = portcall.ir.rewrite(one, lambda node: node.replace(value=-1) if node.value == {size} // 2 else None, Node)
assert str(portcall.ir.first_mismatch(one, changed)).endswith(".value: {half} != -1")
print(json.dumps([number, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


EXPECTED = 5680317007618864492  # the hash is the same in every process, on every machine


@pytest.mark.campaign
def test_ir_operations_on_a_million_objects() -> None:
    size = 1_000_000
    code = CODE.replace("{size}", str(size)).replace("{half}", str(size // 2))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    number, most = json.loads(done.stdout)
    assert number == EXPECTED
    assert most < 2e9, f"{most / 1e9:.2f} GB"
    print(f"{most / 1e9:.2f} GB at most")
