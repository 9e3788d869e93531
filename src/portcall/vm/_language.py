# SPDX-License-Identifier: Apache-2.0
"""Language models: a machine, its weights and a cache of keys and values, used by ids of tokens.

The functions have the names that models of MLC-LLM have: ``create_tir_paged_kv_cache``, ``embed``, ``prefill``,
``decode``, ``batch_decode``. What is called by ``vm.builtin.…`` is in the core; in a session all of it is there: ids go
and logits come.
"""

from __future__ import annotations

import itertools
import json
import operator
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import portcall
from portcall import Device, Module, get_global_func, load_module
from portcall.errors import ModelError, SessionBrokenError, SessionClosedError, SessionTimeoutError
from portcall.vm import _weights
from portcall.vm._machine import VirtualMachine, create
from portcall.vm._values import REMOTE

if TYPE_CHECKING:
    import numpy

_CREATE = "create_tir_paged_kv_cache"
_NOT_YET = object()
_GONE = (SessionClosedError, SessionBrokenError, SessionTimeoutError)
_MOST = 1 << 30  # the core's bound of sizes
_NEEDED = (_CREATE, "embed", "prefill", "decode")


def language(
    library: Module | str | os.PathLike[str],
    weights: str | os.PathLike[str],
    device: Device | str | None = None,
    *,
    sequences: int = 4,
    tokens: int = 2048,
    chunk: int = 512,
    page_size: int = 16,
    vocabulary: int | None = None,
) -> LanguageModel:
    """Return a language model that is ready to generate::

        model = portcall.vm.language("model.so", "weights/")
        for token in model.generate([1, 15043], tokens=64):
            …

    Parameters:
        library: a library that TVM exported, or its path; one of a session for a model that runs there.
        weights: the folder with ``tensor-cache.json``, on this machine.
        device: where it runs; of the session for a library of one.
        sequences: how many there are mostly; more are possible.
        tokens: how many the cache holds at once, of all sequences.
        chunk: how many tokens are computed at once; longer prompts are given in parts.
        page_size: the tokens of a page for which the library was compiled.
        vocabulary: the number of ids, at most that of the logits; by default what the library says, or all.

    Raises:
        TypeError: a size is no int.
        ValueError: a size is too small or large, or the library has no language model that is supported; the message
            says what is missing.
        ModelError: the weights are damaged, or not those of this library.
        FileNotFoundError: the folder has no weights.
        FunctionNotFoundError: the library calls functions that nobody has.
    """
    tokens = _integer("tokens", tokens, 1, _MOST)
    at_once = min(_integer("chunk", chunk, 1, _MOST), tokens)
    sizes = [
        _integer("sequences", sequences, 1, _MOST), tokens, at_once, _integer("page_size", page_size, 1, _MOST), 0,
    ]  # fmt: skip
    module = library if isinstance(library, Module) else load_module(library)
    machine = create(module, device)
    if module.type_key == REMOTE and not hasattr(machine.device, "session"):
        raise ValueError("the library is one of a session: give a device of that, such as session.cpu()")
    missing = [name for name in _NEEDED if name not in machine.functions]
    if missing:
        raise ValueError(
            f"the library is no language model with a paged cache: it has no function {', '.join(missing)} "
            f"(it has {', '.join(machine.functions)})"
        )
    taken = len(machine.signature(_CREATE).parameters)
    if taken not in (0, len(sizes)):  # 0: a server of TVM tells none
        raise ValueError(
            f"the library's {_CREATE} takes {taken} sizes: only those with {len(sizes)} are supported "
            "(sequences, tokens, tokens at once, tokens of a page, sliding windows)"
        )
    place = _Place(machine)
    metadata = _metadata(machine)
    names = _names(metadata)
    params = _load(machine, place, weights, names)
    cache = machine.module[_CREATE](*(place.shape([size]) for size in sizes))
    logits = _vocabulary(machine)
    model = LanguageModel(machine, place, params, cache, at_once, logits or 1)
    if not logits:
        with model.sequence() as first:
            model.vocabulary = len(first.feed([0]))
    if vocabulary is not None:
        model.vocabulary = _integer("vocabulary", vocabulary, 1, model.vocabulary)  # more ids than logits there are not
    elif 1 <= (named := _vocabulary_of(metadata)) <= model.vocabulary:
        model.vocabulary = named
    return model


