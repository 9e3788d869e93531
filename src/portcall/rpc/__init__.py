# SPDX-License-Identifier: Apache-2.0
"""Sessions with other processes and devices: upload a library, load it, allocate, copy, call, time it there.

    with portcall.rpc.connect("board.local", 9090, key="rasp") as remote:
        remote.upload("kernels.so")
        remote.load_module("kernels.so")["add_one"](x, y)

A server is a command, ``portcall serve``, or an object, ``portcall.rpc.Server``.
"""

from portcall.rpc._connect import connect as connect
from portcall.rpc._popen import PopenSession as PopenSession
from portcall.rpc._popen import Transport as Transport
from portcall.rpc._popen import connect_over as connect_over
from portcall.rpc._popen import serve_over as serve_over
from portcall.rpc._remote import RemoteDevice as RemoteDevice
from portcall.rpc._remote import RemoteObject as RemoteObject
from portcall.rpc._remote import RemoteTensor as RemoteTensor
from portcall.rpc._server import Server as Server
from portcall.rpc._server import ServerOptions as ServerOptions
from portcall.rpc._server import StartError as StartError
from portcall.rpc._server import ready_facts as ready_facts
from portcall.rpc._server import serve as serve
from portcall.rpc._session import Activity as Activity
from portcall.rpc._session import LocalSession as LocalSession
from portcall.rpc._session import Session as Session
from portcall.rpc._transport import TLSOptions as TLSOptions
from portcall.rpc._transport import parse_address as parse_address
