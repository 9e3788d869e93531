# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, call-overload, comparison-overlap, unreachable"
"""The command as a whole: help, what help loads, exit codes of wrong usage, JSON and colours."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import portcall
from portcall.cli import COMMANDS
from portcall.cli._command import normalize_json_option

Invoke = Callable[..., Result]
Shell = Callable[..., subprocess.CompletedProcess[str]]


def test_help_gives_examples_before_usage_and_lists_every_command(invoke: Invoke) -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert result.output.index("Examples:") < result.output.index("Usage:") < result.output.index("Commands:")
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name} " in result.output
        assert summary in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_begins_with_what_it_does_and_examples(invoke: Invoke, name: str) -> None:
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert result.output.startswith(COMMANDS[name][1])
    assert result.output.index("Examples:") < result.output.index(f"portcall {name}") < result.output.index("Usage:")
    assert "--json" in result.output
    assert "--debug" in result.output


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS), ["help", "run"]], ids="-".join)
def test_help_loads_neither_numpy_nor_rich(words: list[str]) -> None:
    program = (
        "import sys\nfrom portcall.cli import cli\n"
        f"try: cli.main({words!r})\n"
        "finally: print({'numpy', 'rich'} & set(sys.modules) or 'none', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "none\n"


def test_version_prints_one_line(shell: Shell, invoke_json: Callable[..., dict[str, str]]) -> None:
    for option in ("--version", "-V"):
        done = shell(option)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{portcall.__version__}\n", "")
    facts = invoke_json("version")
    assert facts["version"] == portcall.__version__
    assert re.fullmatch(r"([0-9a-f]{12,}(-dirty)?)?", facts["commit"])
    shown = shell("version").stdout
    for text in (facts["version"], facts["commit"], facts["tvm_ffi"], *facts["abis"]):
        assert text in shown


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS), ["remote", "add"], ["server"]], ids=" ".join)
def test_help_is_a_command_too(invoke: Invoke, invoke_json: Callable[..., dict[str, str]], words: list[str]) -> None:
    shown = invoke("help", *words).stdout
    assert "Examples:" in shown
    assert shown == invoke_json("help", *words)["help"] + "\n"
    assert shown == invoke(*words, "--help").stdout


@pytest.mark.parametrize(
    ("words", "proposed"),
    [(["inspct"], "inspect"), (["verison"], "version"), (["help", "rnu"], "run"), (["remote", "lst"], "list")],
)
def test_unknown_command_proposes_a_similar_one(invoke: Invoke, words: list[str], proposed: str) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"Did you mean '{proposed}'?" in result.stderr


def test_help_has_a_short_name(invoke: Invoke) -> None:
    for words in ([], *([name] for name in COMMANDS)):
        assert invoke(*words, "-h").output == invoke(*words, "--help").output


@pytest.mark.parametrize(
    "words",
    [["run", "k.so", "f", "--rpc", ""], ["run", "k.so", ""], ["doctor", ""], ["inspect", ""], ["serve", "--unix", ""],
     ["bench", "k.so", "f", "--token-file", ""]],
)  # fmt: skip
def test_empty_argument_is_a_usage_error(invoke: Invoke, words: list[str]) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "it is empty; is a variable of the shell not set?" in result.stderr


def test_empty_key_option_means_no_key(invoke: Invoke) -> None:
    assert "no such file: 'missing.so'" in invoke("run", "missing.so", "f", "--key", "").stderr


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_shell_completion_offers_commands_and_options(shell: Shell, shell_name: str) -> None:
    assert "portcall" in shell(_PORTCALL_COMPLETE=f"{shell_name}_source").stdout
    words = {"COMP_WORDS": "portcall run --sa", "COMP_CWORD": "--sa" if shell_name == "fish" else "2"}
    assert "--save" in shell(_PORTCALL_COMPLETE=f"{shell_name}_complete", **words).stdout


def test_help_ends_with_the_line_for_completion(invoke: Invoke) -> None:
    line = invoke("--help").output.rstrip().splitlines()[-1].strip()
    assert line in (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    words = ["bash", "-c", f"{line}; complete -p portcall"]
    place = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(words, env=place, capture_output=True, text=True, check=False)
    assert done.stdout.rstrip().endswith(" portcall"), done.stderr


def test_ctrl_c_before_the_command_begins_exits_like_any_other(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("portcall.cli._command.importlib.import_module", interrupted)
    result = invoke("version")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "error: interrupted\n")


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-command"],
        ["run"],
        ["bench", "k.so", "f", "--number", "0"],
        ["run", "k.so", "f", "--timeout", "5"],
        ["run", "k.so", "f", "--timeout", "0s"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_and_names_help(shell: Shell, words: list[str]) -> None:
    done = shell(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--help" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "settled"),
    [
        (["--json"], ["--json=-"]),
        (["--json", "k.so", "f"], ["--json=-", "k.so", "f"]),
        (["k.so", "--json", "times.json", "f"], ["k.so", "--json=times.json", "f"]),
        (["--json", "--json"], ["--json=-", "--json=-"]),
        (["--json=x.txt"], ["--json=x.txt"]),
        (["--", "--json", "a.json"], ["--", "--json", "a.json"]),
        ([], []),
    ],
)
def test_json_option_takes_the_next_word_only_if_it_is_a_json_file(words: list[str], settled: list[str]) -> None:
    assert list(normalize_json_option(words)) == settled


def test_json_option_writes_a_file(invoke: Invoke, tmp_path: Path) -> None:
    place = tmp_path / "version.json"
    result = invoke("version", "--json", place)
    assert (result.exit_code, result.output) == (0, "")
    assert place.read_text().startswith('{\n  "version": ')


def test_command_error_has_sentence_cause_and_next_step(shell: Shell) -> None:
    done = shell("inspect", "missing.so")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[0] == "error: cannot read library 'missing.so': No such file or directory"
    assert "  next: " in done.stderr


def test_debug_option_adds_the_trace_and_json_makes_an_error_an_object(
    invoke: Invoke, invoke_json: Callable[..., dict[str, dict[str, str]]]
) -> None:
    assert "Traceback" in invoke("inspect", "missing.so", "--debug").stderr
    answer = invoke_json("inspect", "missing.so", code=1)
    assert answer["exit_code"] == 1
    assert answer["error"]["kind"] == "ModuleLoadError"
    assert set(answer["error"]) == {"kind", "message", "cause", "next"}


def test_json_option_also_reports_errors_on_stderr(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("inspect", "missing.so", "--json", tmp_path / "error.json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot read library 'missing.so'" in result.stderr
    assert json.loads((tmp_path / "error.json").read_text())["exit_code"] == 1


@pytest.mark.parametrize("words", [["version"], ["inspect", "missing.so"]], ids=" ".join)
def test_json_option_reports_an_unwritable_file(shell: Shell, tmp_path: Path, words: list[str]) -> None:
    done = shell(*words, "--json", tmp_path / "none" / "x.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_os_error_names_the_file_without_errno(invoke: Invoke, tmp_path: Path) -> None:
    place = tmp_path / "none" / "x.json"
    assert invoke("version", "--json", place).stderr.startswith(f"error: '{place}': No such file or directory\n")


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_is_reported_without_a_trace(kernels: str, words: tuple[str, ...], unbuffered: str) -> None:
    command = [sys.executable, "-m", "portcall", "run", kernels, "add", "--arg", "1", "--arg", "2", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: No space left on device\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_output_streams_are_ignored(kernels: str, closed: str) -> None:
    words = shlex.join([sys.executable, "-m", "portcall", "run", kernels, "add", "--arg", "1", "--arg", "2"])
    for code, command in ((0, words), (1, f"{words} --arg 3")):
        done = subprocess.run(f"{command} {closed}", shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", b"gr?? ?"), ("latin-1", b"gr\xfc\xdf ?"), ("utf-8", "grüß …".encode())]
)
def test_output_works_in_any_encoding(kernels: str, encoding: str, shown: bytes) -> None:
    words = [sys.executable, "-m", "portcall", "run", kernels, "shout", "--arg", "str:grüß …"]
    done = subprocess.run(words, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, check=True)
    assert b"returned '" + shown + b"!' in " in done.stdout


def test_file_name_that_is_not_utf8_is_printed_with_escapes(kernels: str, tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/k\xff.so"
    shutil.copy(kernels, place)
    words, environment = [sys.executable, "-m", "portcall", "inspect", place], {"PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(words, capture_output=True, env={**os.environ, **environment}, check=True)
    assert place.replace(b"\xff", b"\\udcff") in done.stdout


def test_no_color_and_pipes_turn_colours_off(shell: Shell) -> None:
    assert "\x1b" not in shell("inspect", "missing.so").stderr
    assert "\x1b" not in shell("doctor", NO_COLOR="1", FORCE_COLOR="").stdout
