# SPDX-License-Identifier: Apache-2.0
"""Sessions with other processes and devices: upload a library, load it, allocate, copy, call, time it there::

    with portcall.rpc.connect("board.local", 9090, key="rasp") as remote:
        remote.upload("kernels.so")
        remote.load_module("kernels.so").add_one(x, y)

A server is a command, ``portcall serve``, or an object, ``portcall.rpc.Server``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from portcall._renamed import no_attribute as _no_attribute

if TYPE_CHECKING:
    from portcall.rpc._local import LocalSession as LocalSession
    from portcall.rpc._popen import PopenSession as PopenSession
    from portcall.rpc._transport import Transport as Transport
    from portcall.rpc._transport import connect_over as connect_over
    from portcall.rpc._transport import serve_over as serve_over
    from portcall.rpc.client._activity import Activity as Activity
    from portcall.rpc.client._connect import ConnectOptions as ConnectOptions
    from portcall.rpc.client._connect import connect as connect
    from portcall.rpc.client._connect import connect_async as connect_async
    from portcall.rpc.client._parallel import ParallelSession as ParallelSession
    from portcall.rpc.client._remote import RemoteDevice as RemoteDevice
    from portcall.rpc.client._remote import RemoteObject as RemoteObject
    from portcall.rpc.client._remote import RemoteTensor as RemoteTensor
    from portcall.rpc.client._session import Session as Session
    from portcall.rpc.client._trace import Recorder as Recorder
    from portcall.rpc.client._trace import follow_opentelemetry as follow_opentelemetry
    from portcall.rpc.client._trace import trace as trace
    from portcall.rpc.client._upload_all import upload_all as upload_all
    from portcall.rpc.server._sandbox import Sandbox as Sandbox
    from portcall.rpc.server._sandbox import find_sandbox as find_sandbox
    from portcall.rpc.server._server import Server as Server
    from portcall.rpc.server._server import ServerOptions as ServerOptions
    from portcall.rpc.server._server import serve as serve
    from portcall.rpc.wire._address import parse_address as parse_address
    from portcall.rpc.wire._tls import TLSOptions as TLSOptions
    from portcall.rpc.wire._tls import time_problem as time_problem

# Each loads on first use: the process of a session needs none of them, and its size is what its start costs.
_HOMES = {
    "Activity": "portcall.rpc.client._activity",
    "connect": "portcall.rpc.client._connect",
    "connect_async": "portcall.rpc.client._connect",
    "connect_over": "portcall.rpc._transport",
    "ConnectOptions": "portcall.rpc.client._connect",
    "find_sandbox": "portcall.rpc.server._sandbox",
    "follow_opentelemetry": "portcall.rpc.client._trace",
    "LocalSession": "portcall.rpc._local",
    "ParallelSession": "portcall.rpc.client._parallel",
    "parse_address": "portcall.rpc.wire._address",
    "PopenSession": "portcall.rpc._popen",
    "RemoteDevice": "portcall.rpc.client._remote",
    "RemoteObject": "portcall.rpc.client._remote",
    "RemoteTensor": "portcall.rpc.client._remote",
    "Recorder": "portcall.rpc.client._trace",
    "Sandbox": "portcall.rpc.server._sandbox",
    "serve": "portcall.rpc.server._server",
    "serve_over": "portcall.rpc._transport",
    "Server": "portcall.rpc.server._server",
    "ServerOptions": "portcall.rpc.server._server",
    "Session": "portcall.rpc.client._session",
    "time_problem": "portcall.rpc.wire._tls",
    "TLSOptions": "portcall.rpc.wire._tls",
    "trace": "portcall.rpc.client._trace",
    "Transport": "portcall.rpc._transport",
    "upload_all": "portcall.rpc.client._upload_all",
}
# Names that this package had, or TVM's has; and what to write instead.
_INSTEAD = {
    "StartError": "it is portcall.errors.StartError",
    "ready_facts": "parse_address(address).to_dict() has the facts of an address",
    "connect_tracker": "portcall farm is the tracker: portcall.farm.connect(address).request(key) is a session",
    "connect_farm": "it is portcall.farm.connect(address)",
    "connect_farm_async": "it is portcall.farm.connect_async(address)",
    **{
        name: f"it is portcall.farm.{name}"
        for name in ("Farm", "Lease", "AsyncFarm", "AsyncLease", "FarmChannel", "Agent", "PlaceOptions")
    },
    "TrackerSession": "its class is portcall.farm.Farm",
    "RPCSession": "its class is portcall.rpc.Session",
    "tracker": "portcall farm is the tracker",
    "proxy": "portcall farm is the proxy, too",
}

if not TYPE_CHECKING:  # for which a name that is not here is an error

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise _no_attribute(__name__, name, _INSTEAD)

    def __dir__() -> list[str]:
        return sorted({*_HOMES, *(name for name in globals() if name.startswith("__"))})
