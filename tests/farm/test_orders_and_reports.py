# SPDX-License-Identifier: Apache-2.0
"""Orders and reports of a farm: any value of JSON is one of the list, or FarmMessageError."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.test_agents import OFFERS, ORDERS
from portcall.rpc.wire import _farm
from portcall.rpc.wire._farm import FarmMessageError, Order, Report, read_order, read_report, write

LONGEST = "t" * 512 + "@127.0.0.1"  # name of a client of TVM's tracker
# What farms and agents of portcall 0.x say, field by field; core/board says and reads the same.
ON_THE_WIRE: list[tuple[Order | Report, dict[str, Any]]] = [
    (
        _farm.Offer(3, "k:1", 60.0, True, lease="l", user="ann"),
        {"do": "offer", "fence": 3, "key": "k:1", "limit": 60.0, "relay": True, "lease": "l", "user": "ann"},
    ),
    (
        _farm.Admit(3, "k:2"),
        {"do": "admit", "fence": 3, "key": "k:2", "limit": 0, "relay": False, "lease": "", "user": ""},
    ),
    (
        _farm.Offer(3, "k:1", user=LONGEST),
        {"do": "offer", "fence": 3, "key": "k:1", "limit": 0, "relay": False, "lease": "", "user": LONGEST},
    ),
    (_farm.End(3, "released"), {"do": "end", "fence": 3, "why": "released", "lease": "", "user": ""}),
    (_farm.Accepted(3, "k:1"), {"what": "accepted", "fence": 3, "key": "k:1"}),
    (_farm.Declined(3, "full"), {"what": "declined", "fence": 3, "why": "full"}),
    (_farm.Admitted(3, "k:2"), {"what": "admitted", "fence": 3, "key": "k:2"}),
    (_farm.Opened(3, "7"), {"what": "opened", "fence": 3, "session": "7"}),
    (_farm.Closed(3, "7", "left"), {"what": "closed", "fence": 3, "session": "7", "why": "left"}),
    (_farm.Ended(3), {"what": "ended", "fence": 3}),
    (_farm.Cleaned(3), {"what": "cleaned", "fence": 3, "why": ""}),
]  # fmt: skip
WRONG_REPORTS: list[Any] = [
    None, 7, "ended", [], {}, {"what": "danced", "fence": 1}, {"what": ["ended"], "fence": 1}, {"what": "ended"},
    {"what": "ended", "fence": "1"}, {"what": "ended", "fence": True}, {"what": "ended", "fence": -1},
    {"what": "ended", "fence": 1 << 60}, {"what": "opened", "fence": 1}, {"what": "closed", "fence": 1, "session": 7},
    {"what": "opened", "fence": 1, "session": "\ud800"}, {"what": "admitted", "fence": 1},
    {"what": "admitted", "fence": 1, "key": "k 1"}, {"what": "declined", "fence": 1, "why": 7},
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def read(said: object) -> Order | Report:
    return read_order(said) if isinstance(said, dict) and "do" in said else read_report(said)


@pytest.mark.parametrize(("message", "said"), ON_THE_WIRE)
def test_order_or_report_is_the_same_object_of_json_in_every_version(
    message: Order | Report, said: dict[str, Any]
) -> None:
    assert write(message) == said
    assert read(json.loads(json.dumps(said))) == message
    found = read({**said, "of a later version": [1]})
    assert found == message
    types = get_type_hints(type(found))
    assert all(type(getattr(found, name)) is kind for name, kind in types.items())  # messages of the server are strict


def test_every_order_and_report_is_in_the_list() -> None:
    listed: list[type[Order] | type[Report]] = [*_farm.ORDERS.values(), *_farm.REPORTS.values()]
    assert {type(message) for message, _ in ON_THE_WIRE} == set(listed)
    for cls in listed:
        assert fields(cls)[0].name == "fence"  # which the answer to a wrong offer needs
        assert {field.name for field in fields(cls)} <= _farm._CHECKS.keys()
        assert set(get_type_hints(cls).values()) <= {int, float, str, bool}


@pytest.mark.parametrize("said", [*ORDERS, *({"do": "offer", "fence": 1, **offer} for offer in OFFERS)], ids=repr)
def test_read_order_refuses_what_cannot_be_carried_out(said: Any) -> None:
    with pytest.raises(FarmMessageError) as caught:
        read_order(said)
    if isinstance(said, dict) and said.get("do") == "offer":
        assert (caught.value.name, caught.value.fence) == ("offer", 1)


@pytest.mark.parametrize("said", WRONG_REPORTS, ids=repr)
def test_read_report_refuses_what_is_none(said: Any) -> None:
    with pytest.raises(FarmMessageError):
        read_report(said)


@given(st.sampled_from(ON_THE_WIRE), st.data())
def test_damaged_order_or_report_is_one_of_the_list_or_an_error(
    pair: tuple[Order | Report, dict[str, Any]], data: st.DataObject
) -> None:
    said = dict(pair[1])
    said[data.draw(st.sampled_from(sorted(said)))] = data.draw(JSON)
    try:
        message = read(said)
    except FarmMessageError:
        return
    assert read(json.loads(json.dumps(write(message)))) == message
