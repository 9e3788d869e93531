# SPDX-License-Identifier: Apache-2.0
"""apache-tvm's RPC proxy, for tests: prints its port and that of its WebSocket, and runs until its input ends."""

import socket
import sys

from tvm.rpc.proxy import Proxy


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


if __name__ == "__main__":
    web_port = free_port()
    proxy = Proxy("127.0.0.1", free_port(), 65535, web_port)
    print(proxy.port, web_port, flush=True)
    sys.stdin.read()
    proxy.terminate()
