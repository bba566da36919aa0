"""What a grammar allows at each step, asked in every way."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import llguidance
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


def test_what_is_too_complex_in_one_text_breaks_no_other(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = llguidance.LLParserLimits(max_lexer_states=200)
    monkeypatch.setattr("specrs.structured.compiler.limits", lambda: few)
    compiler, grammar = Compiler(llm.tokenizer, llm.n_vocab), Grammar.regex("(a|b)*a(a|b){12}")
    one, other = (compiler.compile(grammar, []).begin() for _ in range(2))
    chosen = random.Random(1)

    def go_on() -> None:
        for _ in range(5000):
            one.take(chosen.choice(allowed(llm, one)))

    with pytest.raises(ValueError, match=r"the grammar cannot be followed: .*too many states"):
        go_on()
    other.take(allowed(llm, other)[0])
    compiler.compile(grammar, []).begin().take(allowed(llm, other)[0])


def test_one_compilation_serves_several_texts(llm: Llama) -> None:
    compiled = Compiler(llm.tokenizer, llm.n_vocab).compile(Grammar.regex("(the|cat)+"), [])
    one, other = compiled.begin(), compiled.begin()
    one.take(one.forced()[0] if one.forced() else allowed(llm, one)[0])
    assert allowed(llm, other) == allowed(llm, compiled.begin())


@pytest.mark.once
def test_whole_vocabularies_agree(tiny: Callable[..., Path]) -> None:
    """A vocabulary of a released model: the mask, single questions and what is forced agree."""
    folder = os.environ.get("SPECRS_VOCABULARIES")
    if not folder:
        pytest.skip("SPECRS_VOCABULARIES names no folder")
    files = sorted(Path(folder).glob("*.gguf"))
    assert files
    for file in files:
        llm = Llama(tiny(tokenizer=file, n_layer=1))
        compiler = Compiler(llm.tokenizer, llm.n_vocab)
        chosen = random.Random(0)
        for grammar in GRAMMARS.values():
            compiled = compiler.compile(grammar, llm.tokenizer.end_ids)
            one, other = compiled.begin(), compiled.begin()
            for _ in range(40):
                ids = allowed(llm, one)
                members = {*ids}
                asked = [*ids[:10], *chosen.sample(range(llm.n_vocab), 50)]
                assert [other.allows(id_) for id_ in asked] == [id_ in members for id_ in asked]
                assert not other.forced() or ids == other.forced()[:1]
                token = chosen.choice(ids)
                one.take(token)
                other.take(token)
                if one.complete:
                    break
