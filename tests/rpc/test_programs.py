# SPDX-License-Identifier: Apache-2.0
"""Random programs: the same steps in a pipeline, as futures, and one by one show the same values and the same errors.
`make programs` runs many more of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule, run_state_machine_as_test

import portcall
from portcall import errors, rpc
from rpc.serving import FUNCTIONS, Serving

PROGRAMS = int(os.environ.get("PORTCALL_PROGRAMS", "25"))
SERVER_OPTIONS = ("--max-sessions", 4)
SERVED = (
    FUNCTIONS
    + """
import threading
kept = []
register("add")(lambda a, b: a + b)
register("iota")(lambda n: portcall.tensor(__import__("numpy").arange(n, dtype="float32")))
register("sum")(lambda x: float(x.numpy().sum()))
register("repeat")(lambda text, n: text * n)
register("length")(len)
@register("fill_with")
def fill_with(x, value): x.numpy()[...] = value
@register("plus")
def plus(x, y): x.numpy()[...] += y.numpy()
@register("raise")
def raise_(kind, text): raise getattr(__import__("builtins"), kind)(text)
@register("apply")
def apply(f, *args): return f(*args)
@register("many")
def many(f, n): return sum(f(i) for i in range(n))
@register("caught")
def caught(f, *args):
    try: return f(*args)
    except Exception as error: return str(error).partition(":")[0]
@register("in_threads")
def in_threads(f, n):
    results = []
    threads = [threading.Thread(target=lambda i=i: results.append(f(i))) for i in range(n)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return sum(results)
@register("hold")
def hold(f): kept[:] = [f]
@register("call_kept")
def call_kept(x): return kept[-1](x)
"""
)
NAMES = [
    "add", "iota", "sum", "repeat", "length", "fill_with", "plus", "raise", "apply", "many", "caught", "in_threads",
    "hold", "call_kept",
]  # fmt: skip
EXTENT = 5


class Failed:
    """An error in place of a value: its kind, or those of several arguments, of which a call may have any."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = set(kinds)
        self.text = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failed) and bool(self.kinds & other.kinds)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Failed({sorted(self.kinds)}, {self.text!r})"


