# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="call-overload"
"""Errors cross the languages whole: the same object where both ends are Python, kind and frames where one is C++."""

from __future__ import annotations

import builtins
import pickle
import subprocess
import sys
import threading
import traceback
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors

apply = portcall.get_global_func("testing.apply")
echo = portcall.get_global_func("testing.echo")
raise_error = portcall.get_global_func("testing.test_raise_error")

pytestmark = pytest.mark.usefixtures("native")


def call(name: str, *arguments: Any) -> Any:
    return portcall.get_global_func(f"portcall_test.{name}")(*arguments)


def raising(error: BaseException) -> Any:
    def raise_it() -> None:
        raise error

    return raise_it


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


# ---- Python -> C++ -> Python -----------------------------------------------------------------------------------------


class Custom(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.second = second


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        KeyError("k"),
        Custom(1, 2),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        OSError(2, "no such file", "name"),
        StopIteration(5),
        getattr(builtins, "ExceptionGroup", Exception)("several", [ValueError(1), TypeError(2)]),  # 3.11 and later
        errors.FunctionNotFoundError("gone", name="f", near=["g"]),
        Exception(),
        Exception("\ud800 cannot be encoded"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_exception_through_cpp_is_the_same_object(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        apply(raising(error))
    assert caught.value is error


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt("^C"), SystemExit(3), GeneratorExit()], ids=lambda e: type(e).__name__
)
def test_exception_through_cpp_may_be_system_exit(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        apply(raising(error))
    assert caught.value is error


def test_traceback_leads_from_caller_to_callee() -> None:
    def innermost() -> None:
        raise ValueError("deep")

    def middle() -> None:
        apply(innermost)

    with pytest.raises(ValueError, match="deep") as caught:
        apply(middle)
    names = frames(caught.value)
    assert names.index("middle") < names.index("innermost")
    assert names[-1] == "innermost"


def test_exception_through_cpp_keeps_cause_and_context() -> None:
    cause = KeyError("first")

    def fail() -> None:
        raise ValueError("second") from cause

    with pytest.raises(ValueError, match="second") as caught:
        apply(fail)
    assert caught.value.__cause__ is cause

    def fail_while_handling() -> None:
        try:
            raise LookupError("inner")
        except LookupError:
            raise TypeError("outer")  # noqa: B904 - the implicit context is what is tested

    with pytest.raises(TypeError, match="outer") as caught_type:
        apply(fail_while_handling)
    assert isinstance(caught_type.value.__context__, LookupError)


def test_exception_context_is_the_handled_error() -> None:
    try:
        raise LookupError("handled")
    except LookupError as handled:
        with pytest.raises(ValueError, match="new") as caught:
            raise_error("ValueError", "new")
        context = handled
    assert caught.value.__context__ is context


def test_exception_through_cpp_keeps_notes() -> None:
    error = ValueError("x")
    error.__notes__ = ["a note"]
    with pytest.raises(ValueError, match="x") as caught:
        apply(raising(error))
    assert caught.value.__notes__ == ["a note"]


def test_exception_with_a_failing_str_is_the_same_object() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    error = Mute()
    with pytest.raises(Mute) as caught:
        apply(raising(error))
    assert caught.value is error


def test_exception_through_layers_and_threads_of_cpp(native: portcall.Module) -> None:
    error = Custom(1, 2)
    with pytest.raises(Custom) as caught:
        apply(apply, apply, raising(error))
    assert caught.value is error
    with pytest.raises(Custom) as caught_again:
        native["call_in_thread"](lambda _: raising(error)(), None)
    assert caught_again.value is error


def test_error_slot_is_empty_after_an_error(native: portcall.Module) -> None:
    with pytest.raises(ValueError, match="once"):
        apply(raising(ValueError("once")))
    assert echo(1) == 1
    with pytest.raises(RuntimeError, match="nonzero return"):
        native["fail_silently"]()


def test_error_slot_is_empty_after_a_handled_error() -> None:
    def careful() -> str:
        try:
            raise_error("ValueError", "inner")
        except ValueError:
            return "handled"
        return "not raised"

    assert apply(careful) == "handled"


# ---- C++ -> Python ---------------------------------------------------------------------------------------------------

BUILTIN_KINDS = sorted(
    name
    for name, cls in vars(builtins).items()
    if isinstance(cls, type) and issubclass(cls, Exception) and name not in ("EnvironmentError", "IOError")
)
NOT_FROM_A_MESSAGE = {
    "UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup", "BaseExceptionGroup",
}  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in BUILTIN_KINDS if kind not in NOT_FROM_A_MESSAGE])
def test_error_kind_of_a_builtin_is_that_class(kind: str) -> None:
    with pytest.raises(getattr(builtins, kind)) as caught:
        raise_error(kind, "the message")
    assert type(caught.value).__name__ == getattr(builtins, kind).__name__
    assert caught.value.args == ("the message",)


