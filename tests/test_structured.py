"""Generations under a grammar: what they say, and that nobody who drafts changes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from specrs import (
    Chain,
    Completion,
    DraftModel,
    FixedLength,
    ForcedTokens,
    Grammar,
    Llama,
    PromptLookup,
    Sampling,
    SuffixDecoding,
)
from test_sampled_generation import Hostile

PROMPT = [5, 6, 7, 8]

SHORT = {"type": "string", "maxLength": 6}
PERSON = {
    "type": "object",
    "properties": {
        "given name": SHORT,
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["the cat", "the mat"]}, "maxItems": 3},
        "address": {
            "type": "object",
            "properties": {"street": SHORT, "verified": {"type": "boolean"}},
            "required": ["street", "verified"],
            "additionalProperties": False,
        },
    },
    "required": ["given name", "age", "tags", "address"],
    "additionalProperties": False,
}

GRAMMARS = {
    "schema": Grammar.json_schema(PERSON),
    "spaced": Grammar.json_schema(PERSON, compact=False),
    "regex": Grammar.regex("(the (cat|hat|world) sat on [0-9]{2,4}; ){1,3}the end"),
    "lark": Grammar.lark('start: item+ "!"\nitem: "hello" | "help" | /[ab]{1,3}/ " and"'),
    "open": Grammar.regex("[a-z ]*"),
}

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, logprobs": {"logprobs": 2},
    "penalties": {"sampling": Sampling(repetition_penalty=1.3, frequency_penalty=0.2)},
    "sampled": {"sampling": Sampling(temperature=1.1, top_p=0.95, min_p=0.01, seed=3)},
    "sampled, logprobs": {
        "sampling": Sampling(temperature=0.8, top_k=5, seed=4, presence_penalty=0.4),
        "logprobs": 0,
    },
}


@pytest.fixture(scope="module", params=["bpe", "spm"])
def llm(request: pytest.FixtureRequest, tiny: Callable[..., Path], threads: int) -> Llama:
    return Llama(tiny(tokenizer=request.param, n_ctx=2048), threads=threads)


@pytest.fixture(scope="module")
def small(llm: Llama, tiny: Callable[..., Path], threads: int) -> DraftModel:
    kind = "bpe" if llm.tokenizer.add_bos is False else "spm"
    return DraftModel(
        Llama(tiny(tokenizer=kind, n_ctx=2048, n_layer=1), threads=threads), num_draft_tokens=4
    )


def same(result: Completion, wanted: Completion) -> bool:
    return (result.tokens, result.text, result.logprobs, result.finish_reason) == (
        wanted.tokens,
        wanted.text,
        wanted.logprobs,
        wanted.finish_reason,
    )


def drafters(small: DraftModel) -> dict[str, Callable[[], Any]]:
    return {
        "forced": ForcedTokens,
        "lookup": lambda: PromptLookup(min_ngram_size=1),
        "suffix": SuffixDecoding,
        "hostile": lambda: Hostile(PROMPT, 1),
        "model": lambda: small,
        "chain": lambda: Chain(PromptLookup(), small),
    }


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_drafters_change_nothing(
    llm: Llama, small: DraftModel, grammar: str, sampling: str
) -> None:
    options: dict[str, Any] = {"max_tokens": 90, "grammar": GRAMMARS[grammar]}
    options |= SAMPLINGS[sampling]
    wanted = llm.generate(PROMPT, **options)
    for name, make in drafters(small).items():
        for length in (None, FixedLength(5)):
            result = llm.generate(PROMPT, drafter=make(), draft_length=length, **options)
            assert same(result, wanted), name


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_batch_changes_nothing(llm: Llama, small: DraftModel, sampling: str) -> None:
    options: dict[str, Any] = {"max_tokens": 60, **SAMPLINGS[sampling]}
    names = [*GRAMMARS, *GRAMMARS]
    grammars: list[Any] = [GRAMMARS[name] for name in names]
    grammars[1] = None
    prompts = [[*PROMPT, 20 + i] for i in range(len(names))]
    every: list[Any] = [make() for make in drafters(small).values()]
    who = [None, *every, *every][: len(names)]
    together = llm.generate_many(prompts, grammar=grammars, drafter=who, **options)
    for prompt, grammar, result in zip(prompts, grammars, together, strict=True):
        assert same(result, llm.generate(prompt, grammar=grammar, **options))


@pytest.mark.parametrize("seed", range(10))
def test_texts_obey(llm: Llama, seed: int) -> None:
    sampling = Sampling(temperature=1.0, seed=seed)
    options: dict[str, Any] = {"max_tokens": None, "sampling": sampling}
    for compact in (True, False):
        grammar = Grammar.json_schema(PERSON, compact=compact)
        out = llm.generate(PROMPT, grammar=grammar, **options)
        assert out.finish_reason == "stop"
        value = json.loads(out.text)
        assert list(value) == list(PERSON["properties"])  # type: ignore[call-overload]
        assert 0 <= value["age"] <= 120
        spelled = json.dumps(value, separators=(",", ":"))
        assert (len(out.text) <= len(spelled)) or not compact
    pattern = GRAMMARS["regex"].source
    out = llm.generate(PROMPT, grammar=GRAMMARS["regex"], **options)
    assert out.finish_reason == "stop"
    assert re.fullmatch(pattern, out.text)


def test_the_text_ends_where_nothing_can_follow(llm: Llama) -> None:
    out = llm.generate(PROMPT, grammar=Grammar.regex("the cat"))
    assert (out.text, out.finish_reason) == ("the cat", "stop")
    assert not set(out.tokens) & {*llm.tokenizer.end_ids}
    assert out.stats.tokens_generated == len(out.tokens)


@pytest.mark.parametrize("drafter", [None, ForcedTokens()])
def test_the_text_may_end_exactly_at_the_limit(llm: Llama, drafter: Any) -> None:
    whole = llm.generate(PROMPT, grammar=Grammar.regex("the cat"))
    for limit in range(1, len(whole.tokens) + 2):
        out = llm.generate(
            PROMPT, grammar=Grammar.regex("the cat"), max_tokens=limit, drafter=drafter
        )
        assert out.tokens == whole.tokens[:limit]
        assert out.finish_reason == ("stop" if limit >= len(whole.tokens) else "length")


def favouring(*tokens: int) -> Sampling:
    return Sampling(logit_bias=dict.fromkeys(tokens, 1000.0))


def test_an_end_comes_only_where_the_grammar_accepts(llm: Llama) -> None:
    end = llm.tokenizer.end_ids[0]
    grammar = Grammar.regex("the cat( sat)?( on)?")
    out = llm.generate(PROMPT, grammar=grammar, sampling=favouring(end))
    assert (out.text, out.tokens[-1], out.finish_reason) == ("the cat", end, "stop")
    other = llm.tokenizer.bos
    assert other is not None
    out = llm.generate(
        PROMPT, grammar=grammar, sampling=favouring(other), stop_token_ids=[other], ignore_eos=True
    )
    assert (out.text, out.tokens[-1], out.finish_reason) == ("the cat", other, "stop")
    out = llm.generate(PROMPT, grammar=grammar, sampling=favouring(end), ignore_eos=True)
    assert (out.text, out.finish_reason) == ("the cat sat on", "stop")
    assert end not in out.tokens


def test_a_stop_string_still_ends_it(llm: Llama) -> None:
    for drafter in (None, ForcedTokens()):
        out = llm.generate(
            PROMPT, grammar=Grammar.regex("the cat sat on the mat"), stop=" on", drafter=drafter
        )
        assert (out.text, out.finish_reason) == ("the cat sat", "stop")


def test_forced_tokens_need_few_passes(llm: Llama) -> None:
    grammar = Grammar.regex("the cat sat on the mat and the cat sat on the hat")
    plain = llm.generate(PROMPT, grammar=grammar)
    assert plain.stats.forward_calls == len(plain.tokens)
    for drafter in (ForcedTokens(), PromptLookup()):
        out = llm.generate(PROMPT, grammar=grammar, drafter=drafter, draft_length=FixedLength(8))
        assert same(out, plain)
        assert out.stats.acceptance_rate == 1.0
        assert out.stats.forward_calls <= -(-len(plain.tokens) // 8)


def test_forced_tokens_alone_propose_nothing(llm: Llama) -> None:
    out = llm.generate(PROMPT, drafter=ForcedTokens(), max_tokens=8)
    assert same(out, llm.generate(PROMPT, max_tokens=8))
    assert not out.stats.num_draft_tokens


def test_what_is_forbidden_is_never_verified(llm: Llama) -> None:
    class Recorded(Hostile):
        pass

    grammar = Grammar.regex("[0-9]{30}")
    out = llm.generate(
        PROMPT,
        grammar=grammar,
        drafter=Recorded(PROMPT, 1),
        draft_length=FixedLength(6),
        trace=True,
    )
    assert out.trace is not None
    assert re.fullmatch("[0-9]{30}", out.text)
    digits = {id_ for id_ in range(llm.n_vocab) if llm.tokenizer.token_bytes(id_).isdigit()}
    assert {*out.tokens} <= digits


def test_log_probabilities_are_the_models_own(llm: Llama) -> None:
    out = llm.generate(PROMPT, grammar=GRAMMARS["schema"], logprobs=3, max_tokens=12)
    session = llm.session()
    assert out.logprobs is not None
    for i, told in enumerate(out.logprobs):
        known = [*PROMPT, *out.tokens[:i]]
        logits = session.forward(known[len(session) :]).astype(np.float64)
        assert told.token == out.tokens[i]
        wanted = logits[told.token] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert told.logprob == pytest.approx(wanted, abs=1e-4)
        assert told.top[0][0] == logits.argmax()


def test_a_processor_cannot_let_in_what_is_forbidden(llm: Llama) -> None:
    def processor(tokens: list[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        assert np.isinf(logits).any()
        return np.arange(len(logits), dtype=np.float32)

    options: Any = {
        "grammar": Grammar.regex("[0-9]{9}"),
        "sampling": Sampling(logits_processor=processor),
    }
    out = llm.generate(PROMPT, **options)
    assert re.fullmatch("[0-9]{9}", out.text)
    assert same(llm.generate(PROMPT, drafter=ForcedTokens(), **options), out)


def test_what_is_forced_holds_against_biases_with_a_processor(llm: Llama) -> None:
    grammar = Grammar.regex("the cat")
    ids = llm.generate(PROMPT, grammar=grammar).tokens
    seen: list[int] = []

    def processor(tokens: list[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        seen.append(len(tokens))
        return logits

    sampling = Sampling(logit_bias=dict.fromkeys(ids, -np.inf), logits_processor=processor)
    out = llm.generate(PROMPT, grammar=grammar, sampling=sampling)
    assert out.text == "the cat"
    start = len(PROMPT)
    assert seen == list(range(start, start + len(out.tokens)))


def test_control_tokens_stand_where_the_rules_name_them(llm: Llama) -> None:
    tokenizer = llm.tokenizer
    end = tokenizer.end_ids[0]
    name = tokenizer.token(end)
    grammar = Grammar.lark(f'start: "the cat" {name}')
    out = llm.generate(PROMPT, grammar=grammar, skip_special_tokens=False)
    assert (out.tokens[-1], out.finish_reason) == (end, "stop")
    with pytest.raises(ValueError, match="grammar cannot be compiled"):
        llm.generate(PROMPT, grammar=Grammar.lark('start: "a" <|unknown_mark|>'))


def test_a_grammar_is_checked_before_any_work(llm: Llama) -> None:
    with pytest.raises(TypeError, match=r"grammar must be a specrs.Grammar.* not 'json'"):
        llm.stream(PROMPT, grammar="json")  # type: ignore[arg-type]
    with llm.batch() as batch, pytest.raises(TypeError, match="grammar must be"):
        batch.add(PROMPT, grammar={})  # type: ignore[arg-type]


def test_one_that_grows_too_complex_ends_its_own_generation_only(llm: Llama) -> None:
    names = {f"p{i}": {"type": "null"} for i in range(2500)}
    grammar = Grammar.json_schema({"type": "object", "properties": names})
    with pytest.raises(ValueError, match=r"the grammar cannot be followed: .*items"):
        llm.generate(PROMPT, grammar=grammar)
    with llm.batch() as batch:
        wrong = batch.add(PROMPT, grammar=grammar)
        right = batch.add(PROMPT, grammar=Grammar.regex("the cat"))
        with pytest.raises(ValueError, match="the grammar cannot be followed"):
            wrong.result()
        assert right.result().text == "the cat"


def test_a_reply_begins_with_what_the_grammar_begins_with(llm: Llama) -> None:
    out = llm.chat([{"role": "user", "content": "hello"}], grammar=Grammar.regex(" the cat"))
    assert out.text == " the cat"
