# SPDX-License-Identifier: Apache-2.0
"""Sessions in a sandbox, for tests: with ``PORTCALL_TEST_SANDBOX=require`` (``make test-sandbox``) ``serving`` starts
servers with one, and all tests but those of ``DIFFERENCES`` run."""

from __future__ import annotations

import os

# Tests that do not apply, by the reason: how their names begin, or, with "[", their parameters.
DIFFERENCES = {
    "sessions have no network to go on": ("test_chain_", "[chain", "[long_chain"),
    "they write nothing outside of their directory": ("test_server_hooks_run_before_and_after_a_session",),
    "they have numbers of processes of their own": (
        "test_server_sessions_have_their_own_process_and_directory",
        "test_server_ends_processes_that_a_session_started",
        "test_server_ends_work_of_a_client_that_left",
        "test_server_leaks_no_descriptors_in_a_hundred_sessions",
        "test_server_starts_a_new_zygote_after_a_kill",
        "test_session_constructor_starts_the_clients_program",
    ),
}


def mode() -> str:
    """The option of ``serving`` where a test gives none; empty for no sandbox."""
    return os.environ.get("PORTCALL_TEST_SANDBOX", "")


def reason_to_leave_out(test: str) -> str:
    """Return why a test does not apply; empty if it does."""
    parameters = "".join(test.partition("[")[1:])
    found = (why for why, names in DIFFERENCES.items() if test.startswith(names) or parameters.startswith(names))
    return next(found, "")
