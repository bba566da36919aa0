"""The public object: arguments, sessions, streams and figures."""

from __future__ import annotations

import gc
import inspect
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specrs
from fake_engine import toy_llama
from specrs import ContextOverflow, FixedLength, Llama, PromptLookup, Sampling, Stats
from specrs.options import Options, OptionsOfText

PROMPT = [5, 6, 7, 8]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_llama(monkeypatch, tmp_path / "toy", n_ctx=64, order=1)


class Draft:
    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int]:
        return list(tokens[:k])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_tokens": -1}, ValueError, "max_tokens must be 0 or more, not -1; None is no limit"),
        ({"max_tokens": 1.5}, TypeError, "max_tokens must be an int or None, not 1.5"),
        ({"max_tokens": "5"}, TypeError, "max_tokens must be an int or None"),
        ({"stop": ""}, ValueError, "empty text"),
        ({"stop": ["a", ""]}, ValueError, "empty text"),
        ({"stop": [5]}, TypeError, "stop must be text"),
        ({"stop": 5}, TypeError, "stop must be text"),
        ({"sampling": 0.8}, TypeError, r"sampling must be a specrs.Sampling, not 0.8"),
        (
            {"sampling": Sampling(logit_bias={30: 1.0})},
            ValueError,
            "logit_bias: token 30 is outside",
        ),
        ({"logprobs": -1}, ValueError, "logprobs must be from 0 to 30, .* not -1"),
        ({"logprobs": 31}, ValueError, "logprobs must be from 0 to 30, .* not 31"),
        ({"logprobs": 1.5}, TypeError, "logprobs must be an int or None, not 1.5"),
        ({"max_tokens": True}, TypeError, "max_tokens must be an int or None, not True"),
        ({"logprobs": True}, TypeError, "logprobs must be an int or None, not True"),
        ({"ignore_eos": "no"}, TypeError, "ignore_eos must be True or False, not 'no'"),
        ({"trace": 1}, TypeError, "trace must be True or False, not 1"),
        ({"stop": "\ud800"}, ValueError, "stop is no valid Unicode"),
        ({"attention": "sparse"}, ValueError, "attention='sparse'"),
        ({"attention": None}, TypeError, "attention must be"),
        ({"drafter": 5}, TypeError, r"drafter must be an object with a method propose.*not 5"),
        ({"drafter": PromptLookup}, TypeError, "drafter must be an object"),
        ({"draft_length": FixedLength(3)}, ValueError, "draft_length has no effect without"),
        ({"drafter": Draft(), "draft_length": 4}, TypeError, r"specrs.FixedLength\(4\), not 4"),
        ({"session": "mine"}, TypeError, r"session must be a specrs.Session, not 'mine'"),
        ({"drafters": Draft()}, TypeError, "unexpected keyword argument 'drafters'"),
        ({"prompt": []}, ValueError, "prompt is empty"),
        ({"prompt": ""}, ValueError, "prompt is empty"),
        ({"prompt": [3, 1.0]}, TypeError, r"prompt\[1\] must be a token id, not 1.0"),
        ({"prompt": ["hello"]}, TypeError, "one text or token ids; call once for each text"),
        ({"prompt": [[3]]}, TypeError, r"prompt\[0\] must be a token id, not \[3\]"),
        ({"prompt": [True]}, TypeError, r"prompt\[0\] must be a token id, not True"),
        ({"prompt": {3, 4}}, TypeError, "prompt must be text or token ids, not set"),
        ({"prompt": {3: 4}}, TypeError, "prompt must be text or token ids, not dict"),
        ({"prompt": memoryview(b"ab")}, TypeError, "token ids, not memoryview"),
        ({"prompt": "a\ud800"}, ValueError, "prompt is no valid Unicode: character 1 is"),
        ({"prompt": itertools.repeat(3)}, ContextOverflow, "at least 64 tokens.*context of 64"),
        ({"prompt": range(10**15)}, ContextOverflow, "has 1000000000000000 tokens"),
        ({"prompt": b"ab"}, TypeError, "prompt must be text or token ids, not bytes"),
        ({"prompt": None}, TypeError, "prompt must be text or token ids, not NoneType"),
        ({"prompt": [3, 30]}, ValueError, r"prompt\[1\] is 30, outside the vocabulary of 30"),
        ({"prompt": [-1]}, ValueError, r"prompt\[0\] is -1"),
        ({"prompt": [3] * 64}, ContextOverflow, "64 tokens.*context of 64"),
    ],
)
@pytest.mark.parametrize("method", ["generate", "stream"])
def test_bad_arguments_are_refused_before_any_work(
    llm: Llama, method: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    session = llm.session()
    session.forward([5, 6, 9])
    arguments = {"prompt": PROMPT, "session": session, **options}
    with pytest.raises(error, match=words):
        getattr(llm, method)(**arguments)
    assert session.tokens == [5, 6, 9]
    assert len(llm.generate(PROMPT, max_tokens=3, session=session).tokens) == 3


@pytest.mark.parametrize("method", ["generate", "chat", "stream_chat"])
def test_an_unknown_option_is_named_with_the_method_called(llm: Llama, method: str) -> None:
    words = rf"^{method}\(\) got .* 'temperature'; it belongs to sampling=specrs.Sampling"
    with pytest.raises(TypeError, match=words):
        getattr(llm, method)([{"role": "user", "content": "hi"}], temperature=0.8)


def test_a_session_of_another_model_is_refused(
    llm: Llama, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = toy_llama(monkeypatch, tmp_path / "other", seed=3)
    with pytest.raises(ValueError, match="session belongs to another model"):
        llm.generate(PROMPT, session=other.session())


def test_text_that_cannot_be_tokenised(llm: Llama) -> None:
    with pytest.raises(ValueError, match="text is no valid Unicode: character 1 is the lone surr"):
        llm.tokenize("a\ud800")
    with pytest.raises(TypeError, match="text must be text, not b'a'"):
        llm.tokenize(b"a")  # type: ignore[arg-type]


def test_prompt_forms_are_equal(llm: Llama) -> None:
    text = llm.generate("defg", max_tokens=9)
    assert llm.generate(llm.tokenize("defg"), max_tokens=9).tokens == text.tokens
    ids = np.array(llm.tokenize("defg"), np.uint32)
    assert llm.generate(ids, max_tokens=9).tokens == text.tokens  # type: ignore[arg-type]
    assert llm.detokenize(text.tokens) == text.text


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("\ud800.gguf", ValueError, "path is .*ud800.gguf', which no file can be called"),
        (b"model.gguf", TypeError, "path must be text or a path, not b'model.gguf'"),
        (5, TypeError, "path must be text or a path, not 5"),
    ],
)
def test_paths_that_are_none(path: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Llama(path)


@pytest.mark.parametrize("drafter", [None, PromptLookup()])
def test_ignore_eos_goes_on(llm: Llama, drafter: PromptLookup | None) -> None:
    prompts = [[i] for i in range(2, 30)]
    ended = [llm.generate(p, max_tokens=None, drafter=drafter) for p in prompts]
    stopped = next(out for out in ended if out.finish_reason == "stop")
    assert stopped.tokens[-1] == 1
    assert 1 not in stopped.tokens[:-1]
    prompt = prompts[ended.index(stopped)]
    on = llm.generate(prompt, max_tokens=None, ignore_eos=True, drafter=drafter)
    assert on.tokens[: len(stopped.tokens)] == stopped.tokens
    assert on.finish_reason == "length"
    assert len(on.tokens) == 63


def test_max_tokens_zero_does_nothing(llm: Llama) -> None:
    session = llm.session()
    out = llm.generate(PROMPT, max_tokens=0, session=session, trace=True)
    assert (out.text, out.tokens, out.finish_reason, out.trace) == ("", [], "length", [])
    assert out.stats.forward_calls == 0
    assert out.stats.tokens_per_second == 0
    assert len(session) == 0


def test_stats_of_plain_decoding(llm: Llama) -> None:
    stats = llm.generate(PROMPT, max_tokens=10, ignore_eos=True).stats
    assert (stats.prompt_tokens, stats.cached_tokens) == (4, 0)
    assert (stats.tokens_generated, stats.forward_calls, stats.tokens_per_call) == (10, 10, 1)
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (0, 0, 0)
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (0, 1)
    assert stats.accepted_per_position == []
    assert stats.prefill_seconds > 0
    assert stats.decode_seconds == pytest.approx(stats.draft_seconds + stats.verify_seconds)
    assert stats.tokens_per_second == pytest.approx(9 / stats.decode_seconds)
    assert stats.prefill_tokens_per_second == pytest.approx(4 / stats.prefill_seconds)


def test_stats_agree_with_the_trace(llm: Llama) -> None:
    prompt = [5, 6, 7, 5, 6, 7, 5]
    session = llm.session()
    session.forward(prompt[:3])
    out = llm.generate(
        prompt,
        max_tokens=30,
        ignore_eos=True,
        drafter=PromptLookup(),
        session=session,
        trace=True,
    )
    stats, trace = out.stats, out.trace
    assert trace is not None
    assert stats.cached_tokens == 3
    assert stats.forward_calls == len(trace)
    assert stats.num_drafts == sum(step.drafted > 0 for step in trace) > 0
    assert stats.num_draft_tokens == sum(step.drafted for step in trace)
    assert stats.num_accepted_tokens == sum(step.accepted for step in trace) > 0
    assert stats.acceptance_rate == stats.num_accepted_tokens / stats.num_draft_tokens
    assert stats.tokens_per_call == 30 / len(trace)
    assert sum(stats.accepted_per_position) == stats.num_accepted_tokens
    assert stats.accepted_per_position == sorted(stats.accepted_per_position, reverse=True)
    assert [t for step in trace for t in step.tokens] == out.tokens
    assert [step.position for step in trace] == [
        len(prompt) + sum(len(step.tokens) for step in trace[:i]) for i in range(len(trace))
    ]


def test_stats_have_the_documented_figures() -> None:
    figures = Stats(prompt_tokens=3).as_dict()
    assert list(figures) == [
        "prompt_tokens",
        "cached_tokens",
        "tokens_generated",
        "forward_calls",
        "tokens_per_call",
        "num_drafts",
        "num_draft_tokens",
        "num_accepted_tokens",
        "acceptance_rate",
        "mean_acceptance_length",
        "accepted_per_position",
        "prefill_seconds",
        "decode_seconds",
        "draft_seconds",
        "verify_seconds",
        "prefill_tokens_per_second",
        "tokens_per_second",
        "seed",
        "queued_seconds",
    ]


def test_an_abandoned_stream_frees_its_session_at_once(llm: Llama) -> None:
    session = llm.session()
    expected = llm.generate(PROMPT, max_tokens=9).tokens
    gc.disable()
    try:
        for _ in llm.stream(PROMPT, max_tokens=9, session=session):
            break
        assert llm.generate(PROMPT, max_tokens=9, session=session).tokens == expected
    finally:
        gc.enable()


def test_a_closed_stream_ends(llm: Llama) -> None:
    session = llm.session()
    stream = llm.stream(PROMPT, max_tokens=9, session=session)
    next(stream)
    with pytest.raises(RuntimeError, match="in use by another generation"):
        llm.generate(PROMPT, session=session)
    stream.close()
    assert list(stream) == []
    assert stream.finish_reason is None
    with pytest.raises(RuntimeError, match="closed before its end"):
        stream.collect()
    assert llm.generate(PROMPT, max_tokens=2, session=session).stats.cached_tokens == 3


def test_a_session_goes_on_over_several_turns(llm: Llama, tmp_path: Path) -> None:
    session = llm.session()
    first = llm.generate(PROMPT, max_tokens=6, session=session, ignore_eos=True)
    longer = [*PROMPT, *first.tokens, 9, 10]
    second = llm.generate(longer, max_tokens=6, session=session, ignore_eos=True)
    assert second.stats.cached_tokens == 9
    assert second.tokens == llm.generate(longer, max_tokens=6, ignore_eos=True).tokens
    session.save(tmp_path / "saved")
    loaded = llm.load_session(tmp_path / "saved")
    again = llm.generate(longer, max_tokens=6, session=loaded, ignore_eos=True)
    assert (again.tokens, again.stats.cached_tokens) == (second.tokens, 11)


def test_all_four_methods_take_the_same_options() -> None:
    parameters = inspect.signature(Llama.stream).parameters.values()
    keywords = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert (
        keywords
        == set(OptionsOfText.__annotations__)
        == {*Options.__annotations__, "parse_special"}
    )


def test_the_public_names_exist() -> None:
    names = (
        "Completion ContextOverflow DraftModel Drafter FixedLength GgufError Llama PromptLookup "
        "Sampling Session Stats Stream TokenLogprob pull"
    )
    for name in names.split():
        assert hasattr(specrs, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = specrs.nonsense  # type: ignore[attr-defined]


def test_metadata_and_sizes(llm: Llama) -> None:
    assert llm.metadata["general.name"] == "toy"
    assert (llm.n_ctx, llm.n_vocab, llm.threads) == (64, 30, 1)
    assert (llm.device, llm.kernels) == ("cpu", "toy")
    assert "n_ctx=64" in repr(llm)


def test_a_drafter_that_edits_the_history_in_place_changes_no_text(llm: Llama) -> None:
    class Editing:
        def propose(self, tokens: Sequence[int], k: int) -> list[int]:
            assert isinstance(tokens, list)
            tokens[0] = (tokens[0] + 1) % 30
            tokens.append(tokens.pop(0))
            return []

    session = llm.session()
    wanted = llm.generate([5, 6, 7], max_tokens=8).tokens
    got = llm.generate([5, 6, 7], max_tokens=8, drafter=Editing(), session=session)
    assert got.tokens == wanted
    assert session.tokens == [5, 6, 7, *wanted[:-1]]
