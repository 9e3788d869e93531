# SPDX-License-Identifier: Apache-2.0
"""Build on workers of Dask while boards of a farm measure: ``python dask_measure.py ADDRESS KEY``."""

from __future__ import annotations

import sys

from distributed import Client

import portcall
from portcall import rpc
from portcall.farm import Executor, measure


def build(number: int) -> bytes:
    return b"library " * number


def work(session: rpc.Session, built: bytes) -> int:
    name = session.upload(built, "built.bin")
    return len(session.download(name))


if __name__ == "__main__":
    with (
        Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster,
        portcall.farm.connect(sys.argv[1], token="") as farm,
        Executor(farm, sys.argv[2]) as boards,
    ):
        print(measure([3, 1, 2], work, executor=boards, build=build, builders=cluster.get_executor()), flush=True)
