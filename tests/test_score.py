"""Scores are the log-softmax of all logits, piece by piece and from one evaluation of a prompt."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import specrs.scoring.evaluate
from conftest import Run
from fake_engine import toy_llama
from specrs import ContextOverflow, Llama, Score

Tiny = Callable[..., Path]
TEXT = "the cat sat on the mat and the world"

#: Of log-probabilities in float32, whose logits are below 100.
ALLOWED = 1e-5


@pytest.fixture(params=["bpe", "spm"])
def llm(request: pytest.FixtureRequest, tiny: Tiny, threads: int) -> Llama:
    return Llama(tiny(tokenizer=request.param), threads=threads)


def expected(llm: Llama, ids: list[int]) -> npt.NDArray[np.float64]:
    """Compute the log-probability of each of `ids` but the first, from all logits at once."""
    logits = llm.session().forward_all_positions(ids[:-1]).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    table = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return np.asarray(table[np.arange(len(ids) - 1), ids[1:]])


def forwards(toy: Llama) -> int:
    """Count the forwards of a toy so far."""
    model: Any = toy._model
    return int(model.forwards)


def check(score: Score, tokens: list[int], logprobs: npt.NDArray[np.float64]) -> None:
    """Compare a score whose every token has a log-probability."""
    assert score.tokens == tokens
    assert np.abs(np.array(score.logprobs, float) - logprobs).max() < ALLOWED
    assert score.total == pytest.approx(logprobs.sum(), abs=ALLOWED * len(tokens))
    assert score.perplexity == pytest.approx(math.exp(-logprobs.mean()), rel=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_scores_of_a_prompt_equal_the_log_softmax_of_all_logits(
    llm: Llama, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specrs.scoring.evaluate, "PIECE_BYTES", rows * 4 * llm.n_vocab)
    ids = llm.tokenize(TEXT)
    score = llm.score(TEXT)
    if ids[0] == llm.tokenizer.bos:  # of SentencePiece: no part of the text
        check(score, ids[1:], expected(llm, ids))
        scored = TEXT.encode()
    else:
        assert score.logprobs[0] is None
        rest = Score(ids[1:], score.logprobs[1:], score.is_greedy, score.num_bytes)
        check(rest, ids[1:], expected(llm, ids))
        assert score.tokens == ids
        assert rest.total == score.total
        scored = TEXT.encode()[len(llm.tokenizer.token_bytes(ids[0])) :]
    assert score.num_bytes == len(scored)
    assert score.bits_per_byte == pytest.approx(-score.total / math.log(2) / len(scored))


def test_ids_get_no_bos(llm: Llama) -> None:
    ids = [9, 10, 11, 12]
    score = llm.score(ids)
    assert score.logprobs[0] is None
    rest = Score(ids[1:], score.logprobs[1:], score.is_greedy, score.num_bytes)
    check(rest, ids[1:], expected(llm, ids))
    one = llm.score([9])
    assert (one.logprobs, one.total, one.num_bytes) == ([None], 0.0, 0)
    assert math.isnan(one.perplexity)
    assert math.isnan(one.bits_per_byte)


def test_a_continuation_is_tokenised_with_the_prompt_and_gets_its_last_spaces(llm: Llama) -> None:
    context = llm.tokenize("the cat")
    for prompt, continuation in (("the cat", " sat on"), ("the cat ", "sat on")):
        score = llm.score(prompt, continuation)
        whole = llm.tokenize("the cat sat on")
        assert whole[: len(context)] == context
        check(score, whole[len(context) :], expected(llm, whole)[len(context) - 1 :])
        assert score.num_bytes == len(" sat on")
    assert llm.score("the cat", " sat") != llm.score("the cat", "sat")


def test_a_shared_prompt_is_evaluated_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toy = toy_llama(monkeypatch, tmp_path / "toy", n_ctx=64, order=2)
    continuations = ["he", "she", "it", "a"]
    before = forwards(toy)
    found = toy.score("hello", continuations)
    # The prompt, and the continuations of more than one letter.
    assert forwards(toy) - before == 1 + 3
    assert [llm_score.tokens for llm_score in found] == [toy.tokenize(c) for c in continuations]
    assert found == [toy.score("hello", one) for one in continuations]


def test_ids_continue_ids(llm: Llama) -> None:
    prompt, continuations = [9, 10, 11], [[12, 13], [14]]
    for score, ids in zip(llm.score(prompt, continuations), continuations, strict=True):
        check(score, ids, expected(llm, prompt + ids)[2:])
    assert llm.score(prompt, [12, 13]) == llm.score(prompt, continuations)[0]
    assert llm.score(np.array(prompt), np.array([[12, 13], [14, 15]]))[0].tokens == [12, 13]  # type: ignore[call-overload]
    assert llm.score([], [[9, 10]])[0].logprobs[0] is None


def test_the_greedy_continuation_is_greedy_and_tops_every_place(llm: Llama) -> None:
    prompt = llm.tokenize(TEXT)
    out = llm.generate(prompt, max_tokens=6, ignore_eos=True, logprobs=3)
    assert out.logprobs is not None
    score = llm.score(prompt, out.tokens, top_logprobs=3)
    assert score.is_greedy
    assert score.top_logprobs is not None
    for place, logprob, one in zip(score.top_logprobs, score.logprobs, out.logprobs, strict=True):
        assert place is not None
        assert [token for token, _ in place] == [token for token, _ in one.top]
        assert place[0] == (one.token, logprob)
        for (_, mine), (_, theirs) in zip(place, one.top, strict=True):
            assert abs(mine - theirs) < ALLOWED
    other = [*out.tokens[:-1], (out.tokens[-1] + 1) % llm.n_vocab]
    assert not llm.score(prompt, other).is_greedy
    assert llm.score(prompt, other).top_logprobs is None


def test_logits_are_held_in_pieces(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = Llama(tiny(n_vocab=70_000), threads=1)
    held: list[int] = []
    told = specrs.scoring.evaluate._Score.add

    def add(self: Any, start: int, logits: Any) -> None:
        held.append(logits.nbytes)
        told(self, start, logits)

    monkeypatch.setattr(specrs.scoring.evaluate._Score, "add", add)
    llm.score([9] * 200)
    assert sum(held) == 199 * 4 * llm.n_vocab
    # With what is made of a row for each thread, 16 MB.
    assert max(held) + 8 * 4 * llm.n_vocab < 16e6


def test_the_longest_text_that_fits_is_scored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    toy = toy_llama(monkeypatch, tmp_path / "toy", n_ctx=16)
    assert len(toy.score([5] * 17).logprobs) == 17
    assert len(toy.score([5] * 15, [[5, 6]])[0].logprobs) == 2
    for arguments in (([5] * 18,), ([5] * 15, [[5], [5, 6, 7]])):
        before = forwards(toy)
        with pytest.raises(
            ContextOverflow, match="needs 17 positions, and the context has 16"
        ) as info:
            toy.score(*arguments)
        assert (info.value.needed, info.value.n_ctx) == (17, 16)
        assert forwards(toy) == before


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((5,), {}, TypeError, "prompt must be token ids, not 5"),
        (([1, "a"],), {}, TypeError, r"prompt\[1\] must be a token id"),
        (([1, 99],), {}, ValueError, r"prompt\[1\] is 99, outside the vocabulary of 30"),
        (([],), {}, ValueError, "the prompt has no tokens"),
        (("",), {}, ValueError, "the prompt has no tokens"),
        (("a", [""]), {}, ValueError, r"continuations\[0\] has no tokens"),
        (("a", [[1]]), {}, TypeError, r"continuations\[0\] must be text"),
        (([1], ["a"]), {}, TypeError, r"continuations\[0\] must be token ids, not 'a'"),
        (([1], "a"), {}, TypeError, r"continuations\[0\] must be token ids, not 'a'"),
        (("a", 5), {}, TypeError, "continuations must be text, ids or a list of them, not 5"),
        (("a", {"b"}), {}, TypeError, "continuations must be text, ids or a list of them"),
        (("\ud800",), {}, ValueError, "prompt is no valid Unicode"),
        (("a",), {"top_logprobs": -1}, ValueError, "top_logprobs must be from 0 to 30"),
        (("a",), {"top_logprobs": 31}, ValueError, "not 31"),
        (("a",), {"top_logprobs": 1.5}, TypeError, "top_logprobs must be an int"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: Any,
    options: Any,
    error: type[Exception],
    words: str,
) -> None:
    toy = toy_llama(monkeypatch, tmp_path / "toy")
    with pytest.raises(error, match=words):
        toy.score(*arguments, **options)


def test_no_continuations_have_no_scores(llm: Llama) -> None:
    found: Any = llm.score("the cat", [])
    assert found == []


def test_score_on_the_command_line(toy: Path, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text(string.ascii_lowercase)
    llm = specrs.Llama(toy)
    wanted = llm.score(string.ascii_lowercase)
    ran = run("score", file, "--model", toy)
    assert ran.code == 0
    assert ran.out == (
        f"{file}: 26 tokens, log-probability {wanted.total:.4f}, {wanted.bits_per_byte:.4f} bits "
        f"per byte, perplexity {wanted.perplexity:.4f}\n"
    )
    choices = ["--continuation", "abc", "--continuation", "d"]
    ran = run("score", file, "--model", toy, *choices)
    assert ran.out.count("\n") == 2
    assert ran.out.splitlines()[1].endswith(", the likeliest")
    ran = run("score", file, "--model", toy, *choices, "--json", "--top-logprobs", 2)
    lines = [json.loads(line) for line in ran.out.splitlines()]
    scores = llm.score(string.ascii_lowercase, ["abc", "d"], top_logprobs=2)
    assert [line["total"] for line in lines] == [score.total for score in scores]
    assert lines[0] == json.loads(json.dumps(scores[0].as_dict()))
    ran = run("score", file, "--model", toy, "--top-logprobs", 2)
    assert (ran.code, "needs --json" in ran.err) == (2, True)
