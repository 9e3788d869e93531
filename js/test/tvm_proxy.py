# SPDX-License-Identifier: Apache-2.0
"""apache-tvm's RPC proxy, for tests: ``tvm_proxy.py [PACKAGE]`` prints its port and that of its WebSocket.

It runs until its input ends. With the folder of the npm package it serves the page and compiled sources of that, too.
"""

import socket
import sys
from pathlib import Path

from tvm.rpc.proxy import Proxy


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def resources(package):
    """Return what the proxy serves, as pairs of a folder in its address and a file."""
    files = [*package.glob("core.wasm"), *package.glob("page/*.html"), *package.glob("build/**/*.js")]
    return [("/".join(path.relative_to(package).parts[:-1]), str(path)) for path in files]


if __name__ == "__main__":
    web_port = free_port()
    files = resources(Path(sys.argv[1])) if len(sys.argv) > 1 else None
    proxy = Proxy("127.0.0.1", free_port(), 65535, web_port, resource_files=files)
    print(proxy.port, web_port, flush=True)
    sys.stdin.read()
    proxy.terminate()
