# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="misc, no-any-return"
"""TVM's tracker protocol on a farm: recorded messages, and what TVM's tracker does wrong."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import portcall
from farm.running import TRACKER, RunningFarm, TrackerPeer, running_farm
from portcall import errors
from portcall.farm import _tracker
from portcall.farm._model import Rules
from portcall.farm._tracker_wire import message

CAPTURES = Path(__file__).with_name("tracker_captures.txt")


@pytest.fixture
def farm() -> Iterator[RunningFarm]:
    with running_farm() as farm:
        yield farm


def captures() -> list[Any]:
    found = []
    for block in CAPTURES.read_text(encoding="utf-8").split("\n\n")[2:]:
        title, *lines = block.strip().splitlines()
        found.append(pytest.param(lines, id=title.removeprefix("# ")))
    return found


def same_answer(request: Any, ours: Any, theirs: Any) -> bool:
    """Compare answers, where ours may say more: words behind match keys, keys of open grants, no empty queues."""
    if request == [7]:
        return set(ours) >= set(theirs)
    if isinstance(theirs, list) and len(theirs) == 2 and isinstance(theirs[1], dict):
        queues, known = ours[1]["queue_info"], theirs[1]["queue_info"]
        empty = {"free": 0, "pending": 0}
        servers = {json.dumps(s, sort_keys=True) for s in ours[1]["server_info"]}
        return all(queues.get(key, empty) == known.get(key, empty) for key in {*queues, *known}) and servers == {
            json.dumps(s, sort_keys=True) for s in theirs[1]["server_info"]
        }
    if isinstance(theirs, list) and len(theirs) == 2 and isinstance(theirs[1], list):
        host, port, key = ours[1]
        return [ours[0], [host, port, key.partition(" -")[0]]] == theirs
    return bool(ours == theirs)


@pytest.mark.parametrize("lines", captures())
def test_tracker_answers_recorded_messages_as_tvm(farm: RunningFarm, lines: list[str]) -> None:
    peers: dict[str, TrackerPeer] = {}
    asked: dict[str, Any] = {}
    for line in lines:
        number, direction, body = line.split(" ", 2)
        if number not in peers:
            peers[number] = TrackerPeer(farm, greet=False)
        peer = peers[number]
        if body == "closes" and direction == ">":
            peer.sock.shutdown(socket.SHUT_WR)
            assert peer.sock.recv(1) == b""
        elif body == "closes":  # ours says why before
            left = b"".join(iter(lambda peer=peer: peer.sock.recv(4096), b""))
            assert not left or json.loads(left[4:])[0] == -1
        elif body.startswith("hex "):
            peer.sock.sendall(bytes.fromhex(body[4:]))
        elif direction == ">":
            asked[number] = body
            peer.sock.sendall(TRACKER) if body == "magic" else peer.send(body)
        elif body == "magic":
            assert peer.receive_exactly(4) == TRACKER
        else:
            try:
                request = json.loads(asked[number])
            except ValueError:
                request = None
            answer = peer.receive()
            assert same_answer(request, json.loads(answer), json.loads(body)), answer
    for peer in peers.values():
        peer.close()


def served(farm: RunningFarm, key: str = "k", port: int = 7000) -> TrackerPeer:
    peer = TrackerPeer(farm)
    assert peer.ask(json.dumps([5, {"key": f"server:{key}", "addr": [None, port]}])) == "0"
    assert peer.ask(json.dumps([3, key, [port, f"{key}:0.5"], None])) == "0"
    return peer


def queue(peer: TrackerPeer, key: str) -> dict[str, int]:
    return json.loads(peer.ask("[6]"))[1]["queue_info"].get(key, {"free": 0, "pending": 0})


def test_tracker_plain_answer_is_one_byte(farm: RunningFarm) -> None:
    with TrackerPeer(farm) as peer:
        peer.send("[1]")
        assert peer.receive_exactly(5) == b"\x01\x00\x00\x00\x30"


@pytest.mark.parametrize("split", [1, 3, 4, 6, 11])
def test_tracker_reads_messages_in_any_split(farm: RunningFarm, split: int) -> None:
    with TrackerPeer(farm, greet=False) as peer:
        data = TRACKER + b"\x03\x00\x00\x00[1]"
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sock.sendall(data[:split])
        peer.sock.sendall(data[split:])
        assert peer.receive_exactly(4) == TRACKER
        assert peer.receive() == "0"


def test_tracker_entries_end_with_their_connection(farm: RunningFarm) -> None:
    with TrackerPeer(farm) as other:
        for put in ('[3, "k", [1, "no-colon"], null]', '[3, "k", [1, "other:0.1"], null]'):
            with TrackerPeer(farm) as peer:
                assert peer.ask(put) == "0"
                assert queue(other, "k") == {"free": 1, "pending": 0}
            farm.until(lambda: not farm.state.places)
            assert json.loads(other.ask("[6]"))[1]["queue_info"] == {"k": {"free": 0, "pending": 0}}


def test_tracker_match_key_put_twice_is_one_resource(farm: RunningFarm) -> None:
    with served(farm) as server, TrackerPeer(farm) as one, TrackerPeer(farm) as two:
        server.ask('[3, "k", [7000, "k:0.5"], null]')
        assert json.loads(one.ask('[4, "k", "", 1]'))[1][1] == 7000
        two.send('[4, "k", "", 1]')
        farm.until(lambda: farm.state.queue.size == 1)
        assert queue(one, "k") == {"free": 0, "pending": 1}


def test_tracker_forgets_waiting_clients_that_leave(farm: RunningFarm) -> None:
    with TrackerPeer(farm) as watcher:
        for _ in range(20):
            with TrackerPeer(farm) as peer:
                peer.send('[4, "absent", "", 1]')
        farm.until(lambda: not farm.state.leases)
        assert queue(watcher, "absent") == {"free": 0, "pending": 0}


def test_tracker_malformed_message_closes_one_connection(farm: RunningFarm) -> None:
    nonsense = [
        '[5, {"key": 5}]', '[5, {"key": "k", "addr": []}]', '[3, "k", [1]]', '[3, "k", ["x", "k:1"], null]', "[4]",
        '[4, "k", "", "high"]', "[4, [1], 0, 1]", '[3, "a b", [1, "a b:0.1"], null]', '[3, "", [1, "k"], null]',
        "[[]]", "{}", "nan", "[" * 5000, '[3, "k", [70000, "k:0.1"], null]', '[5, {"key": "k", "addr": ["h", 1], "x": "'
        + "y" * 20_000 + '"}]',
    ]  # fmt: skip
    with served(farm) as server:
        for text in nonsense:
            with TrackerPeer(farm) as peer:
                code, why = json.loads(peer.ask(text))
                assert code == -1
                assert why
                assert peer.sock.recv(1) == b"", text
        with TrackerPeer(farm) as peer:
            peer.sock.sendall(b"\x02\x00\x00\x00\xff\xfe")
            assert json.loads(peer.receive())[0] == -1
        assert server.ask("[1]") == "0"


def test_tracker_ignores_an_info_with_a_number_as_key(farm: RunningFarm) -> None:
    with TrackerPeer(farm) as odd, TrackerPeer(farm) as other:
        odd.ask('[5, {"key": 7, "addr": [null, 1]}]')
        assert json.loads(other.ask("[6]"))[0] == 0


def test_tracker_lets_others_go_first_after_each_moment(farm: RunningFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tracker, "_TURN", -1.0)

    def flood() -> int:
        [tracker] = farm.server._trackers
        tracker.data_received(message([1]) * 50 + message([3, "k"]) + message([1]))
        return len(tracker._left)

    with TrackerPeer(farm) as peer:
        peer.ask("[1]")
        assert farm.do(flood) == 51
        assert [peer.receive() for _ in range(50)] == ["0"] * 50
        assert json.loads(peer.receive())[0] == -1
        assert peer.sock.recv(1) == b""


def test_tracker_facts_of_a_connection_stay_small(farm: RunningFarm) -> None:
    with TrackerPeer(farm) as peer:
        said = [peer.ask(json.dumps([5, {"key": "server:k", "addr": [None, 1], name: "y" * 9000}])) for name in "ab"]
    assert said[0] == "0"
    assert json.loads(said[1])[0] == -1


def test_tracker_shows_others_no_facts_that_stop_their_tools(farm: RunningFarm) -> None:
    with TrackerPeer(farm) as odd, TrackerPeer(farm) as deep, TrackerPeer(farm) as other:
        assert odd.ask('[5, {"key": "server", "addr": [null, 1]}]') == "0"  # what is after the colon they print
        facts = f'{{"key": "server:k", "addr": [null, 1], "more": {"[" * 900 + "]" * 900}}}'
        assert json.loads(deep.ask(f"[5, {facts}]"))[0] == -1
        assert json.loads(other.ask("[6]"))[1]["server_info"] == []


@pytest.mark.parametrize("priority", ["NaN", "1e400", "-1e400", "true", "-3", "2.5"])
def test_tracker_accepts_any_number_as_priority(farm: RunningFarm, priority: str) -> None:
    with served(farm), TrackerPeer(farm) as peer:
        assert json.loads(peer.ask(f'[4, "k", "", {priority}]'))[0] == 0


def test_tracker_grant_carries_lease_and_limit() -> None:
    with running_farm(rules=Rules(tvm_ceiling=90)) as farm, served(farm), TrackerPeer(farm) as peer:
        code, (host, port, key), facts = json.loads(peer.ask('[4, "k", "", 1]'))
        assert (code, host, port) == (0, "127.0.0.1", 7000)
        assert key == f"k:0.5 -timeout=90 -lease={facts['lease']}"


def test_tracker_granted_key_is_listed_until_claimed(farm: RunningFarm) -> None:
    with served(farm) as server, TrackerPeer(farm) as peer:
        assert server.ask("[7]") == '["k:0.5"]'
        peer.ask('[4, "k", "", 1]')
        assert server.ask("[7]") == '["k:0.5"]'
        farm.pass_time(farm.options.rules.claim + 1)
        assert server.ask("[7]") == "[]"
        assert server.ask('[3, "k", [7000, "k:0.6"], null]') == "0"
        assert json.loads(peer.ask('[4, "k", "", 1]'))[1][2].startswith("k:0.6")


def test_tracker_key_may_have_a_constraint(farm: RunningFarm) -> None:
    with served(farm), TrackerPeer(farm) as peer:
        peer.send('[4, "k?gpu", "", 1]')
        assert peer.ask("[1]") == "0"  # the request waits
        assert json.loads(peer.ask('[4, "k?!gpu", "", 1]'))[1][1] == 7000


def test_tracker_closes_connections_of_other_hosts() -> None:
    with running_farm(tvm_networks=("192.0.2.0/24",)) as farm, TrackerPeer(farm, greet=False) as peer:
        peer.sock.sendall(TRACKER)
        with pytest.raises((EOFError, ConnectionResetError)):
            peer.receive_exactly(4)


# ---- The one port ----


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x71\xf2", b"SSH-2.0-x\r\n", b"\x16\x03\x01\x02\x00", bytes(range(256))]
)
def test_tracker_survives_scans_and_random_bytes(farm: RunningFarm, data: bytes) -> None:
    with served(farm) as server:
        for _ in range(20):
            with TrackerPeer(farm, greet=False) as peer:
                peer.sock.sendall(data)
        assert server.ask("[1]") == "0"


def test_tracker_closes_silent_connections(farm: RunningFarm) -> None:
    farm.do(lambda: setattr(farm.server._port, "_patience", 0.05))
    with TrackerPeer(farm, greet=False) as peer:
        assert peer.sock.recv(1) == b""


def test_tracker_port_answers_http(farm: RunningFarm) -> None:
    with TrackerPeer(farm, greet=False) as peer:
        peer.sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in b"".join(iter(lambda: peer.sock.recv(4096), b""))


def test_farm_port_in_use_is_an_error(farm: RunningFarm) -> None:
    with pytest.raises(OSError, match="--port 0"):
        RunningFarm(port=farm.port)


def test_tracker_clients_leases_are_waited_for_by_their_connections_alone(farm: RunningFarm) -> None:
    with TrackerPeer(farm) as ann, TrackerPeer(farm) as server:
        ann.send('[4, "k", "ann", 1]')
        lease = farm.until(lambda: list(farm.state.leases))[0]
        for state in ("queued", "active"):
            assert farm.state.leases[lease].state == state
            with contextlib.closing(portcall.farm.FarmChannel(f"{farm.host}:{farm.port}", "")) as other:
                for what in ("wait", "renew", "session"):
                    with pytest.raises(errors.FarmError) as caught:
                        other.call(what, lease=lease, seen=1, hold=0.01)
                    assert caught.value.reason == "invalid"
            if state == "queued":
                server.ask('[3, "k", [9090, "k:1"], null]')
                assert json.loads(ann.receive())[0] == 0
            assert farm.state.leases[lease].expires == 0