class World:
    """One way to run a program: each step at once, or in a pipeline that ends when something is looked at."""

    def __init__(self, address: str, posted: bool) -> None:
        self.session = rpc.connect(address, call_timeout=60)
        self.posted = posted
        self.values: dict[int, Any] = {}
        self.tensors: dict[int, Any] = {}
        self.functions = {name: self.session[f"demo.{name}"] for name in NAMES}
        self._pipeline = contextlib.ExitStack()
        self.resume()

    def resume(self) -> None:
        if self.posted:
            self._pipeline.enter_context(self.session.pipeline())

    def pause(self) -> None:
        """End the pipeline. What failed is shown by those that have the error."""
        with contextlib.suppress(errors.RemoteError):
            self._pipeline.close()

    def call(self, name: str, *args: Any, future: bool = False) -> Any:
        """The result, or the future of it; the error's kind, if it failed or an argument of it had."""
        if any(isinstance(arg, Failed) for arg in args):
            return Failed(*(kind for arg in map(self.shown, args) if isinstance(arg, Failed) for kind in arg.kinds))
        function = self.functions[name]
        return self._attempt(function.future if future and self.posted else function, *args)

    def shown(self, value: Any) -> Any:
        return self._attempt(value.result) if isinstance(value, portcall.Future) else value

    def _attempt(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except errors.RemoteError as error:
            failed = Failed(error.kind)
            failed.text = str(error)
            return failed

    def close(self) -> None:
        self.pause()
        self.session.close()


# Functions of the client, made for a world and a number; they are called with a number.
def returning(world: World, k: int) -> Callable[[Any], Any]:
    return lambda v: v + k


def failing(world: World, k: int) -> Callable[[Any], Any]:
    def fail(v: Any) -> Any:
        raise (KeyError if k % 2 else ValueError)("of a callback")

    return fail


def nesting(world: World, k: int) -> Callable[[Any], Any]:
    apply = world.functions["apply"]

    def nest(v: Any, depth: int = k % 5) -> Any:
        return apply(lambda w: nest(w, depth - 1), v) + 1 if depth > 0 else v

    return nest


def asking(world: World, k: int) -> Callable[[Any], Any]:
    """Its own requests: a flood of futures, memory, and a pipeline inside of the callback."""
    add, plus = world.functions["add"], world.functions["plus"]

    def ask(v: Any) -> Any:
        answers = [add.future(v, i) for i in range(20 * (k % 3))]
        with world.session.pipeline():
            x = world.session.tensor(np.full(EXTENT, k, "float32"))
            plus(x, x)
        return v + float(x.numpy().sum()) + sum(answer.result() for answer in answers)

    return ask


def failing_below(world: World, k: int) -> Callable[[Any], Any]:
    """It calls what fails on the server, and catches that; or does not."""

    def fail(v: Any) -> Any:
        try:
            world.functions["raise"]("KeyError", "below")
        except KeyError:
            if k % 2:
                raise
        return v

    return fail


FUNCTIONS_OF_CLIENT = st.sampled_from([returning, failing, nesting, asking, failing_below])
SMALL = st.integers(-4, 4)
FUTURE = st.booleans()


class Programs(RuleBasedStateMachine):
    """Each step is taken in both worlds."""

    values, tensors = Bundle("values"), Bundle("tensors")

    def __init__(self, address: str) -> None:
        super().__init__()
        self.worlds = World(address, posted=True), World(address, posted=False)
        self.next = 0

    def number(self) -> int:
        self.next += 1
        return self.next

    def step(self, name: str, args: Callable[[World], tuple[Any, ...]], future: bool = False) -> int:
        number = self.number()
        for world in self.worlds:
            world.values[number] = world.call(name, *args(world), future=future)
        return number

    def check(self, show: Callable[[World], Any]) -> None:
        posted, plain = map(show, self.worlds)
        assert type(posted) is type(plain)
        assert posted == plain

    # ---- Memory ----

    @rule(target=tensors, value=SMALL)
    def allocate(self, value: int) -> int:
        number = self.number()
        for world in self.worlds:
            world.tensors[number] = world.session.tensor(np.full(EXTENT, value, "float32"))
        return number

    @rule(tensor=tensors, value=SMALL)
    def copy_to(self, tensor: int, value: int) -> None:
        for world in self.worlds:
            world.tensors[tensor].copyfrom(np.full(EXTENT, value, "float32"))

    @rule(source=tensors, other=tensors)
    def copy_among(self, source: int, other: int) -> None:
        for world in self.worlds:
            world.tensors[other].copyfrom(world.tensors[source])

    @rule(tensor=consumes(tensors))
    def free(self, tensor: int) -> None:
        for world in self.worlds:
            del world.tensors[tensor]

    @rule(tensor=tensors)
    def read(self, tensor: int) -> None:
        self.check(lambda world: world.tensors[tensor].numpy().tolist())

    # ---- Calls ----

    @rule(target=values, a=SMALL, b=SMALL, future=FUTURE)
    def begin(self, a: int, b: int, future: bool) -> int:
        return self.step("add", lambda _: (a, b), future)

    @rule(target=values, a=values, b=values, future=FUTURE)
    def add(self, a: int, b: int, future: bool) -> int:
        return self.step("add", lambda world: (world.values[a], world.values[b]), future)

    @rule(target=values, kind=st.sampled_from(["KeyError", "ValueError"]), future=FUTURE)
    def fail(self, kind: str, future: bool) -> int:
        return self.step("raise", lambda _: (kind, "x"), future)

    @rule(target=values, n=st.integers(0, 9))
    def make_and_sum(self, n: int) -> int:
        number = self.number()
        for world in self.worlds:
            world.values[number] = world.call("sum", world.call("iota", n))
        return number

    @rule(target=values, n=st.integers(0, 1 << 20))
    def large_result(self, n: int) -> int:
        number = self.number()
        for world in self.worlds:
            world.values[number] = world.call("length", world.call("repeat", "x", n))
        return number

    @rule(tensor=tensors, value=values)
    def fill(self, tensor: int, value: int) -> None:
        self.step("fill_with", lambda world: (world.tensors[tensor], world.values[value]))

    @rule(one=tensors, other=tensors, future=FUTURE)
    def plus(self, one: int, other: int, future: bool) -> None:
        self.step("plus", lambda world: (world.tensors[one], world.tensors[other]), future)

    @rule(value=consumes(values))
    def drop(self, value: int) -> None:
        for world in self.worlds:
            del world.values[value]

    @rule(value=values)
    def look(self, value: int) -> None:
        self.check(lambda world: world.shown(world.values[value]))

    @rule()
    def pause(self) -> None:
        for world in self.worlds:
            world.pause()
            world.resume()

    # ---- Callbacks ----

    @rule(target=values, make=FUNCTIONS_OF_CLIENT, k=SMALL, value=values, how=st.sampled_from(["apply", "caught"]),
          future=FUTURE)  # fmt: skip
    def call_back(self, make: Any, k: int, value: int, how: str, future: bool) -> int:
        number = self.number()
        for world in self.worlds:
            result = world.call(how, make(world, k), world.values[value], future=future)
            world.values[number] = world.call("length", result) if how == "caught" and make is failing else result
        return number

    @rule(tensor=tensors, k=SMALL)
    def call_back_with_a_tensor(self, tensor: int, k: int) -> None:
        def change(x: Any) -> Any:
            x.copyfrom(x.numpy() + k)

        self.step("apply", lambda world: (change, world.tensors[tensor]))

    @rule(target=values, n=st.integers(0, 12), k=SMALL, how=st.sampled_from(["many", "in_threads"]), future=FUTURE)
    def call_back_often(self, n: int, k: int, how: str, future: bool) -> int:
        return self.step(how, lambda world: (returning(world, k), n), future)

    @rule(make=FUNCTIONS_OF_CLIENT, k=SMALL)
    def hold(self, make: Any, k: int) -> None:
        self.step("hold", lambda world: (make(world, k),))

    @rule(target=values, value=values, future=FUTURE)
    def call_kept(self, value: int, future: bool) -> int:
        return self.step("call_kept", lambda world: (world.values[value],), future)

    def teardown(self) -> None:
        try:
            for number in self.worlds[1].values:
                self.look(number)
            for number in self.worlds[1].tensors:
                self.read(number)
        finally:
            for world in self.worlds:
                world.close()


def test_programs_are_the_same_posted_and_one_by_one(server: Serving) -> None:
    chosen = settings(max_examples=PROGRAMS, stateful_step_count=30, suppress_health_check=list(HealthCheck))
    # No shrinking: a program that hangs would take its timeout at each attempt.
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    chosen = settings(chosen, phases=phases)
    run_state_machine_as_test(lambda: Programs(server.address), settings=chosen)  # type: ignore[arg-type]
