"""Many texts are scored as single ones are, and what they begin with is evaluated once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import specrs.scoring.evaluate
from fake_engine import toy_llama
from specrs import ContextOverflow, Llama

Tiny = Callable[..., Path]

HEAD = "the cat sat on the mat and the world "
PROMPTS = [HEAD + end for end in ("is", "was", "is", "will be", "is", "a")] + ["the", HEAD + "is"]
CONTINUATIONS = [" the cat", " mat", " on", " a world", " the mat on", " t", " cat", " the cat"]


@pytest.fixture(params=["bpe", "spm"])
def llm(request: pytest.FixtureRequest, tiny: Tiny, threads: int) -> Llama:
    return Llama(tiny(tokenizer=request.param), threads=threads)


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_many_scores_are_those_of_single_texts_to_the_bit(
    llm: Llama, monkeypatch: pytest.MonkeyPatch, lanes: int, rows: int
) -> None:
    wanted = [
        llm.score(prompt, one, top_logprobs=2)
        for prompt, one in zip(PROMPTS, CONTINUATIONS, strict=True)
    ]
    alone = [llm.score(prompt) for prompt in PROMPTS]
    monkeypatch.setattr(specrs.scoring.evaluate, "PIECE_BYTES", rows * 4 * llm.n_vocab)
    monkeypatch.setattr("specrs.scoring.methods.LANES", lanes)
    assert llm.score_many(PROMPTS, CONTINUATIONS, top_logprobs=2) == wanted
    assert llm.score_many(PROMPTS) == alone
    ids = [llm.tokenize(prompt) for prompt in PROMPTS]
    following: list[Sequence[int]] = [[9, 10], [11], [9], [12] * 5, [9, 10], [10], [9], [13]]
    assert llm.score_many(ids, following) == [
        llm.score(one, after) for one, after in zip(ids, following, strict=True)
    ]


def test_what_prompts_begin_with_is_evaluated_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    toy = toy_llama(monkeypatch, tmp_path / "toy", n_ctx=512, order=2)
    head, questions = "h" * 100, ["abc", "abd", "xyz"]
    prompts = [head + question for question in questions for _ in range(4)]
    rows: list[int] = []
    forward_many = Llama.forward_many

    def counting(self: Llama, inputs: Any, **options: Any) -> Any:
        rows.extend(len(tokens) for _, tokens, _ in inputs)
        return forward_many(self, inputs, **options)

    monkeypatch.setattr(Llama, "forward_many", counting)
    found = toy.score_many(prompts, ["ab", "b", "cd", "a"] * 3)
    assert [score.tokens for score in found[:4]] == [
        toy.tokenize(t) for t in ("ab", "b", "cd", "a")
    ]
    # A hundred once, outside; then three letters of a question, and what its answers have but for
    # their last letters.
    assert sum(rows) == 3 * (3 + 2)


def test_a_score_that_ends_where_its_context_does_needs_nothing_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    toy = toy_llama(monkeypatch, tmp_path / "toy", n_ctx=16)
    assert toy.score_many([[5] * 16] * 3, [[5], [6], [7]]) == toy.score([5] * 16, [[5], [6], [7]])
    assert toy.score_many([]) == []
    assert toy.score_many([[5], [6]])[1].logprobs == [None]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("abc",), TypeError, "prompts must be several texts, or lists of ids, not 'abc'"),
        ((["a"], "b"), TypeError, "continuations must be several texts"),
        ((["a", "b"], ["c"]), ValueError, "2 prompts and 1 continuations"),
        ((["a", ""],), ValueError, r"prompts\[1\]: the prompt has no tokens"),
        ((["a", "b"], ["c", ""]), ValueError, r"prompts\[1\]: continuations\[0\] has no tokens"),
        (([[5], [99]],), ValueError, r"prompts\[1\]: prompt\[0\] is 99, outside"),
        (([[5], [5] * 16], [[5], [5, 5]]), ContextOverflow, r"prompts\[1\].* needs 17 positions"),
    ],
)
def test_what_is_wrong_with_one_is_said_before_any_work(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: Any,
    error: type[Exception],
    words: str,
) -> None:
    toy = toy_llama(monkeypatch, tmp_path / "toy", n_ctx=16)
    with pytest.raises(error, match=words):
        toy.score_many(*arguments)
    model: Any = toy._model
    assert model.forwards == 0