class _Place:
    """Functions and values of where a machine is: this process, or a session."""

    def __init__(self, machine: VirtualMachine) -> None:
        self._machine = machine
        self._session = getattr(machine.device, "session", None)
        self._functions: dict[str, Any] = {}
        self._called: dict[str, Any] = {}  # functions of the machine

    def function(self, name: str) -> Any:
        if name not in self._functions:
            find = self._session.get_function if self._session else get_global_func
            self._functions[name] = find(name)
        return self._functions[name]

    def state(self, name: str, *args: Any) -> Any:
        return self.function(f"vm.builtin.kv_state_{name}")(*args)

    def of_cache(self, name: str, *args: Any) -> Any:
        return self.function(f"vm.builtin.attention_kv_cache_{name}")(*args)

    def posting(self) -> AbstractContextManager[None]:
        """In a session, calls inside of the block do not wait for each other: all are one round trip."""
        return self._session.pipeline() if self._session else nullcontext()

    def shape(self, extents: Sequence[int], after: Any = None) -> Any:
        """Make a shape. If the posted call `after` failed, so does this one, and all that uses the shape."""
        return self._machine._values.shape(extents, after)

    def tensor(self, array: Any) -> Any:
        return portcall.tensor(array, device=self._machine.device)

    def weight(self, weight: _weights.Weight) -> Any:
        device = self._machine.device
        if self._session or device.device_type != portcall.cpu().device_type:
            return self.tensor(weight.array())
        return weight.tensor()

    def call(self, name: str, *args: Any) -> Any:
        if name not in self._called:
            self._called[name] = self._machine.module[name]
        return self._called[name](*args)

    def first(self, pair: Any) -> Any:
        """Return the first item of a tuple that a function of the machine returned."""
        return self.function("ffi.ArrayGetItem")(pair, 0) if self._session else pair[0]


def _metadata(machine: VirtualMachine) -> dict[str, Any]:
    if "_metadata" not in machine.functions:
        return {}
    try:
        found = json.loads(str(machine["_metadata"]()))
        return dict(found)
    except (ValueError, TypeError) as error:
        raise ValueError(f"the library's metadata are no JSON object: {error}") from None


def _names(metadata: dict[str, Any]) -> list[str]:
    try:
        return [str(parameter["name"]) for parameter in metadata.get("params", ())]
    except (TypeError, KeyError):
        raise ValueError("the library's metadata name no weights: 'params' is no list of objects with a name") from None


def _vocabulary_of(metadata: dict[str, Any]) -> int:
    """Return the number of ids that the metadata name, 0 where they name none."""
    config = metadata.get("model_config", metadata)
    found = config.get("vocab_size") if isinstance(config, dict) else None
    return found if type(found) is int else 0


def _integer(name: str, value: Any, least: int, most: int) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name.removesuffix(' is')} must be an int, got {value!r:.40}")
    if not least <= number <= most:
        raise ValueError(f"{name} {number} (must be {least}-{most})")
    return number


def _vocabulary(machine: VirtualMachine) -> int | None:
    """Read the number of logits from the type of what ``decode`` returns."""
    from portcall.vm._types import extents_of, items_of

    for text in items_of(machine.signature("decode").result)[:1]:
        last = (extents_of(text) or ("",))[-1]
        return last if isinstance(last, int) else None
    return None


def _load(machine: VirtualMachine, place: _Place, folder: str | os.PathLike[str], names: list[str]) -> Any:
    """Bring the weights to where the machine is, one after the other, and return them as a tuple there."""
    listed = machine.signature("embed").parameters[1:]
    expected = listed[0].items if listed else ()
    found: dict[str, Any] = {}
    with place.posting():
        for weight in _weights.read(folder):
            if weight.name in found:
                raise ModelError(f"{os.fspath(folder)}: there are two weights '{weight.name}'")
            if not names or weight.name in names:
                found[weight.name] = place.weight(weight)
    names = names or list(found)
    absent = [name for name in names if name not in found]
    if absent or (expected and len(names) != len(expected)):
        what = f"there is no '{absent[0]}'" if absent else f"there are {len(names)}, the library takes {len(expected)}"
        raise ModelError(f"{os.fspath(folder)}: these are not the weights of this library: {what}")
    for name, parameter in zip(names, expected, strict=False):  # a server of TVM tells no types
        tensor, shape = found[name], parameter.shape
        same = shape is None or (len(shape) == len(tensor.shape) and all(
            not isinstance(n, int) or n == m for n, m in zip(shape, tensor.shape, strict=True)
        ))  # fmt: skip
        if not same or (parameter.dtype and parameter.dtype != str(tensor.dtype)):
            got = f"{tensor.dtype}{list(tensor.shape)}"
            raise ModelError(f"{os.fspath(folder)}: '{name}' is {got}, the library takes {parameter.type}")
    return place.function("vm.builtin.make_tuple")(*(found[name] for name in names))


