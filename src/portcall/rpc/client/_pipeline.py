# SPDX-License-Identifier: Apache-2.0
"""The pipeline of a thread: the session whose requests it posts, rather than wait for each answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from portcall._function import get_global_func
from portcall._future import Future as Future  # what posted calls return


@contextlib.contextmanager
def posting(session: int) -> Iterator[None]:
    """Post requests of this thread to the session of that number; with 0, wait for their answers."""
    set_pipeline = get_global_func("portcall.rpc.SetPipeline")
    before = set_pipeline(session)
    try:
        yield
    finally:
        set_pipeline(before)


answered = posting(0)  # for functions that cannot go on without answers, inside of a pipeline too
