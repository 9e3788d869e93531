# SPDX-License-Identifier: Apache-2.0
"""``portcall bench m.so --weights DIR``: tokens a second of a language model, of its prefill and of its decode."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from portcall.bench import format_duration
from portcall.cli._call import isolate_here, open_place
from portcall.cli._command import with_options
from portcall.cli._output import print_json, print_line

if TYPE_CHECKING:
    from portcall.vm import LanguageModel

ROUNDS = 5  # after one that warms up
NOT_FOR_IT = ("profile", "trace", "html", "junit", "pyperf", "energy", "keep", "end_to_end", "against", "against_rpc")


def language_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--weights", type=click.Path(), metavar="DIR", help="Time a language model with these weights."),
        click.option("--tokens", type=click.IntRange(1, 1 << 20), default=64, show_default=True,
                     help="With --weights: tokens to generate."),
        click.option("--prompt", type=click.IntRange(1, 1 << 20), default=32, show_default=True,
                     help="With --weights: tokens of the prompt."),
    ]  # fmt: skip
    return with_options(function, options)


def bench_language(ctx: click.Context, given: dict[str, Any], json_to: str | None) -> None:
    """Time a language model, here or in a session, and print the result."""
    from portcall.vm import language

    path, prompt, tokens = given["file"], given["prompt"], given["tokens"]
    for option in NOT_FOR_IT:
        if given[option]:
            raise click.UsageError(f"--{option.replace('_', '-')} does not go with --weights")
    isolate_here(ctx, given, f"the language model {path}")
    with open_place(given, path, [given["device"]]) as place:
        started = time.perf_counter()
        capacity = prompt + tokens + 1
        model = language(place.library, given["weights"], place.device, sequences=1, tokens=capacity)
        loaded = time.perf_counter() - started
        rounds = [one_round(model, prompt, tokens) for _ in range((given["repeat"] or ROUNDS) + 1)][1:]
        prefill, decode = ([each[part] for each in rounds] for part in (0, 1))
        report = {
            "model": path, "weights": given["weights"], "prompt": prompt, "tokens": tokens, "load": loaded,
            "prefill": prefill, "decode": decode,
            "prefill_tokens_per_s": prompt / statistics.median(prefill),
            "decode_tokens_per_s": tokens / statistics.median(decode),
            **place.facts(),
        }  # fmt: skip
        if json_to is not None:
            print_json(report, json_to)
            return
        print_line(f"language model {path} on {place.name}")
        print_line(f"prefill  {in_words(prefill, prompt)}")
        print_line(f"decode   {in_words(decode, tokens)}")
        print_line(f"load     {format_duration(loaded)}, weights and cache of {capacity} tokens")
        where = ", round trips included" if place.session else ""
        print_line(f"medians of {len(rounds)} rounds, with least and most; greedy{where}")


def one_round(model: LanguageModel, prompt: int, tokens: int) -> tuple[float, float]:
    """Return the seconds of a prompt and of the tokens after it."""
    ids = [i * 7919 % model.vocabulary for i in range(prompt)]
    with model.sequence() as sequence:
        start = time.perf_counter()
        logits = sequence.feed(ids)
        middle = time.perf_counter()
        for _ in range(tokens):
            logits = sequence.feed([int(logits.argmax())])
        return middle - start, time.perf_counter() - middle


def in_words(seconds: Sequence[float], tokens: int) -> str:
    """Return tokens a second, and how long one takes."""
    rates = sorted(tokens / each for each in seconds)
    one = format_duration(statistics.median(seconds) / tokens)
    return (
        f"{statistics.median(rates):,.1f} tokens/s [{rates[0]:,.1f}, {rates[-1]:,.1f}], {one} a token, {tokens} tokens"
    )
