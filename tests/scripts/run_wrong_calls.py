# SPDX-License-Identifier: Apache-2.0
"""Call the functions of a language model with right and wrong arguments: ``python … FOLDER COUNT SEED``.

Each call ends or raises an error of Python's; in the end a new cache answers as it did at first.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import portcall
from portcall import Shape, get_global_func

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))
from vm.language_model import CONFIG, SIZES, history  # noqa: E402  the folder is known now

NUMBERS = [-(1 << 63), -1, 0, 1, 2, 3, 5, 16, 33, 65, 1 << 31, 1 << 40, (1 << 63) - 1]
LIKELY = [0, 1, 2, 3, 4, 5, 9]
STATE = {"add_sequence": "n", "remove_sequence": "n", "fork_sequence": "nnn", "popn": "nn", "begin_forward": "ss",
         "end_forward": "", "clear": ""}  # fmt: skip
OF_CACHE = {"attention_with_fused_qkv": "nftt", "get_query_positions": "", "debug_get_kv": "nnntt", "empty": "",
            "enable_sliding_window_for_seq": "nnn", "get_num_available_pages": "",
            "get_total_sequence_length": ""}  # fmt: skip
RECURRENT = {"get": "rnnt", "set": "rnnt", "debug_get": "rnnn", "create": "nnnkkl"}
SAMPLING = {"sample_top_p_from_logits": "lppp", "sample_top_p_from_prob": "lpp", "multinomial_from_uniform": "ll",
            "apply_repetition_penalty": "lip", "apply_presence_and_frequency_penalty": "liipp",
            "apply_softmax_with_temperature": "lp"}  # fmt: skip
PARAMETERS = [0.0, 0.3, 0.9, 1.0, 1, 2.0, 1e-7, -1.0, 1e30, float("inf"), float("nan")]
WEIGHTS = {"clear": 0.05, "begin_forward": 4, "attention_with_fused_qkv": 4, "add_sequence": 2}


class Caller:
    """Draws calls for caches of one library."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.random = random.Random(seed)
        self.vm = portcall.vm.create(portcall.load_module(folder / "language.so"))
        self.functions = {f"kv_state_{name}": f"a{kinds}" for name, kinds in STATE.items()}
        self.functions |= {f"rnn_state_{name}": kinds for name, kinds in RECURRENT.items()}
        self.functions |= {f"attention_kv_cache_{name}": f"c{kinds}" for name, kinds in OF_CACHE.items()}
        self.functions |= SAMPLING
        self.names = list(self.functions)
        self.chances = [next((w for end, w in WEIGHTS.items() if name.endswith(end)), 1.0) for name in self.names]
        heads, keys, width = CONFIG["heads"], CONFIG["kv_heads"], CONFIG["head_dim"]
        shapes = [(n, h, width) for n in (1, 2, 5, 9) for h in (heads + 2 * keys, heads)]
        shapes += [(CONFIG["layers"], n, keys, width) for n in (1, 2, 5)] + [(1,), (0, heads, width)]
        shapes += [(n, 3) for n in (1, 1, 2)]
        self.tensors = [portcall.tensor(np.ones(shape, "float32")) for shape in shapes]
        self.tensors += [portcall.tensor(np.ones((2, heads, width), kind)) for kind in ("float16", "int8", "float64")]
        self.caches = [self.made(windows) for windows in (0, 1)]
        self.kernels = [[portcall.convert(kernel)] for kernel in (read, write)]
        self.states = [self.recurrent()]
        self.create = get_global_func("vm.builtin.paged_attention_kv_cache_create")
        self.given: list[Any] = []
        portcall.register_func("vm.builtin.paged_attention_kv_cache_create", self.watched, override=True)
        machine = portcall.vm.create(portcall.load_module(folder / "language.so"))
        machine["create_tir_paged_kv_cache"](*(Shape([size]) for size in (2, 40, 16, 16, 0)))
        portcall.register_func("vm.builtin.paged_attention_kv_cache_create", self.create, override=True)

    def made(self, windows: int) -> Any:
        return self.vm["create_tir_paged_kv_cache"](*(Shape([size]) for size in (4, 100, 16, 16, windows)))

    def recurrent(self) -> Any:
        return get_global_func("vm.builtin.rnn_state_create")(
            2, 4, 3, *self.kernels, [portcall.tensor(np.ones(3, "f4"))]
        )

    def watched(self, *args: Any) -> Any:
        self.given = list(args)
        return self.create(*args)

    def value(self, kind: str) -> Any:
        if self.random.random() < 0.04:
            kind = self.random.choice("nsftxclipark")
        if kind == "n":
            return self.random.choice(LIKELY if self.random.random() < 0.9 else NUMBERS)
        if kind == "s":
            return Shape([self.value("n") for _ in range(self.random.choice([1, 1, 1, 2, 2, 0, 5]))])
        if kind == "f":
            return self.random.choice([0.2, 1.0, 1, float("nan"), -1e300])
        if kind == "t":
            return self.random.choice(self.tensors)
        if kind == "p":
            return self.random.choice(PARAMETERS)
        if kind in "li":
            return self.row(kind)
        if kind == "k":
            return self.random.choice([*self.kernels, []])
        if kind == "r":
            return self.random.choice(self.states)
        if kind == "a":
            return self.random.choice([*self.caches, *self.states])
        return self.random.choice([None, "text", *self.caches]) if kind == "x" else self.random.choice(self.caches)

    def row(self, kind: str) -> portcall.Tensor:
        """Logits, chances or ids, now and then some that cannot be."""
        size = self.random.choice([1, 1, 3, 8, 8, 8, 40, 0])
        values: list[float] = [self.random.choice([0.1, 0.25, 1.0, 3.0]) for _ in range(size)]
        if kind == "i":
            values = [self.random.randrange(8) for _ in range(size)]
        if values and self.random.random() < 0.3:
            wrong = [-1, 99, 1 << 30, -(1 << 31)] if kind == "i" else [0.0, -2000.0, 1e30, *PARAMETERS]
            values[self.random.randrange(size)] = self.random.choice(wrong)
        shape = self.random.choice([(size,), (1, size), (1, 1, size), (size, 1)])
        return portcall.tensor(np.array(values, "int32" if kind == "i" else "float32").reshape(shape))

    def call(self) -> None:
        if self.random.random() < 0.02:
            args = list(self.given)
            for _ in range(self.random.randint(0, 2)):
                place = self.random.randrange(len(args))
                args[place] = self.random.choice(
                    [self.value(self.random.choice("nsftxc")), self.random.choice(self.given)]
                )
            self.caches[self.random.randrange(2)] = self.create(*args[: self.random.choice([28, 28, 28, 29, 27])])
            return
        (name,) = self.random.choices(self.names, self.chances)
        args = [self.value(kind) for kind in self.functions[name]]
        if self.random.random() < 0.02:
            args = args[:-1] if self.random.random() < 0.5 else [*args, self.value("x")]
        if name == "rnn_state_create" and len(args) > 5 and self.random.random() < 0.9:
            args[5] = [args[5]]
        made = get_global_func(f"vm.builtin.{name}")(*args)
        if name == "rnn_state_create" and self.random.random() < 0.1:
            self.states = [made, self.recurrent()]


def read(storage: Any, slots: Any, steps: Any, out: Any) -> None:
    out.numpy()[...] = storage.numpy()[slots.numpy(), steps.numpy()]


def write(storage: Any, slots: Any, steps: Any, given: Any) -> None:
    values = storage.numpy()
    values[slots.numpy(), (steps.numpy() + 1) % values.shape[1]] = given.numpy()


def attempt(call: Callable[[], None]) -> str:
    try:
        call()
    except (ValueError, TypeError, RuntimeError, OverflowError, MemoryError, IndexError) as error:
        return type(error).__name__
    return "ran"


def main(folder: Path, count: int, seed: str) -> int:
    caller = Caller(folder, seed)
    endings = Counter(attempt(caller.call) for _ in range(count))
    print(", ".join(f"{number:,} {ending}" for ending, number in endings.most_common()))
    weights = portcall.vm.language(folder / "language.so", folder / "weights", tokens=SIZES[1], chunk=SIZES[2])
    answers = history(caller.vm, get_global_func, Shape, portcall.tensor, weights._params)
    return 0 if answers == json.loads((folder / "history.json").read_text()) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
