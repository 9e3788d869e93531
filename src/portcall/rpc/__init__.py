# SPDX-License-Identifier: Apache-2.0
"""Sessions with other processes and devices: upload a library, load it, allocate, copy, call, time it there::

    with portcall.rpc.connect("board.local", 9090, key="rasp") as remote:
        remote.upload("kernels.so")
        remote.load_module("kernels.so").add_one(x, y)

A server is a command, ``portcall serve``, or an object, ``portcall.rpc.Server``.
"""

from typing import Any

from portcall.rpc._local import LocalSession as LocalSession
from portcall.rpc._popen import PopenSession as PopenSession
from portcall.rpc._transport import Transport as Transport
from portcall.rpc._transport import connect_over as connect_over
from portcall.rpc._transport import serve_over as serve_over
from portcall.rpc.client._activity import Activity as Activity
from portcall.rpc.client._connect import connect as connect
from portcall.rpc.client._farm import Farm as Farm
from portcall.rpc.client._farm import Lease as Lease
from portcall.rpc.client._farm import connect_farm as connect_farm
from portcall.rpc.client._farm_async import AsyncFarm as AsyncFarm
from portcall.rpc.client._farm_async import AsyncLease as AsyncLease
from portcall.rpc.client._farm_async import connect_farm_async as connect_farm_async
from portcall.rpc.client._farm_channel import FarmChannel as FarmChannel
from portcall.rpc.client._remote import RemoteDevice as RemoteDevice
from portcall.rpc.client._remote import RemoteObject as RemoteObject
from portcall.rpc.client._remote import RemoteTensor as RemoteTensor
from portcall.rpc.client._session import Session as Session
from portcall.rpc.client._upload_all import upload_all as upload_all
from portcall.rpc.server._agent import Agent as Agent
from portcall.rpc.server._agent import PlaceOptions as PlaceOptions
from portcall.rpc.server._server import Server as Server
from portcall.rpc.server._server import ServerOptions as ServerOptions
from portcall.rpc.server._server import StartError as StartError
from portcall.rpc.server._server import ready_facts as ready_facts
from portcall.rpc.server._server import serve as serve
from portcall.rpc.wire._address import parse_address as parse_address
from portcall.rpc.wire._tls import TLSOptions as TLSOptions
from portcall.rpc.wire._tls import time_problem as time_problem

# Names of TVM's package, and what to write instead.
_OF_TVM = {
    "connect_tracker": "portcall farm is the tracker: portcall.rpc.connect_farm(address).request(key) is a session",
    "TrackerSession": "its class is portcall.rpc.Farm",
    "RPCSession": "its class is portcall.rpc.Session",
    "tracker": "portcall farm is the tracker",
    "proxy": "portcall farm is the proxy, too",
}


def __getattr__(name: str) -> Any:
    hint = f"; {_OF_TVM[name]}" if name in _OF_TVM else ""
    raise AttributeError(f"module 'portcall.rpc' has no attribute {name!r}{hint}", name=name)
