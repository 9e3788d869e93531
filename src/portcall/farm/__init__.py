# SPDX-License-Identifier: Apache-2.0
"""The farm: many boards, many people. Places are leased, requests wait in a fair queue, a restart loses nothing::

    with portcall.farm.connect("lab:9190") as farm, farm.lease("rasp4") as lease, lease.session() as session:
        session.upload("kernels.so")

A farm is a command, ``portcall farm``. Running one needs the extra ``portcall[farm]``; users and boards need
nothing more.
"""

import importlib
from typing import TYPE_CHECKING, Any

from portcall._renamed import no_attribute as _no_attribute
from portcall.extras import needed as _needed

if TYPE_CHECKING:
    from portcall.farm._executor import Executor as Executor
    from portcall.farm._executor import measure as measure
    from portcall.farm._model import Rules as Rules
    from portcall.farm._ranking import Ranked as Ranked
    from portcall.farm._ranking import rank as rank
    from portcall.farm._run import serve as serve
    from portcall.farm._server import FarmOptions as FarmOptions
    from portcall.rpc.client._farm import Farm as Farm
    from portcall.rpc.client._farm import Lease as Lease
    from portcall.rpc.client._farm import connect as connect
    from portcall.rpc.client._farm_async import AsyncFarm as AsyncFarm
    from portcall.rpc.client._farm_async import AsyncLease as AsyncLease
    from portcall.rpc.client._farm_async import connect_async as connect_async
    from portcall.rpc.client._farm_channel import FarmChannel as FarmChannel
    from portcall.rpc.server._agent import Agent as Agent
    from portcall.rpc.server._agent import PlaceOptions as PlaceOptions

_HOMES = {
    "Agent": "portcall.rpc.server._agent",
    "AsyncFarm": "portcall.rpc.client._farm_async",
    "AsyncLease": "portcall.rpc.client._farm_async",
    "Executor": "portcall.farm._executor",
    "Farm": "portcall.rpc.client._farm",
    "FarmChannel": "portcall.rpc.client._farm_channel",
    "FarmOptions": "portcall.farm._server",
    "Lease": "portcall.rpc.client._farm",
    "PlaceOptions": "portcall.rpc.server._agent",
    "Ranked": "portcall.farm._ranking",
    "Rules": "portcall.farm._model",
    "connect": "portcall.rpc.client._farm",
    "connect_async": "portcall.rpc.client._farm_async",
    "measure": "portcall.farm._executor",
    "rank": "portcall.farm._ranking",
    "serve": "portcall.farm._run",
}
_NEED_THE_EXTRA = ("FarmOptions", "serve")

if not TYPE_CHECKING:  # for which a name that is not here is an error

    def __getattr__(name: str) -> Any:
        if name in _NEED_THE_EXTRA:
            with _needed("farm", "running a farm"):
                return getattr(importlib.import_module(_HOMES[name]), name)
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise _no_attribute(__name__, name, {})


def __dir__() -> list[str]:
    return sorted({*_HOMES, *(name for name in globals() if name.startswith("__"))})
