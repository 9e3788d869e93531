# SPDX-License-Identifier: Apache-2.0
"""apache-tvm's ends at a tracker: ``python tvm_farm.py MODE HOST PORT KEY [N]``.

MODE is ``server``, ``proxied``, ``websocket``, ``client``, ``hold`` or ``summary``.
"""

from __future__ import annotations

import sys
import time


def serve(host: str, port: int, key: str, proxied: bool) -> None:
    """Register with a tracker, or at a proxy; say so, and serve until standard input ends."""
    from tvm import rpc
    from tvm.rpc.server import Server

    if proxied:
        server = Server(host, port, key=key, is_proxy=True, silent=True)
    else:
        server = rpc.Server("127.0.0.1", 9100, 9999, key=key, tracker_addr=(host, port), silent=True)
    print("ready", flush=True)
    sys.stdin.read()
    server.terminate()


def use(host: str, port: int, key: str, count: int) -> None:
    """Open sessions one after the other, and print the seconds that they took."""
    import numpy as np
    from tvm import rpc

    tracker = rpc.connect_tracker(host, port)
    start = time.perf_counter()
    for number in range(count):
        session = tracker.request(key, priority=1, session_timeout=300)
        check = session.get_function("runtime.GetDeviceAttr")
        assert check is not None
        del check, session
        if number == 0:
            start_after_first = time.perf_counter()
    end = time.perf_counter()
    print(f"{end - start:.4f} {end - start_after_first:.4f}", flush=True)
    assert np is not None


def hold(host: str, port: int, key: str) -> None:
    """Open a session and keep it until standard input ends."""
    from tvm import rpc

    session = rpc.connect_tracker(host, port).request(key)
    print("holding", flush=True)
    sys.stdin.read()
    del session


def summarize(host: str, port: int) -> None:
    """Print the tracker's summary as text, and how many servers TVM's tuner counts for each key."""
    import json

    from tvm import rpc

    tracker = rpc.connect_tracker(host, port)
    assert "Queue Status" in tracker.text_summary()
    print(json.dumps(tracker.summary()), flush=True)


if __name__ == "__main__":
    mode, address, number, name = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    if mode == "websocket":  # one session, through a proxy
        from tvm.rpc.proxy import websocket_proxy_server

        websocket_proxy_server(f"ws://{address}:{number}/ws", name)
    elif mode in ("server", "proxied"):
        serve(address, number, name, mode == "proxied")
    elif mode == "client":
        use(address, number, name, int(sys.argv[5]))
    elif mode == "hold":
        hold(address, number, name)
    else:
        summarize(address, number)
