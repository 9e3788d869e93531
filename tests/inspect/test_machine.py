# SPDX-License-Identifier: Apache-2.0
"""What a machine is, what a library needs of it, and the words where the two do not fit; all of it as JSON, too."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import portcall
from portcall import _compilers, toolchain
from portcall.inspect._elf import Build, read_elf
from portcall.inspect._machine import (
    MOST_CHARACTERS,
    MOST_NAMES,
    Machine,
    Needs,
    Unmet,
    from_json,
    problems_of,
    this_machine,
    to_json,
    unmet_here,
)  # fmt: skip

BOARD = Machine(
    Build("aarch64", 64, "little"), "linux", "glibc", "2.31", "aarch64-linux-gnu", "0.1.0", ("modern", "classic")
)
LIBRARY = Needs(BOARD.build, "modern", ("libc.so.6",), ("$ORIGIN",), {"libc.so.6": ("GLIBC_2.17",)}, (), ("puts",))
NOTHING = Unmet({}, {}, (), ())


def there(needs: Needs = LIBRARY, machine: Machine = BOARD, **unmet: Any) -> list[str]:
    return list(problems_of(needs, machine, dataclasses.replace(NOTHING, **unmet), here=False))


# ---- Words --------------------------------------------------------------------------------------------------------


def test_unmet_of_a_library_that_fits_is_empty() -> None:
    assert there() == []
    assert there(dataclasses.replace(LIBRARY, abi="plain")) == []  # others may need it


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (Build("arm", 32, "little"), "arm (32-bit, little-endian)"),
        (Build("aarch64", 64, "big"), "aarch64 (64-bit, big-endian)"),
        (Build("aarch64", 32, "little"), "aarch64 (32-bit, little-endian)"),
    ],
)
def test_unmet_reports_another_machine_with_the_target(build: Build, said: str) -> None:
    (problem,) = there(dataclasses.replace(LIBRARY, build=build), symbols=("malloc",))  # which follows from it
    assert problem == (
        f"it is made for {said} and that machine is aarch64 (64-bit, little-endian), linux, glibc 2.31: compile it "
        "with portcall compile … --target aarch64-linux-gnu"
    )


def test_unmet_reports_an_unknown_abi_with_the_known_ones() -> None:
    assert there(dataclasses.replace(LIBRARY, abi="classic")) == []
    (problem,) = there(dataclasses.replace(LIBRARY, abi="modern 0.21"))
    assert problem == (
        "its functions are called in the modern 0.21 way (TVM 0.21), and portcall 0.1.0 there knows modern, classic: "
        "compile it with what makes those"
    )


def test_unmet_reports_an_old_libc_with_a_target() -> None:
    (problem,) = there(versions={"libc.so.6": ("GLIBC_2.34", "GLIBC_2.38")})
    assert problem == (
        "it needs GLIBC_2.34, GLIBC_2.38 of libc.so.6 and that machine has glibc 2.31: compile it with "
        "portcall compile … --target aarch64-linux-gnu.2.31"
    )
    assert there(versions={"libstdc++.so.6": ("GLIBCXX_3.4.32",)}) == [
        "it needs GLIBCXX_3.4.32 of libstdc++.so.6, which is older there: build it on a system as old as that"
    ]


@pytest.mark.parametrize(
    ("library", "libc", "said"),
    [
        ("libfoo.so", "glibc", "install it there, or upload it first and link with -Wl,-rpath,$ORIGIN"),
        ("libtvm_ffi.so", "glibc", "pip install apache-tvm-ffi"),
        ("libc.so", "glibc", "it is the C library of another system; compile it with portcall compile"),
        ("libc.musl-aarch64.so.1", "glibc", "it is the C library of another system; compile it with"),
        ("libc.so.6", "musl", "it is the C library of another system; compile it with portcall compile"),
    ],
)
def test_unmet_reports_a_missing_library(library: str, libc: str, said: str) -> None:
    machine = dataclasses.replace(BOARD, libc=libc)
    assert there(machine=machine, libraries={library: "it"})[0].startswith(
        f"it needs {library}, which was not found there: {said}"
    )


def test_unmet_names_the_first_symbols_and_counts_the_rest() -> None:
    said = there(symbols=tuple(f"s{number}" for number in range(12)))
    assert said[0] == (
        "it needs the symbol 's0', which no library there provides: add the source or library that defines it"
    )
    assert said[5:] == ["it needs 7 more symbols that no library there provides"]
    said = there(symbols=("s",), libraries={"libs.so": "it"})
    assert said[1].endswith("no library there provides: perhaps that library does")


def test_unmet_reports_an_unknown_context_variable() -> None:
    assert there(contexts=("__TVMNew",)) == [
        "it expects '__TVMNew', a variable that portcall 0.1.0 there does not fill in: calling it may crash"
    ]


# ---- What is here -------------------------------------------------------------------------------------------------


def test_this_machine_agrees_with_its_compiler(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int f(void) { return 1; }")
    machine = this_machine()
    assert read_elf(toolchain.create_shared(tmp_path / "a.c", tmp_path / "a.so").read_bytes()).build == machine.build
    assert _compilers.is_this_machine(machine.target)
    cross = toolchain.create_shared(tmp_path / "a.c", tmp_path / "b.so", f"{machine.target}.{machine.libc_version}")
    assert read_elf(cross.read_bytes()).build == machine.build
    assert machine.portcall == portcall.__version__


@pytest.mark.parametrize("other", [{"machine": "s390x"}, {"bits": 32}, {"byte_order": "big"}])
def test_unmet_here_checks_another_machine_by_facts_only(other: dict[str, Any]) -> None:
    needs = Needs(
        dataclasses.replace(this_machine().build, **other), "modern", ("libnone.so",), (), {"libc.so.6": ("GLIBC_9",)},
        ("__TVMNew", "__TVMFuncCall"), ("TVMFFINone", "TVMFFIErrorSetRaised", "none"),
    )  # fmt: skip
    assert unmet_here(needs, Path("k.so")) == (Unmet({}, {}, ("__TVMNew",), ("TVMFFINone",)), {})


# ---- As text ------------------------------------------------------------------------------------------------------

words = st.text(st.characters(categories=("L", "N", "P", "S")), max_size=9)
names = st.lists(words, max_size=4).map(tuple)
builds = st.builds(Build, words, st.sampled_from([32, 64]), st.sampled_from(["little", "big"]))


@given(st.builds(Needs, builds, words, names, names, st.dictionaries(words, names, max_size=3), names, names))
def test_unmet_here_answers_any_needs(needs: Needs) -> None:
    here = dataclasses.replace(needs, build=this_machine().build, contexts=())
    unmet, found = unmet_here(here, Path("/none/k.so"))
    assert set(unmet.symbols) <= set(here.symbols)
    assert set(found) == set(here.needed)
    assert {name for name, path in found.items() if not path} >= set(unmet.libraries) & set(here.needed)


@given(
    st.builds(Machine, builds, words, words, words, words, words, names),
    st.builds(Unmet, st.dictionaries(words, words, max_size=3), st.dictionaries(words, names), names, names),
)
def test_unmet_round_trips_through_json(machine: Machine, unmet: Unmet) -> None:
    facts = from_json(to_json({"machine": machine, "unmet": unmet}))
    assert Machine.from_dict(facts["machine"]) == machine
    assert Unmet.from_dict(facts["unmet"]) == unmet


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.data())
def test_machine_from_json_of_any_text_is_facts_or_a_value_error(data: st.DataObject) -> None:
    whole = from_json(to_json({**vars(LIBRARY), **vars(BOARD), **vars(NOTHING)}))
    for name in data.draw(st.sets(st.sampled_from(sorted(whole)))):
        whole[name] = data.draw(values)
    for text in (json.dumps(whole), json.dumps(data.draw(values)), data.draw(st.text())):
        for read in (Machine.from_dict, Unmet.from_dict):
            with contextlib.suppress(ValueError):
                read(from_json(text))


def test_machine_from_json_refuses_oversized_text() -> None:
    with pytest.raises(ValueError, match="limit"):
        from_json(" " * (MOST_CHARACTERS + 1))
    with pytest.raises(ValueError, match="cannot parse the facts as JSON"):
        from_json("[" * 100_000)
    with pytest.raises(ValueError, match=f"'symbols' has {MOST_NAMES + 1} names"):
        Unmet.from_dict(from_json(to_json(dataclasses.replace(NOTHING, symbols=("s",) * (MOST_NAMES + 1)))))