@pytest.mark.parametrize("kind", sorted(NOT_FROM_A_MESSAGE & set(BUILTIN_KINDS)))
def test_error_kind_with_other_arguments_is_a_runtime_error(kind: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{kind}: the message"):
        raise_error(kind, "the message")


@pytest.mark.parametrize(
    "kind", ["SomeUnknownError", "tvm.error.SchedulingError", "", "int", "KeyboardInterrupt", "日本"]
)
def test_error_kind_unknown_is_a_runtime_error(kind: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        raise_error(kind, "what happened")
    assert type(caught.value) is RuntimeError
    assert str(caught.value) == f"{kind}: what happened"


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("FunctionNotFoundError", errors.FunctionNotFoundError),
        ("ModuleLoadError", errors.ModuleLoadError),
        ("DeviceError", errors.DeviceError),
        ("AlreadyRegisteredError", errors.AlreadyRegisteredError),
    ],
)
def test_error_kind_of_portcall_is_its_class(kind: str, cls: type[Exception]) -> None:
    with pytest.raises(cls, match=r"^the message$"):
        raise_error(kind, "the message")


@pytest.mark.parametrize("message", ["", "two\nlines", "nul\0inside", "日本", "%s %d {}", "x" * 100_000])
def test_error_message_arrives_whole(message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        raise_error("ValueError", message)
    assert caught.value.args == (message,)


@pytest.mark.parametrize(
    ("what", "cls", "message"),
    [
        ("bad_alloc", MemoryError, "out of memory"),
        ("out_of_range", IndexError, "beyond the end"),
        ("invalid_argument", ValueError, "no good"),
        ("runtime_error", RuntimeError, "went wrong"),
        ("something else", RuntimeError, "not a std::exception"),
    ],
)
def test_error_of_a_cpp_standard_exception_is_its_counterpart(what: str, cls: type[Exception], message: str) -> None:
    with pytest.raises(cls, match=message):
        call("throw_standard", what)


def test_traceback_shows_cpp_frames_below_python(native: portcall.Module) -> None:
    with pytest.raises(ValueError, match="refused 5") as caught:
        native["refuse"](5)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.name == "InnermostFunction"
    assert last.filename.endswith("functions.cc")
    assert last.lineno
    assert frames(caught.value)[0].startswith("test_traceback_shows_cpp")
    shown = "".join(traceback.format_exception(caught.value))
    assert "in InnermostFunction" in shown
    assert "PORTCALL_CHECK(n < 0, ValueError)" in shown  # the line itself, because the source is here


def test_traceback_of_a_testing_error_has_a_cpp_frame() -> None:
    with pytest.raises(ValueError, match="m") as caught:
        raise_error("ValueError", "m")
    assert frames(caught.value)[-1] == "testing.test_raise_error"


def test_exception_in_cpp_has_kind_message_and_frames() -> None:
    def fail_in_python() -> None:
        raise Custom(1, 2)

    assert call("kind_of_error", fail_in_python) == "Custom|1 and 2"
    assert "in fail_in_python" in call("backtrace_of_error", fail_in_python)
    assert call("kind_of_error", lambda: None) == "no error"


@pytest.mark.usefixtures("registrations_undone")
def test_register_error_class_receives_its_kind() -> None:
    class Overheated(Exception):
        pass

    @portcall.register_error
    class Undercooled(Exception):
        pass

    assert portcall.register_error("portcall_test.Hot", Overheated) is Overheated
    with pytest.raises(Overheated, match=r"^90 degrees$"):
        raise_error("portcall_test.Hot", "90 degrees")
    with pytest.raises(Undercooled):
        raise_error("Undercooled", "2 degrees")


@pytest.mark.usefixtures("registrations_undone")
def test_register_error_decorator_takes_a_kind() -> None:
    @portcall.register_error("portcall_test.Kind")
    class Named(RuntimeError):
        pass

    with pytest.raises(Named):
        raise_error("portcall_test.Kind", "x")


@pytest.mark.usefixtures("registrations_undone")
def test_register_error_class_that_fails_does_not_hide_the_error() -> None:
    portcall.register_error("portcall_test.Custom", Custom)
    with pytest.raises(RuntimeError, match=r"^portcall_test.Custom: the message") as caught:
        raise_error("portcall_test.Custom", "the message")
    assert "Custom could not be made" in str(caught.value)


@pytest.mark.parametrize("cls", [int, "text", KeyboardInterrupt, object(), None])
def test_register_error_refuses_other_classes(cls: Any) -> None:
    with pytest.raises(errors.ArgumentError, match="exception"):
        portcall.register_error("portcall_test.Wrong", cls) if cls is not None else portcall.register_error(5)


def test_call_failing_without_error_is_a_runtime_error(native: portcall.Module) -> None:
    with pytest.raises(RuntimeError, match=r"fail_silently\(\) failed \(nonzero return\) without setting an error"):
        native["fail_silently"]()
    with pytest.raises(RuntimeError, match="nonzero return"):
        apply(native["fail_silently"])


def test_call_result_of_unknown_type_is_an_internal_error(native: portcall.Module) -> None:
    with pytest.raises(errors.InternalError, match="unknown type index 55"):
        native["return_unknown_index"]()


def test_call_result_that_is_a_borrowed_tensor_is_an_error(native: portcall.Module) -> None:
    with pytest.raises(errors.InternalError, match=r"return_borrowed_tensor\(\) returned a borrowed tensor"):
        native["return_borrowed_tensor"](portcall.empty(3))


# ---- Errors about arguments ------------------------------------------------------------------------------------------


def test_argument_error_has_its_facts() -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        call("add", 1, "two")
    error = caught.value
    assert str(error) == "portcall_test.add(): argument #1: expected int32, got str"
    assert (error.function, error.position, error.expected, error.got) == ("portcall_test.add", 1, "int32", "str")
    assert isinstance(error, TypeError)


def test_argument_error_about_the_count_has_no_position() -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        call("int8")
    assert caught.value.position is None
    assert (caught.value.expected, caught.value.got) == ("1 argument", "0")


def test_argument_error_of_the_binding_has_the_same_facts(native: portcall.Module) -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        native["add"](1, object())
    error = caught.value
    assert (error.function, error.position, error.got) == ("add", 1, "object")
    assert str(error).startswith(
        "add(): argument #1: expected a number, str, bytes, tensor, function or container, got"
    )


def test_tensor_of_another_type_is_an_argument_error(native: portcall.Module) -> None:
    single, double = np.zeros(3, "float32"), np.zeros(3)
    for arguments, position in (((double, single), 0), ((single, double), 1)):
        with pytest.raises(errors.ArgumentError) as caught:
            native["add_one"](*arguments)
        error = caught.value
        assert (error.function, error.position) == ("add_one", position)
        assert (error.expected, error.got) == ("a tensor of float32", "float64")
        assert str(error).startswith(f"add_one(): argument #{position}: ")


def test_argument_error_pickles_with_its_facts() -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        call("add", 1, "two")
    back = pickle.loads(pickle.dumps(caught.value))
    assert str(back) == str(caught.value)
    assert (back.function, back.position, back.expected, back.got) == ("portcall_test.add", 1, "int32", "str")


def test_argument_error_inside_a_callback_arrives_unchanged() -> None:
    with pytest.raises(errors.ArgumentError, match="argument #1: expected int32, got str"):
        apply(lambda: call("add", 1, "two"))


# ---- Depth -----------------------------------------------------------------------------------------------------------


def test_nested_calls_two_hundred_deep_work() -> None:
    def down(n: int) -> int:
        return n if n == 0 else 1 + apply(down, n - 1)

    assert down(200) == 200


def test_nested_calls_endless_are_a_recursion_error() -> None:
    def forever(n: int) -> Any:
        return apply(forever, n + 1)

    with pytest.raises(RecursionError):
        forever(0)
    assert echo(1) == 1


def test_nested_calls_endless_in_a_thread_are_a_recursion_error() -> None:
    caught: list[type[BaseException]] = []

    def forever() -> Any:
        return apply(forever)

    def run() -> None:
        try:
            forever()
        except BaseException as error:
            caught.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert caught == [RecursionError]


def test_nested_calls_endless_without_python_frames_do_not_crash() -> None:
    """A function that calls itself through C++ alone passes through no frame that Python would count."""
    code = """
import portcall
apply = portcall.get_global_func("testing.apply")
loop = portcall.convert(lambda f: apply(f, f))
try:
    loop(loop)
except RecursionError:
    print("RecursionError")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "RecursionError\n"), done.stderr


# ---- Interruptions ---------------------------------------------------------------------------------------------------


def test_system_exit_in_a_callback_ends_the_program() -> None:
    code = "import sys, portcall; portcall.get_global_func('testing.apply')(sys.exit, 7)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")


def test_keyboard_interrupt_in_a_callback() -> None:
    code = """
import os, signal, portcall
def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass
try:
    portcall.get_global_func("testing.apply")(interrupted)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