class LanguageModel:
    """A language model with its cache. What :func:`language` returns.

    Several threads may use it; their calls go one after the other.

    Attributes:
        machine: the machine that runs it.
        vocabulary: the number of ids.
    """

    def __init__(
        self, machine: VirtualMachine, place: _Place, params: Any, cache: Any, chunk: int, vocabulary: int
    ) -> None:
        self.machine, self.vocabulary = machine, vocabulary
        self._place, self._params, self._cache, self._chunk = place, params, cache, chunk
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._width = 0  # of an embedded token

    @property
    def free_pages(self) -> int:
        """How many pages of the cache no sequence has."""
        return int(self._place.of_cache("get_num_available_pages", self._cache))

    @contextmanager
    def sequence(self) -> Iterator[TokenSequence]:
        """A new, empty sequence, whose pages are free again at the end of the block."""
        made = TokenSequence(self, next(self._numbers))
        with self._lock:
            self._place.state("add_sequence", self._cache, made._id)
        try:
            yield made
        finally:
            made.close()

    def generate(
        self,
        ids: Iterable[int],
        tokens: int | None = None,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Iterable[int] = (),
    ) -> Iterator[int]:
        """Yield the ids that follow a prompt, as they are computed. See :meth:`TokenSequence.generate`."""
        with self.sequence() as made:
            yield from made.generate(ids, tokens, temperature=temperature, top_p=top_p, seed=seed, stop=stop)

    def decode(self, sequences: Sequence[TokenSequence], ids: Iterable[int]) -> numpy.ndarray[Any, Any]:
        """Give one more token to each of several sequences at once; return logits, ``[sequences, vocabulary]``.

        Raises:
            TypeError: an id is no int.
            ValueError: an id that there is not, another number of ids, a sequence twice, or one that has ended.
            RuntimeError: the cache is full; then no sequence has changed.
        """
        given = self._checked(ids)
        if len(given) != len(sequences):
            raise ValueError(f"{len(sequences)} sequences, but {len(given)} ids")
        if any(sequence._model is not self for sequence in sequences):
            raise ValueError("a sequence of another model: its keys and values are in the cache of that one")
        return self._forward("batch_decode", sequences, 1, given)

    def _checked(self, ids: Iterable[int]) -> list[int]:
        given = [_integer(f"the id at {at} is", i, 0, self.vocabulary - 1) for at, i in enumerate(ids)]
        if not given:
            raise ValueError("no ids: at least one is needed")
        return given

    def _forward(
        self, name: str, sequences: Sequence[TokenSequence], count: int, ids: list[int]
    ) -> numpy.ndarray[Any, Any]:
        """Give ``count`` tokens to each sequence; an error or Ctrl-C leaves all of them as they were."""
        p, begun = self._place, _NOT_YET
        with self._lock:
            numbers = [sequence._open() for sequence in sequences]
            try:
                with p.posting():
                    begun = p.state("begin_forward", self._cache, p.shape(numbers), p.shape([count] * len(numbers)))
                    found = self._computed(name, ids, begun)
            except BaseException:
                if begun is not _NOT_YET and not _refused(begun):
                    for sequence in sequences:
                        sequence._take_back(count)
                raise
            for sequence in sequences:
                sequence._length += count
        return found

    def _computed(self, name: str, ids: list[int], begun: Any) -> numpy.ndarray[Any, Any]:
        import numpy

        p = self._place
        x = p.call("embed", p.tensor(numpy.array(ids, "int32")), self._params)
        if not self._width:
            self._width = int(_now(x).shape[-1])
        rows = (len(ids), 1) if name == "batch_decode" else (1, len(ids))
        x = p.function("vm.builtin.reshape")(x, p.shape([*rows, self._width], begun))
        logits = p.first(p.call(name, x, self._cache, self._params))
        p.state("end_forward", self._cache)
        found: numpy.ndarray[Any, Any] = _now(logits).numpy()
        return found.reshape(-1, found.shape[-1])


def _now(value: Any) -> Any:
    """Return what a posted call returns; what was not posted is there."""
    return value.result() if isinstance(value, portcall.Future) else value


def _refused(begun: Any) -> bool:
    """Say whether the cache did not begin a batch; not so where the session is gone, and with it all sequences."""
    try:
        _now(begun)
    except Exception as error:
        return not isinstance(error, _GONE)
    return False


