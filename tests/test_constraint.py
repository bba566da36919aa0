"""What a grammar allows at each step, asked in every way."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specrs import Grammar, Llama
from specrs.structured.compiler import Compiler
from specrs.structured.constraint import Constraint
from test_structured import GRAMMARS


@pytest.fixture(scope="module", params=["bpe", "spm", "padded"])
def llm(request: pytest.FixtureRequest, tiny: Callable[..., Path], threads: int) -> Llama:
    options = {"n_vocab": 350} if request.param == "padded" else {"tokenizer": request.param}
    return Llama(tiny(**options), threads=threads)


def begin(llm: Llama, grammar: Grammar) -> Constraint:
    compiler = Compiler(llm.tokenizer, llm.n_vocab)
    return compiler.compile(grammar, llm.tokenizer.end_ids).begin()


def allowed(llm: Llama, constraint: Constraint) -> list[int]:
    """List what the mask lets through."""
    masked = constraint.masked(np.zeros(llm.n_vocab, np.float32))
    return [int(id_) for id_ in np.flatnonzero(masked == 0)]


def walk(llm: Llama, grammar: Grammar, seed: int) -> list[tuple[list[int], int]]:
    """Take random tokens that are allowed; give what was allowed and which one was taken."""
    chosen = random.Random(seed)
    constraint = begin(llm, grammar)
    steps: list[tuple[list[int], int]] = []
    while not constraint.complete and len(steps) < 60:
        ids = allowed(llm, constraint)
        assert ids, "nothing is allowed, and the text is not complete"
        token = chosen.choice(ids)
        steps.append((ids, token))
        constraint.take(token)
    return steps


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("seed", range(4))
def test_all_ways_to_ask_agree(llm: Llama, grammar: str, seed: int) -> None:
    steps = walk(llm, GRAMMARS[grammar], seed)
    # The same tokens again, asked about something else at each step: it makes no difference.
    constraint = begin(llm, GRAMMARS[grammar])
    tokens = [token for _, token in steps]
    for i, (ids, token) in enumerate(steps):
        forced = constraint.forced()
        if i % 2:
            assert constraint.allowed(tokens[i:]) >= min(1, len(tokens) - i) or token < 3
            constraint.allowed([token, token, token])
        assert [id_ for id_ in range(llm.n_vocab) if constraint.allows(id_)] == ids
        if forced:
            assert ids == forced[:1]
            assert constraint.allowed(forced) == len(forced)
        if i % 3 == 0:
            assert allowed(llm, constraint) == ids
        constraint.take(token)


def test_marks_and_padding_are_no_text(llm: Llama) -> None:
    tokenizer = llm.tokenizer
    constraint = begin(llm, Grammar.regex(r"(?s:.*)"))
    ids = set(allowed(llm, constraint))
    for id_ in range(llm.n_vocab):
        if id_ in tokenizer.end_ids:
            assert id_ in ids
        elif not tokenizer.token_bytes(id_):
            assert id_ not in ids


def test_forced_text_has_the_tokens_of_the_tokenizer(llm: Llama) -> None:
    text = "the cat sat on the mat, hello world 日本 éé"
    forced = begin(llm, Grammar.regex(text)).forced()
    assert b"".join(map(llm.tokenizer.token_bytes, forced)).decode() == text
    # SentencePiece puts a space before a text; that of the grammar has none.
    assert forced[3:] == llm.tokenizer.encode(text, add_bos=False)[-len(forced) :][3:]


def test_equal_grammars_are_compiled_once(llm: Llama) -> None:
    compiler = Compiler(llm.tokenizer, llm.n_vocab)
    first = compiler.compile(Grammar.regex("a+"), [1])
    assert compiler.compile(Grammar.regex("a+"), [2]).matcher is first.matcher
    for i in range(Compiler.KEPT):
        compiler.compile(Grammar.regex(f"a{{{i + 1}}}"), [])
    assert compiler.compile(Grammar.regex("a+"), [1]).matcher is not first.matcher


def test_one_compilation_serves_several_texts(llm: Llama) -> None:
    compiled = Compiler(llm.tokenizer, llm.n_vocab).compile(Grammar.regex("(the|cat)+"), [])
    one, other = compiled.begin(), compiled.begin()
    one.take(one.forced()[0] if one.forced() else allowed(llm, one)[0])
    assert allowed(llm, other) == allowed(llm, compiled.begin())
