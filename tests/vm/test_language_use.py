# SPDX-License-Identifier: Apache-2.0
"""portcall.vm.language over sessions, with weights that are not right, and on the command line."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import portcall
from farm.boards import board, client
from farm.running import running_farm
from portcall import rpc
from portcall.bench import format_size
from portcall.cli import cli
from portcall.errors import ModelError, SessionClosedError
from portcall.vm import LanguageModel, TokenSequence, _weights, language
from rpc.serving import serving
from vm.language_model import CONFIG, write_shards
from vm.test_cli import run

pytestmark = pytest.mark.peers


def open_here(folder: Path, weights: Path | None = None) -> LanguageModel:
    return language(folder / "language.so", weights or folder / "weights", tokens=64, chunk=16)


def open_there(session: rpc.Session, folder: Path) -> LanguageModel:
    library = session.load_module(session.upload(folder / "language.so"))
    return language(library, folder / "weights", session.cpu(), tokens=64, chunk=16)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving("--key", "k") as running:
        yield running.port


@pytest.fixture
def session(port: int) -> Iterator[rpc.Session]:
    with rpc.connect("127.0.0.1", port, key="k", call_timeout=60) as made:
        yield made


@pytest.mark.parametrize("step", ["embed", "prefill", "decode", "batch_decode", "end_forward"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_sequences_are_as_before_after_an_error_in_the_middle(
    compiled: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: type[BaseException]
) -> None:
    model = open_here(compiled)

    def failing(find: Callable[..., Any]) -> Callable[..., Any]:
        def call(name: str, *args: Any) -> Any:
            if name != step:
                return find(name, *args)
            if step != "embed":
                find(name, *args)
            raise error

        return call

    with model.sequence() as one, model.sequence() as other:
        one.feed([1, 2, 3])
        other.feed([1, 2, 3])
        with one.fork() as two:
            free = model.free_pages
            works = {"prefill": lambda: one.feed([7, 8]), "batch_decode": lambda: model.decode([one, two], [5, 6])}
            with monkeypatch.context() as patch:
                for name in ("call", "state"):
                    patch.setattr(model._place, name, failing(getattr(model._place, name)))
                with pytest.raises(error):
                    works.get(step, lambda: one.feed([7]))()
            assert (len(one), len(two), model.free_pages) == (3, 3, free)
            expected = other.feed([9])
            assert np.array_equal(one.feed([9]), expected)
            assert np.array_equal(two.feed([9]), expected)


def test_session_generates_what_this_machine_does(session: rpc.Session, compiled: Path) -> None:
    here, there = open_here(compiled), open_there(session, compiled)
    assert there.vocabulary == here.vocabulary == CONFIG["vocab"]
    prompt = list(range(20))  # in two parts
    assert list(there.generate(prompt, 9)) == list(here.generate(prompt, 9))
    with there.sequence() as one, here.sequence() as same:
        assert np.array_equal(one.feed(prompt), same.feed(prompt))
        with one.fork(17) as two, same.fork(17) as other:
            assert np.array_equal(there.decode([one, two], [5, 6]), here.decode([same, other], [5, 6]))
        one.pop(3)
        assert len(one) == 18


def test_session_says_what_it_refuses_and_goes_on(session: rpc.Session, compiled: Path) -> None:
    model = open_there(session, compiled)
    with model.sequence() as one:
        one.feed([1, 2, 3])
        with pytest.raises(RuntimeError, match="the cache is full"):
            one.feed([4] * 80)
        with pytest.raises(ValueError, match="the id at 0 is -1"):
            one.feed([-1])
        with model.sequence() as two:
            pages = model.free_pages
        with pytest.raises(ValueError, match="ended"), two.fork():
            pass
        assert pages == model.free_pages
        one.pop(len(one) - 2)
        one.feed([3])


def test_token_of_a_session_is_posted_and_a_full_cache_stays_as_it_was(
    session: rpc.Session, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = open_here(compiled), open_there(session, compiled)
    with there.sequence() as one, here.sequence() as same:
        while there.free_pages:
            assert np.array_equal(one.feed(range(16)), same.feed(range(16)))
        for each in (one, same):
            each.pop(1)
            each.feed([1])  # a batch of one token, of which the cache has the tables
        with pytest.raises(RuntimeError, match="the cache is full"):
            one.feed([2])  # what follows in its round trip does nothing
        assert len(one) == len(same)
        for each in (one, same):
            each.pop(1)
        kinds = set()
        for name in ("call", "state"):
            find = getattr(there._place, name)

            def call(*args: Any, find: Callable[..., Any] = find) -> Any:
                found = find(*args)
                kinds.add(type(found))
                return found

            monkeypatch.setattr(there._place, name, call)
        assert np.array_equal(one.feed([5]), same.feed([5]))
        assert kinds == {portcall.Future}


def test_batch_of_a_session_has_more_sequences_than_a_tensor_has_dimensions(
    session: rpc.Session, compiled: Path
) -> None:
    library = session.load_module(session.upload(compiled / "language.so"))
    model = language(library, compiled / "weights", session.cpu(), tokens=66 * 16, chunk=66)
    with ExitStack() as stack:
        many = [stack.enter_context(model.sequence()) for _ in range(66)]
        logits = model.decode(many, range(66))
    assert logits.shape == (66, CONFIG["vocab"])


def test_session_samples_by_the_names_of_tvm(session: rpc.Session, compiled: Path) -> None:
    open_there(session, compiled)
    logits = session.tensor(np.array([0.5, 2, 1], "float32"))
    assert session["vm.builtin.sample_top_p_from_logits"](logits, 0, 1, 0.5) == 1
    session["vm.builtin.apply_softmax_with_temperature"](logits, 1)
    assert logits.numpy().sum() == pytest.approx(1)
    with pytest.raises(ValueError, match="top_p is 2"):
        session["vm.builtin.sample_top_p_from_prob"](logits, 2, 0.5)


def test_cache_of_a_session_that_ended_is_a_closed_session(port: int, compiled: Path) -> None:
    with rpc.connect("127.0.0.1", port, key="k", call_timeout=60) as session:
        model = open_there(session, compiled)
    with pytest.raises(SessionClosedError):
        list(model.generate([1], 1))


def test_sequence_ends_with_its_session(port: int, compiled: Path) -> None:
    with rpc.connect("127.0.0.1", port, key="k", call_timeout=60) as session:
        library = session.load_module(session.upload(compiled / "language.so"))
        with pytest.raises(ValueError, match=r"session\.cpu\(\)"):
            language(library, compiled / "weights")
        model = open_there(session, compiled)
        made = model.generate([1], 4)
        next(made)
        with model.sequence() as sequence:
            sequence.feed([1])
            session.close()
    del made  # ends its sequence, too
    with pytest.raises(ValueError, match="ended"):
        sequence.feed([1])


def shorter(folder: Path) -> None:
    shard = folder / "params_shard_1.bin"
    shard.write_bytes(shard.read_bytes()[:-1])


def changed(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        listed = json.loads((folder / "tensor-cache.json").read_text())
        change(listed["records"])
        (folder / "tensor-cache.json").write_text(json.dumps(listed))

    return write


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (shorter, "params_shard_1.bin"),
        (lambda folder: (folder / "params_shard_0.bin").unlink(), "params_shard_0.bin"),
        (lambda folder: (folder / "tensor-cache.json").write_text("{"), "tensor-cache.json"),
        (changed(lambda records: records.pop()), "'blocks.1.norm1.weight'"),
        (changed(lambda records: records[0].update(dataPath="../a")), "../a"),
        (changed(lambda records: records[0].update(dataPath=5)), "the shard 5"),
        (changed(lambda records: records[0].update(dataPath="..")), "'..'"),
        (changed(lambda records: records[0].update(dataPath="a" * 5000)), "it is missing"),
        (changed(lambda records: records[0].update(nbytes=float("inf"))), "tensor-cache.json"),
        (changed(lambda records: records[0].update(nbytes=1 << 70)), "params_shard_0.bin"),
        (changed(lambda records: records[0]["records"][0].update(byteOffset=-4)), "tensor-cache.json"),
        (changed(lambda records: records[0]["records"][0].update(byteOffset=1 << 70)), "'tokens.weight'"),
        (changed(lambda records: records[0]["records"][0].update(shape=[1] * 70 + [512, 128])), "'tokens.weight'"),
        (changed(lambda records: records[0]["records"][0].update(shape="512")), "'tokens.weight'"),
        (changed(lambda records: records[0]["records"].append(records[0]["records"][0])), "within 'tokens.weight'"),
        (lambda folder: (folder / "tensor-cache.json").write_text("[" * 200_000), "tensor-cache.json"),
        (lambda folder: os.truncate(folder / "tensor-cache.json", 1 << 30), "tensor-cache.json"),
        (changed(lambda records: records[0].update(format="zip")), "'zip'"),
        (changed(lambda records: records[0]["records"][0].update(shape=[128, 512])), "'tokens.weight'"),
        (changed(lambda records: records[0]["records"][0].update(dtype="float16")), "'tokens.weight'"),
        (changed(lambda records: records[0]["records"][0].update(byteOffset=4)), "'tokens.weight'"),
        (changed(lambda records: records.append(records[0])), "two weights"),
    ],
)
def test_damaged_weights_are_named(damage: Callable[[Path], None], named: str, compiled: Path, tmp_path: Path) -> None:
    for path in (compiled / "weights").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damage(tmp_path)
    with pytest.raises(ModelError) as raised:
        language(compiled / "language.so", tmp_path)
    assert named in str(raised.value)


def test_weights_that_are_no_numbers_are_named(compiled: Path, tmp_path: Path) -> None:
    for path in (compiled / "weights").iterdir():
        filled = path.suffix == ".bin"
        (tmp_path / path.name).write_bytes(b"\xff" * path.stat().st_size if filled else path.read_bytes())
    model = open_here(compiled, tmp_path)
    with pytest.raises(ModelError, match="the logits are no numbers"):
        list(model.generate([1], 1))
    assert model.free_pages == 5


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        ({"sequences": 0}, ValueError),
        ({"tokens": 0}, ValueError),
        ({"tokens": 1 << 40}, ValueError),
        ({"tokens": 1 << 80}, ValueError),
        ({"tokens": 1.5}, TypeError),
        ({"tokens": True}, TypeError),
        ({"chunk": "5"}, TypeError),
        ({"page_size": -1}, ValueError),
        ({"vocabulary": CONFIG["vocab"] + 1}, ValueError),  # an id without a row would be read outside of the weights
    ],
)
def test_sizes_are_checked_by_their_names(sizes: dict[str, Any], error: type[Exception], compiled: Path) -> None:
    with pytest.raises(error, match=next(iter(sizes))):
        language(compiled / "language.so", compiled / "weights", **{"tokens": 64, **sizes})


WRONG: list[tuple[Callable[[TokenSequence], Any], type[Exception]]] = [
    (lambda s: s.feed([True]), TypeError),
    (lambda s: s.feed([1.0]), TypeError),  # type: ignore[list-item]
    (lambda s: s.feed("12"), TypeError),  # type: ignore[arg-type]
    (lambda s: s.feed([]), ValueError),
    (lambda s: s.feed([1 << 200]), ValueError),
    (lambda s: s.pop(4), ValueError),
    (lambda s: s.pop(-1), ValueError),
    (lambda s: s.pop(1.0), TypeError),  # type: ignore[arg-type]
    (lambda s: s.fork(-1).__enter__(), ValueError),
    (lambda s: s.fork(1 << 64).__enter__(), ValueError),
    (lambda s: next(s.generate([1], -1)), ValueError),
    (lambda s: next(s.generate([1], 1.0)), TypeError),  # type: ignore[arg-type]
    (lambda s: next(s.generate([1], temperature=-1)), ValueError),
    (lambda s: next(s.generate([1], top_p=0)), ValueError),
    (lambda s: s.feed([3] * 80), RuntimeError),
]


def test_wrong_calls_of_one_sequence_leave_others_right(compiled: Path) -> None:
    model, alone = open_here(compiled), open_here(compiled)
    with model.sequence() as one, model.sequence() as two, alone.sequence() as same, alone.sequence() as strange:
        one.feed([1, 2, 3])
        same.feed([1, 2, 3])
        for call, error in WRONG:
            two.pop(len(two))
            two.feed([4, 5, 6])
            with pytest.raises(error):
                call(two)
        with pytest.raises(ValueError, match="another model"):
            model.decode([one, strange], [1, 1])
        assert len(one) == 3
        assert np.array_equal(one.feed([7, 8]), same.feed([7, 8]))
    assert model.free_pages == 5


def test_no_tokens_are_generated_on_request(compiled: Path) -> None:
    model = open_here(compiled)
    assert list(model.generate([1], 0)) == []
    assert list(model.generate([1], 3, temperature=1e-320)) == list(model.generate([1], 3))


def test_threads_share_a_model_and_end_each_others_sequences(compiled: Path) -> None:
    model = open_here(compiled)
    expected = list(model.generate([1, 2, 3], 6))
    with ThreadPoolExecutor(4) as pool:
        for made in pool.map(lambda _: list(model.generate([1, 2, 3], 6)), range(8)):
            assert made == expected
    with model.sequence() as one, ThreadPoolExecutor(1) as pool:

        def feed() -> None:
            while True:  # until it has ended
                one.feed([1])
                one.pop(1)

        fed = pool.submit(feed)
        one.close()
        with pytest.raises(ValueError, match=r"ended|no sequence"):
            fed.result()
    assert model.free_pages == 5


def test_halves_of_float32_and_the_older_list_are_read(compiled: Path, tmp_path: Path) -> None:
    full = open_here(compiled)
    listed = json.loads((compiled / "weights" / "tensor-cache.json").read_text())
    for shard in listed["records"]:
        blob = (compiled / "weights" / shard["dataPath"]).read_bytes()
        upper = np.frombuffer(blob, "uint16")[1::2].tobytes()
        (tmp_path / shard["dataPath"]).write_bytes(upper)
        shard["nbytes"] = len(upper)
        for record in shard["records"]:
            record |= {
                "format": "f32-to-bf16",
                "nbytes": record["nbytes"] // 2,
                "byteOffset": record["byteOffset"] // 2,
            }
    (tmp_path / "ndarray-cache.json").write_text(json.dumps(listed))
    halves = open_here(compiled, tmp_path)
    with full.sequence() as one, halves.sequence() as other:
        a, b = one.feed([1, 2, 3]), other.feed([1, 2, 3])
    assert not np.array_equal(a, b)
    assert np.allclose(a, b, atol=0.1)


def test_weights_are_used_where_they_are_mapped_and_halves_widened_in_place(tmp_path: Path) -> None:
    size = 1 << 18
    values = np.arange(2 * size, dtype=np.float32)
    write_shards(tmp_path, {"one": values[:size], "two": values[size:], "odd": values[:5], "last": values[:3]}, 1 << 30)
    listed = json.loads((tmp_path / "tensor-cache.json").read_text())
    tensors = {weight.name: weight.tensor() for weight in _weights.read(tmp_path)}
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    ranges = [[int(end, 16) for end in line[0].split("-")] for line in maps]

    def is_mapped(name: str) -> bool:
        address = tensors[name].numpy().ctypes.data
        return any(low <= address < high for low, high in ranges)

    assert [is_mapped(name) for name in tensors] == [True, True, True, False]  # the last begins at no multiple of 64
    assert np.array_equal(tensors["last"].numpy(), values[:3])
    tensors["one"].numpy()[0] = 5  # in this process alone
    assert (tmp_path / "params_shard_0.bin").read_bytes()[:4] == bytes(4)
    upper = (values[:size].view("uint32") >> 16).astype("uint16")
    record = listed["records"][0]["records"][0] | {"format": "f32-to-bf16", "nbytes": upper.nbytes}
    (tmp_path / "params_shard_0.bin").write_bytes(upper.tobytes())
    listed["records"] = [listed["records"][0] | {"nbytes": upper.nbytes, "records": [record]}]
    (tmp_path / "tensor-cache.json").write_text(json.dumps(listed))
    (halves,) = _weights.read(tmp_path)
    tracemalloc.start()
    try:
        found = halves.tensor()
        assert tracemalloc.get_traced_memory()[1] < upper.nbytes // 4
    finally:
        tracemalloc.stop()
    assert np.array_equal(found.numpy().view("uint32"), upper.astype("uint32") << 16)


def test_device_may_be_a_name(compiled: Path) -> None:
    model = language(compiled / "language.so", compiled / "weights", "cpu", tokens=64, chunk=16)
    assert model.machine.device == portcall.cpu()
    with pytest.raises(ValueError, match="'tpu'"):
        language(compiled / "language.so", compiled / "weights", "tpu")


def test_folder_without_weights_is_not_found(compiled: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tensor-cache\.json"):
        language(compiled / "language.so", tmp_path)


def test_library_without_a_cache_is_no_language_model(compiled: Path, models: Any) -> None:
    with pytest.raises(ValueError, match="create_tir_paged_kv_cache"):
        language(models.path("perceptron"), compiled / "weights")


def test_read_cache_says_what_a_token_takes(compiled: Path) -> None:
    info = portcall.vm.read_embedded(compiled / "language.so")
    assert info is not None
    cache = portcall.vm.read_cache(info)
    assert cache is not None
    assert (cache.layers, cache.heads, cache.key_heads, cache.width) == (2, 4, 2, 32)
    assert (cache.dtype, cache.bytes_per_token) == ("float32", 2 * 2 * 2 * 32 * 4)


def test_commands_inspect_and_bench_know_language_models(compiled: Path, port: int) -> None:
    executable: Any = run("inspect", compiled / "language.so")["executable"]
    assert executable["cache"]["bytes_per_token"] == 1024
    nbytes = sum(each["nbytes"] for each in executable["constants"] if each["type"] == "tensor")
    shown = CliRunner().invoke(cli, ["inspect", str(compiled / "language.so")]).output
    assert f"tensors with {format_size(nbytes)}\n" in shown
    assert "packed_params: tuple of 15)" in shown
    words = ("bench", compiled / "language.so", "--weights", compiled / "weights", "--tokens", "3", "--repeat", "2")
    for where in ((), ("--rpc", f"127.0.0.1:{port}", "--key", "k")):
        timed: Any = run(*words, *where)
        assert len(timed["prefill"]) == len(timed["decode"]) == 2
        assert timed["decode_tokens_per_s"] > 0
    assert CliRunner().invoke(cli, [*map(str, words), "--profile"]).exit_code == 2


def test_board_of_a_farm_generates_what_this_machine_does(compiled: Path) -> None:
    here = open_here(compiled)
    with running_farm() as farm, board(farm, "b1", "k"), client(farm) as lab:
        with lab.lease("k") as lease, lease.session() as session:
            there = open_there(session, compiled)
            assert list(there.generate([1, 2, 3], 5)) == list(here.generate([1, 2, 3], 5))
        words = ("bench", compiled / "language.so", "--weights", compiled / "weights", "--tokens", "3", "--repeat", "2")
        timed: Any = run(*words, "--farm", f"{farm.host}:{farm.port}", "--key", "k")
        assert len(timed["decode"]) == 2