class TokenSequence:
    """Tokens that a model has seen, with their keys and values in its cache. Made by ``sequence()`` and ``fork()``."""

    def __init__(self, model: LanguageModel, number: int, length: int = 0) -> None:
        self._model, self._id, self._length = model, number, length
        self._ended = False

    def __len__(self) -> int:
        return self._length

    def _open(self) -> int:
        if self._ended:
            raise ValueError("the sequence has ended: it is used in the block of its with statement")
        return self._id

    def close(self) -> None:
        """End it: its pages are free again. So they are where its session is gone."""
        with self._model._lock:
            if not self._ended:
                self._ended = True
                with suppress(*_GONE):
                    self._model._place.state("remove_sequence", self._model._cache, self._id)

    def _take_back(self, count: int) -> None:
        """Undo what was begun; a sequence that cannot be as it was has ended, and gives no wrong logits."""
        try:
            self._model._place.state("popn", self._model._cache, self._id, count)
        except Exception:  # its session is gone, say
            self._ended = True

    def feed(self, ids: Iterable[int]) -> numpy.ndarray[Any, Any]:
        """Add tokens, and return the logits after the last of them, ``[vocabulary]``.

        Raises:
            ValueError: no id, or one that there is not.
            RuntimeError: the cache is full: the tokens of this call's earlier parts stay.
        """
        model, given = self._model, self._model._checked(ids)
        for at in range(0, len(given), model._chunk):
            part = given[at : at + model._chunk]
            logits = model._forward("decode" if len(part) == 1 else "prefill", [self], len(part), part)
        last: numpy.ndarray[Any, Any] = logits[-1]
        return last

    @contextmanager
    def fork(self, at: int | None = None) -> Iterator[TokenSequence]:
        """A second sequence that goes on after the first `at` tokens of this one, by default after all of them.

        The tokens are computed once, and their whole pages are shared.

        Raises:
            ValueError: there are not so many tokens.
        """
        model = self._model
        with model._lock:
            place = len(self) if at is None else _integer("at", at, 0, len(self))
            made = TokenSequence(model, next(model._numbers), place)
            model._place.state("fork_sequence", model._cache, self._open(), made._id, place)
        try:
            yield made
        finally:
            made.close()

    def pop(self, count: int) -> None:
        """Take the last tokens back.

        Raises:
            ValueError: there are not so many.
        """
        with self._model._lock:
            self._open()
            number = _integer("count", count, 0, len(self))
            self._model._place.state("popn", self._model._cache, self._id, number)
            self._length -= number

    def generate(
        self,
        ids: Iterable[int],
        tokens: int | None = None,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Iterable[int] = (),
    ) -> Iterator[int]:
        """Yield the ids that follow these, as they are computed.

        Parameters:
            tokens: how many at most; None goes on until an id of `stop`, or until the cache is full (a RuntimeError).
            temperature: 0 takes the most likely id.
            top_p: draws among the most likely ids that have this share of the probability together.
            seed: makes the draws the same each time.
            stop: ids after which it ends; they are not yielded.

        Raises:
            TypeError: an id or `tokens` is no int.
            ValueError: an id that there is not, a negative temperature, or a top_p outside of 0 to 1.
            ModelError: the logits are no numbers (NaN).
            RuntimeError: the cache is full.
        """
        import numpy

        if not (temperature >= 0 and 0 < top_p <= 1):
            raise ValueError(
                f"temperature {temperature} (must be at least 0), top_p {top_p} (must be above 0, at most 1)"
            )
        wanted = None if tokens is None else _integer("tokens", tokens, 0, _MOST)
        random, ends = numpy.random.default_rng(seed), frozenset(stop)
        logits = self.feed(ids)
        if wanted == 0:
            return
        for made in itertools.count(1):
            token = pick(logits, temperature, top_p, random)
            if token in ends:
                return
            yield token
            if made == wanted:
                return
            logits = self.feed([token])


def pick(logits: Any, temperature: float, top_p: float, random: Any) -> int:
    """Return an id: the most likely one, or one drawn from the most likely that have `top_p` of the probability."""
    import numpy

    likely = int(logits.argmax())
    if not numpy.isfinite(logits[likely]):
        raise ModelError(
            f"the logits are no numbers ({logits[likely]}): are the weights those of this library, and whole?"
        )
    if temperature == 0:
        return likely
    with numpy.errstate(over="ignore"):  # of a temperature near 0: then only the most likely is left
        chances = numpy.exp((logits.astype(numpy.float64) - float(logits[likely])) / temperature)
    chances /= chances.sum()
    order = numpy.argsort(-chances, kind="stable")
    sums = numpy.cumsum(chances[order])
    kept = order[: int(numpy.searchsorted(sums, top_p * sums[-1])) + 1]
    share = chances[kept]
    return int(random.choice(kept, p=share / share.sum()))
