# SPDX-License-Identifier: Apache-2.0
"""The server without Python, for the tests that ``portcall serve`` has: see ``serving``.

``PORTCALL_TEST_SERVER=board`` runs these tests with it (``make test-board``), all but ``DIFFERENCES``; with
``PORTCALL_BOARD_SERVER`` it is that program and not the one that is compiled here.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from portcall import __version__, toolchain
from portcall.board import APART, BY_VALUE

# Tests of `portcall serve` that do not apply, by the reason: how their names begin, or, with "[", their parameters.
DIFFERENCES = {
    "TLS is left to a tunnel": ("test_tls_", "[tls", "[mutual_tls]", "test_farm_with_tls_"),
    "its functions come from a library, not from Python that a test writes": (
        "test_expose_offers_imported_names_exactly",
        "test_rpc_page_code_runs",
        "test_server_hooks_run_before_and_after_a_session",
        "test_download_reads_no_more_than_announced",
        "test_negotiation_goes_through_a_tvm_proxy",
        "test_register_error_",
        "test_remote_error_has_the_",
        "test_remote_traceback_is_printed_",
        "test_remote_traceback_survives_",
        "test_serve_import_finds_libraries_and_neighbouring_modules",
        "test_server_setup_function_runs_before_the_first_session",
        "test_call_shows_a_function_what_it_would_see_here",
        "test_error_of_a_callback_has_its_class_and_both_tracebacks",
        "test_remote_graph_leaves_nothing_on_the_server",
        "test_remote_context_manager_",
        "test_remote_generator_",
        "test_two_remote_generators_",
        "test_remote_function_takes_keyword_arguments",
        "test_inspect_signature_of_a_remote_function",
        "test_session_call_needs_memory_for_large_bytes_",
        "test_tcp_nodelay_and_keepalive_are_set_at_both_ends",
        "test_programs_are_the_same_",
    ),
    "sessions do not go on to other servers": (
        "test_session_constructor_connect_needs_permission",
        "test_connect_chain_through_",
        "test_chain_",
        "test_session_constructor_starts_",
        "[chain",
        "[long_chain",
        "[further]",
        "test_upload_through_a_chain_checks_the_last_server",
        "test_session_machine_describes_the_last_server_of_a_chain",
        "test_sessions_of_constructors_send_values_only_to_clients_that_know_them[True",
    ),
    "it has no zygote, and forks whatever threads there are": (
        "test_zygote_",
        "test_server_starts_a_new_zygote",
        "test_server_stops_during_a_slow_import_of_a_new_zygote",
        "test_server_ends_a_sessions_processes_after_the_zygote_was_killed",
    ),
    "results of C++ that hold tensors are references": (
        "test_server_returns_the_values_of_the_conformance_vectors[value: an array]",
        "test_server_reads_a_value_or_answers_an_exception_for_any_bytes",
    ),
    "no process but its own writes its log, or sees that it was stopped": (
        "test_log_process_",
        "test_supervisor_stop_is_logged",
    ),
    "it does not unpack what is compressed": (
        "test_upload_compresses_on_request",
        "test_server_unpacks_no_more_than_announced",
    ),
    "it has no linker": ("test_load_module_links_", "test_server_links_archives_of_a_tvm_client"),
}
ROOT = Path(__file__).parents[2]
CORE = ROOT / "core"


def under_test() -> bool:
    """Whether ``serving`` starts the server without Python by default."""
    return os.environ.get("PORTCALL_TEST_SERVER") == "board"


def reason_to_leave_out(test: str) -> str:
    """Return why a test does not apply; empty if it does."""
    _, bracket, parameters = test.partition("[")
    found = (
        why for why, names in DIFFERENCES.items() if test.startswith(names) or (bracket + parameters).startswith(names)
    )
    return next(found, "")


def compiled(name: str, sources: Sequence[Path], make: Callable[[Path], object]) -> Path:
    """Return what ``make`` compiles of the sources, kept from run to run, by content."""
    digest = hashlib.sha256(toolchain.find_compiler("c++").version().encode())
    for path in (*sources, *sorted((CORE / "include").rglob("*.h"))):
        digest.update(path.read_bytes())
    folder = Path(os.environ.get("PORTCALL_TEST_CACHE") or ROOT / "build" / "test-libraries") / "board"
    folder.mkdir(parents=True, exist_ok=True)
    stem, suffix = os.path.splitext(name)
    made = folder / f"{stem}-{digest.hexdigest()[:16]}{suffix}"
    with (folder / "lock").open("w") as lock:  # other workers wait for the first one
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make(made)
    return made


def program() -> Path:
    """Return the server."""
    if given := os.environ.get("PORTCALL_BOARD_SERVER"):
        return Path(given)
    sources = [path for folder in ("board", "session") for path in sorted((CORE / folder).rglob("*.cc"))]
    sources = [path for path in sources if path.relative_to(CORE).as_posix() not in APART]
    hidden = ("loader/elf_file.cc", "loader/mapped_file.cc")  # in the library
    sources += [CORE / name for name in (*BY_VALUE, *hidden)]
    options = (f"-I{CORE}", "-DPORTCALL_BUILDING", f'-DPORTCALL_VERSION="{__version__}"', "-O1")
    folders = [CORE / name for name in ("facts", "board", "session", "loader", "bytes", "ir")]
    headers = [path for folder in folders for path in folder.rglob("*.h")]
    return compiled(
        "portcall-server",
        [*sources, *sorted(headers)],
        lambda made: toolchain.create_executable(together(sources, made.with_suffix(".parts")), made, options),
    )


def together(sources: Sequence[Path], folder: Path) -> list[Path]:
    """Return sources that each include those of one folder: compiled so they take less than half of the time."""
    folder.mkdir(exist_ok=True)
    parts: dict[Path, str] = {}
    for source in sources:
        part = folder / f"{source.relative_to(CORE).parts[0]}.cc"
        parts[part] = parts.get(part, "") + f'#include "{source}"\n'
    for part, text in parts.items():
        part.write_text(text)
    return list(parts)


def silence() -> Path:
    """Return the library with its look at a connection."""
    sources = [ROOT / "tests" / "native" / "board_silence.cc", CORE / "board" / "listen.cc"]
    headers = [*sorted((CORE / "board").glob("*.h")), *sorted((CORE / "session").glob("*.h"))]
    return compiled(
        "board_silence.so",
        [*sources, *headers],
        lambda made: toolchain.create_shared(sources, made, options=(f"-I{CORE}", "-DPORTCALL_BUILDING")),
    )


def functions() -> Path:
    """Return the library with the functions that ``serving`` registers."""
    source = ROOT / "tests" / "native" / "board_functions.cc"
    return compiled("board_functions.so", [source], lambda made: toolchain.create_shared(source, made))
