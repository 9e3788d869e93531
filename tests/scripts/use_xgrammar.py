# SPDX-License-Identifier: Apache-2.0
"""xgrammar as it is on PyPI, on portcall: grammars, compiler, matcher and bitmasks, and where its library is bound.

Usage: python -m portcall.tvm_ffi use_xgrammar.py. Of torch and transformers, which it imports, it uses little: what it
uses is here, on NumPy.
"""

import json
import sys
from importlib import metadata, util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np


class Tensor(np.ndarray):
    device = SimpleNamespace(type="cpu")
    dim = property(lambda self: lambda: self.ndim)
    stride = property(lambda self: lambda: tuple(n // self.itemsize for n in self.strides))
    data_ptr = property(lambda self: lambda: self.ctypes.data)

    def fill_(self, value: int) -> "Tensor":
        self[...] = value
        return self


def tensor(values: object, dtype: object = None) -> Tensor:
    return np.array(values, dtype).view(Tensor)


def full(shape: tuple[int, ...], value: object, dtype: object) -> Tensor:
    return np.full(shape, np.asarray(value), dtype).view(Tensor)


assert util.find_spec("torch") is None, "the stand-in is for an environment without torch"
torch, transformers = ModuleType("torch"), ModuleType("transformers")
vars(torch).update(Tensor=Tensor, LongTensor=Tensor, FloatTensor=Tensor, tensor=tensor, full=full)
vars(torch).update({name: np.dtype(name) for name in ("int32", "int64", "float32", "float16", "bool")}, bfloat16=None)
vars(transformers).update(
    {name: type(name, (), {}) for name in ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast", "LogitsProcessor")}
)
sys.modules.update(torch=torch, transformers=transformers)

import tvm_ffi  # noqa: E402
import xgrammar as xgr  # noqa: E402

assert tvm_ffi.__name__ == "portcall.tvm_ffi"
assert metadata.version("xgrammar") == "0.2.8"

# ---- Grammars ----
grammar = xgr.Grammar.from_ebnf('root ::= "a" [0-9]+ | "b"')
assert "root" in str(grammar)
assert str(xgr.Grammar.deserialize_json(grammar.serialize_json())) == str(grammar)
schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
for made in (
    xgr.Grammar.from_json_schema(json.dumps(schema)),
    xgr.Grammar.from_regex("[a-c]+x?"),
    xgr.Grammar.builtin_json_grammar(),
    xgr.Grammar.union(grammar, xgr.Grammar.from_regex("z+")),
    xgr.Grammar.concat(grammar, xgr.Grammar.from_regex("z+")),
):
    assert "::=" in str(made)
for wrong, kind in (
    (lambda: xgr.Grammar.from_ebnf("root ::= ("), RuntimeError),
    (lambda: xgr.Grammar.deserialize_json("{"), xgr.InvalidJSONError),
):
    try:
        wrong()
    except kind:
        continue
    raise AssertionError(kind)

# ---- Tokenizer and compiler ----
words = [*(bytes([i]).decode() for i in range(32, 127)), "12", "ab", '{"', '":', "name", "</s>"]
info = xgr.TokenizerInfo(words, stop_token_ids=[len(words) - 1])
assert (info.vocab_size, info.stop_token_ids) == (len(words), [len(words) - 1])
assert info.decoded_vocab[:2] == [b" ", b"!"]
assert info.vocab_type == xgr.VocabType.RAW
assert xgr.TokenizerInfo.deserialize_json(info.serialize_json()).vocab_size == len(words)
compiler = xgr.GrammarCompiler(info, max_threads=2)
compiled = compiler.compile_grammar(grammar)
assert compiled.memory_size_bytes > 0
assert compiler.get_cache_size_bytes() >= 0
assert compiled.tokenizer_info.vocab_size == len(words)
again = xgr.CompiledGrammar.deserialize_json(compiled.serialize_json(), info)
assert str(again.grammar) == str(compiled.grammar)

# ---- Matcher and bitmask ----
matcher = xgr.GrammarMatcher(compiled)
mask = xgr.allocate_token_bitmask(1, info.vocab_size)
assert matcher.fill_next_token_bitmask(mask)


def allowed() -> list[str]:
    return [word for i, word in enumerate(words) if int(mask[0, i // 32]) >> (i % 32) & 1]


assert allowed() == ["a", "b"], allowed()
assert matcher.accept_token(words.index("a"))
assert not matcher.accept_token(words.index("x"))
xgr.reset_token_bitmask(mask)
matcher.fill_next_token_bitmask(mask)
assert allowed() == [*"0123456789", "12"], allowed()
logits = full((1, len(words)), 0.5, np.float32)
xgr.apply_token_bitmask_inplace(logits, mask)
assert [words[i] for i in np.flatnonzero(np.isfinite(logits[0]))] == allowed()
assert matcher.accept_string("12")
assert not matcher.is_terminated()
other = matcher.fork()
assert other.accept_token(len(words) - 1)
assert other.is_terminated()
assert not matcher.is_terminated()
matcher.rollback(1)
matcher.reset()
assert matcher.accept_string("b")
assert matcher.find_jump_forward_string() == ""

of_schema = xgr.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema)))
assert of_schema.find_jump_forward_string() == "{"
assert of_schema.accept_string('{"name": "A", "age": 3}')
assert of_schema.is_completed()
batch = xgr.BatchGrammarMatcher(max_threads=2)
masks = xgr.allocate_token_bitmask(2, info.vocab_size)
pair = [xgr.GrammarMatcher(compiled), xgr.GrammarMatcher(compiler.compile_builtin_json_grammar())]
batch.batch_fill_next_token_bitmask(pair, masks)
assert list(xgr.BatchGrammarMatcher.batch_accept_string(pair, ["a1", '{"a": 1}'])) == [True, True]
assert not pair[0].accept_string("x")

mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libtvm_ffi" in line}
forwarder = util.find_spec("portcall").submodule_search_locations[0] + "/lib/forward/libtvm_ffi.so"
assert mapped == {forwarder}, mapped
print("done")
