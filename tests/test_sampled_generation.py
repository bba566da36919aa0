"""Sampled text and its log-probabilities are those of plain decoding, whoever drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fake_engine import Scripted, toy_llama
from specrs import (
    Chain,
    Drafter,
    DraftModel,
    FixedLength,
    Llama,
    PromptLookup,
    Sampling,
    SuffixDecoding,
)

PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
LONG = 40
FOUR = FixedLength(4)  # whether drafting pays on a toy is no question here


def uneven(tokens: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Forbid what stands two places back, and lean on the length of the history."""
    logits[tokens[-2]] = -np.inf
    logits[len(tokens) % 30] += 1
    return logits


SAMPLINGS = {
    "greedy": Sampling(),
    **{f"seed {s}": Sampling(temperature=0.8, top_p=0.95, seed=s) for s in (1, 2, 3)},
    "top-k": Sampling(temperature=1.2, top_k=4, seed=1),
    "min-p": Sampling(temperature=0.3, min_p=0.5, seed=1),
    "penalties": Sampling(
        temperature=0.4,
        seed=2,
        repetition_penalty=1.3,
        frequency_penalty=0.3,
        presence_penalty=0.2,
    ),
    "greedy penalties": Sampling(repetition_penalty=1.3, frequency_penalty=0.3),
    "greedy rewards": Sampling(presence_penalty=-0.4, frequency_penalty=-0.1),
    "bias": Sampling(logit_bias={9: 0.8, 4: -1.0, 11: -np.inf}, temperature=0.5, seed=3),
    "processor": Sampling(logits_processor=uneven, temperature=0.5, seed=3),
    "greedy processor": Sampling(logits_processor=uneven, presence_penalty=0.3),
}


@dataclass
class Hostile:
    """Propose the truth, with something else in every third place, or anything at all."""

    truth: list[int]
    seed: int

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        random = np.random.default_rng([self.seed, len(tokens)])
        draft = self.truth[len(tokens) : len(tokens) + k]
        draft += random.integers(0, 30, k - len(draft)).tolist()
        return [t if random.random() < 0.7 else int(random.integers(0, 30)) for t in draft]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_llama(monkeypatch, tmp_path / "toy", n_ctx=128, order=2)


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_llama(monkeypatch, tmp_path / "twin", n_ctx=128, order=2)


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_llama(monkeypatch, tmp_path / "other", n_ctx=128, order=1, seed=4)


def drafters(truth: list[int], *models: Llama) -> Iterator[Drafter]:
    yield Scripted(truth)
    yield Scripted([29] * 200)
    yield Hostile(truth, 1)
    yield Hostile(truth, 2)
    yield PromptLookup()
    yield SuffixDecoding()
    for model in models:
        yield DraftModel(model)
        yield Chain(PromptLookup(), DraftModel(model))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_no_drafter_and_no_length_changes_text_or_logprobs(
    llm: Llama, twin: Llama, other: Llama, sampling: Sampling
) -> None:
    options: dict[str, Any] = {"max_tokens": LONG, "ignore_eos": True, "logprobs": 3}
    plain = llm.generate(PROMPT, sampling=sampling, **options)
    truth = PROMPT + plain.tokens
    accepted = 0
    for drafter in drafters(truth, twin, other):
        for length in (None, FixedLength(1), FixedLength(3), FixedLength(8)):
            out = llm.generate(
                PROMPT, sampling=sampling, drafter=drafter, draft_length=length, **options
            )
            assert out.tokens == plain.tokens
            assert out.text == plain.text
            assert out.logprobs == plain.logprobs
            accepted += out.stats.num_accepted_tokens
    assert accepted > 3 * LONG


def test_seeds_and_settings_make_a_difference(llm: Llama) -> None:
    texts = {
        tuple(llm.generate(PROMPT, max_tokens=LONG, sampling=sampling).tokens)
        for sampling in SAMPLINGS.values()
    }
    assert len(texts) == len(SAMPLINGS)


@pytest.mark.parametrize("sampling", [s for s in SAMPLINGS.values() if s.logits_processor is None])
def test_a_draft_model_draws_with_the_noise_of_the_target(
    llm: Llama, twin: Llama, sampling: Sampling
) -> None:
    drafter = DraftModel(twin)
    for prompt in (PROMPT, PROMPT, PROMPT[:5], [9, 9]):  # one session, many generations
        out = llm.generate(
            prompt,
            max_tokens=25,
            ignore_eos=True,
            sampling=sampling,
            drafter=drafter,
            draft_length=FOUR,
        )
        assert out.stats.acceptance_rate == 1
        assert out.stats.forward_calls < 9  # an end token, which is ignored here, ends a draft


def test_draft_models_of_two_generations_do_not_mix(llm: Llama, twin: Llama) -> None:
    drafter = DraftModel(twin)
    settings = [SAMPLINGS["penalties"], SAMPLINGS["seed 1"], SAMPLINGS["greedy"]]
    options: dict[str, Any] = {"max_tokens": LONG, "ignore_eos": True}
    alone = [llm.generate(PROMPT, sampling=s, **options).tokens for s in settings]
    drafting: dict[str, Any] = {"drafter": drafter, "draft_length": FOUR, **options}
    streams = [llm.stream(PROMPT, sampling=s, **drafting) for s in settings]
    together: list[list[int]] = [[], [], []]
    for _ in range(2 * LONG):
        for stream, tokens in zip(streams, together, strict=True):
            tokens += [token for chunk in [next(stream, None)] if chunk for token in chunk.tokens]
    assert together == alone
    assert all(stream.stats.acceptance_rate == 1 for stream in streams)


@pytest.mark.parametrize(
    ("setting", "value", "repeats"),
    [
        ("frequency_penalty", 2.0, False),
        ("frequency_penalty", -2.0, True),
        ("presence_penalty", 2.0, False),
        ("presence_penalty", -2.0, True),
        ("repetition_penalty", 4.0, False),
        ("repetition_penalty", 0.5, True),
    ],
)
def test_penalties_count_the_tokens_of_the_same_draft(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, value: float, repeats: bool
) -> None:
    always = {str(position): 5 for position in range(100)}  # token 5 has logit 2, others below 1
    llm = toy_llama(monkeypatch, tmp_path / "repeating", n_ctx=128, script=always)
    sampling = Sampling(**{setting: value})  # type: ignore[arg-type]
    plain = llm.generate([3, 4], max_tokens=30, ignore_eos=True, sampling=sampling)
    assert (plain.tokens == [5] * 30) == repeats
    for drafter in (Scripted([5] * 100), Scripted([3, 4, *plain.tokens]), PromptLookup()):
        out = llm.generate(
            [3, 4],
            max_tokens=30,
            ignore_eos=True,
            sampling=sampling,
            drafter=drafter,
            draft_length=FOUR,
        )
        assert out.tokens == plain.tokens
        assert out.stats.num_drafts > 0


def test_penalties_concern_what_their_description_says(llm: Llama) -> None:
    favourite = llm.generate(PROMPT, max_tokens=1).tokens[0]
    prompt = [favourite, *PROMPT]
    assert llm.generate(prompt, max_tokens=1).tokens == [favourite]

    def first(**settings: float) -> int:
        sampling = Sampling(**settings)  # type: ignore[arg-type]
        return llm.generate(prompt, max_tokens=1, sampling=sampling).tokens[0]

    assert first(presence_penalty=5) == first(frequency_penalty=5) == favourite
    assert first(repetition_penalty=5) != favourite


def test_without_a_seed_every_generation_takes_its_own_and_tells_it(llm: Llama) -> None:
    fresh = Sampling(temperature=1, seed=None)
    a = llm.generate(PROMPT, max_tokens=LONG, sampling=fresh, ignore_eos=True)
    b = llm.generate(PROMPT, max_tokens=LONG, sampling=fresh, ignore_eos=True)
    assert a.stats.seed != b.stats.seed
    assert a.tokens != b.tokens
    again = Sampling(temperature=1, seed=a.stats.seed)
    repeated = llm.generate(PROMPT, max_tokens=LONG, sampling=again, ignore_eos=True)
    assert (repeated.tokens, repeated.stats.seed) == (a.tokens, a.stats.seed)
    assert llm.generate(PROMPT, max_tokens=1).stats.seed is None
    assert llm.generate(PROMPT, max_tokens=1, sampling=Sampling(seed=None)).stats.seed is None


def test_a_seed_gives_the_same_text_however_it_is_asked_for(llm: Llama, twin: Llama) -> None:
    options: dict[str, Any] = {
        "sampling": Sampling(temperature=1, seed=7, frequency_penalty=0.3),
        "max_tokens": LONG,
        "ignore_eos": True,
    }
    expected = llm.generate(PROMPT, **options).tokens
    llm.generate([3], max_tokens=5, sampling=Sampling(temperature=1, seed=8))
    assert llm.generate(PROMPT, **options).tokens == expected
    streamed = [t for chunk in llm.stream(PROMPT, **options) for t in chunk.tokens]
    assert streamed == expected
    session = llm.session()
    session.forward([*PROMPT[:4], 9, 9])
    snapshot = session.snapshot()
    for drafter in (None, PromptLookup(), DraftModel(twin)):
        out = llm.generate(PROMPT, session=session, drafter=drafter, **options)
        assert out.tokens == expected
        session.restore(snapshot)
    assert llm.generate(PROMPT, session=session, **options).stats.cached_tokens == 4


def test_a_longer_generation_begins_like_a_shorter_one(llm: Llama) -> None:
    sampling = Sampling(temperature=1, top_k=9, seed=5)
    whole = llm.generate(PROMPT, max_tokens=30, sampling=sampling, ignore_eos=True).tokens
    for n in (1, 11, 29):
        part = llm.generate(PROMPT, max_tokens=n, sampling=sampling, ignore_eos=True)
        assert part.tokens == whole[:n]
        rest = llm.generate(
            PROMPT + part.tokens, max_tokens=30 - n, sampling=sampling, ignore_eos=True
        )
        assert rest.tokens == whole[n:]


def test_a_processor_sees_every_position_once_with_its_history(llm: Llama, twin: Llama) -> None:
    seen: list[list[int]] = []
    rows: list[bytes] = []

    def watching(tokens: list[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        seen.append(list(tokens))
        rows.append(logits.tobytes())
        assert logits.dtype == np.float32
        assert logits.shape == (30,)
        return logits.astype(np.float64)

    sampling = Sampling(temperature=1, seed=3, logits_processor=watching, presence_penalty=0.5)
    plain = llm.generate(PROMPT, max_tokens=LONG, sampling=sampling, ignore_eos=True)
    expected, seen = seen, []
    expected_rows, rows = rows, []
    assert expected == [PROMPT + plain.tokens[:i] for i in range(LONG)]
    for drafter in drafters(PROMPT + plain.tokens, twin):
        drafting: dict[str, Any] = {"drafter": drafter, "draft_length": FOUR}
        llm.generate(PROMPT, max_tokens=LONG, sampling=sampling, ignore_eos=True, **drafting)
        assert (seen, rows) == (expected, expected_rows)
        seen, rows = [], []


def short(_: list[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return logits[:-1]


def meddling(tokens: list[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    tokens.append(3)
    return logits


def failing(tokens: list[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("processor", "error", "words"),
    [
        (short, ValueError, r"float array of shape \(30,\), not of shape \(29,\)"),
        (lambda _, x: x[None], ValueError, r"shape \(30,\), not of shape \(1, 30\)"),
        (lambda _, x: None, TypeError, "logits_processor must return .*, not None"),
        (lambda _, x: x.tolist(), TypeError, r"logits_processor must return .*, not \["),
        (lambda _, x: x.argsort(), TypeError, "not an array of int64"),
        (lambda _, x: x > 0, TypeError, "not an array of bool"),
        (lambda _, x: x * np.nan, ValueError, "position 9: every logit is -inf or NaN"),
        (lambda x: x, TypeError, "positional argument"),
        (meddling, RuntimeError, "logits_processor changed the tokens"),
        (failing, KeyError, "lost"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_faulty_processor_is_named_and_the_session_stays_right(
    llm: Llama,
    processor: Callable[..., Any],
    error: type[Exception],
    words: str,
    temperature: float,
) -> None:
    right = Sampling(temperature=temperature)
    truth = llm.generate(PROMPT, max_tokens=9, sampling=right).tokens
    positions = len(PROMPT) + 1

    def late(*arguments: Any) -> Any:
        return arguments[1] if len(arguments[0]) < positions else processor(*arguments)

    session = llm.session()
    sampling = Sampling(temperature=temperature, logits_processor=late)
    with pytest.raises(error, match=words):
        llm.generate(PROMPT, sampling=sampling, session=session, drafter=Scripted(PROMPT + truth))
    assert session.tokens == PROMPT[: len(session)]
    assert llm.generate(PROMPT, max_tokens=9, sampling=right, session=session).tokens == truth


def test_what_a_processor_makes_too_large_for_a_float_is_infinite(llm: Llama) -> None:
    def insisting(_: list[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        wide = logits.astype(np.float64)
        wide[4] = 1e300
        return wide

    sampling = Sampling(logits_processor=insisting)
    tokens = llm.generate(PROMPT, max_tokens=3, sampling=sampling, ignore_eos=True).tokens
    assert tokens == [4, 4, 4]


def test_forbidding_everything_is_an_error_that_says_where(llm: Llama) -> None:
    sampling = Sampling(temperature=1, logit_bias=dict.fromkeys(range(30), -np.inf))
    session = llm.session()
    with pytest.raises(ValueError, match=r"position 8: every logit .* logit_bias"):
        llm.generate(PROMPT, sampling=sampling, session=session)
    assert len(llm.generate(PROMPT, max_tokens=3, session=session).tokens) == 3


def test_logprobs_are_those_of_the_models_own_logits(llm: Llama) -> None:
    sampling = SAMPLINGS["penalties"]
    out = llm.generate(PROMPT, max_tokens=9, sampling=sampling, logprobs=2, ignore_eos=True)
    assert out.logprobs is not None
    assert [entry.token for entry in out.logprobs] == out.tokens
    rows = llm.session().forward_all_positions(PROMPT + out.tokens)[len(PROMPT) - 1 : -1]
    for entry, row in zip(out.logprobs, rows.astype(np.float64), strict=True):
        logprobs = row - np.log(np.exp(row).sum())
        best = np.argsort(-row)[:2]
        assert entry.logprob == pytest.approx(logprobs[entry.token], abs=1e-6)
        assert [i for i, _ in entry.top] == best.tolist()
        assert [p for _, p in entry.top] == pytest.approx(logprobs[best], abs=1e-6)


def test_logprobs_may_tell_the_chosen_token_alone_or_nothing(llm: Llama) -> None:
    alone = llm.generate(PROMPT, max_tokens=5, logprobs=0).logprobs
    assert alone is not None
    assert [entry.top for entry in alone] == [()] * len(alone)
    everything = llm.generate(PROMPT, max_tokens=1, logprobs=30).logprobs
    assert everything is not None
    assert sum(np.exp([p for _, p in everything[0].top])) == pytest.approx(1)
    assert llm.generate(PROMPT, max_tokens=5).logprobs is None
    assert llm.generate(PROMPT, max_tokens=0, logprobs=1).logprobs == []


def test_chunks_carry_the_logprobs_of_their_tokens(llm: Llama) -> None:
    out = llm.generate(PROMPT, max_tokens=LONG, logprobs=1, ignore_eos=True)
    end = out.tokens[13]
    place = out.tokens.index(end)
    drafting: dict[str, Any] = {"drafter": Scripted(PROMPT + out.tokens), "draft_length": FOUR}
    stop = llm.detokenize([end])
    chunks = list(llm.stream(PROMPT, logprobs=1, stop=stop, ignore_eos=True, **drafting))
    assert {chunk.from_draft for chunk in chunks} == {True, False}
    for chunk in chunks:
        assert chunk.logprobs is not None
        assert [entry.token for entry in chunk.logprobs] == chunk.tokens
    told = [entry for chunk in chunks for entry in chunk.logprobs or ()]
    assert out.logprobs is not None
    assert told == out.logprobs[: place + 1]
    assert all(chunk.logprobs is None for chunk in llm.stream(PROMPT, max_tokens=3))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_engine_gives_the_same_bits_to_every_draft(
    tiny: Callable[..., Path], threads: int
) -> None:
    llm = Llama(tiny(quant="Q8_0"), threads=threads)
    prompt = list(range(20, 60, 3))
    for sampling in (SAMPLINGS["greedy"], SAMPLINGS["seed 1"], SAMPLINGS["penalties"]):
        options: dict[str, Any] = {"sampling": sampling, "logprobs": 5, "ignore_eos": True}
        plain = llm.generate(prompt, max_tokens=60, **options)
        reference = Llama(tiny(quant="Q8_0"), threads=1)
        assert reference.generate(prompt, max_tokens=60, **options).logprobs == plain.logprobs
        for drafter in drafters(prompt + plain.tokens, reference):
            if isinstance(drafter, Scripted) and drafter.script[0] == 29:
                continue
            out = llm.generate(prompt, max_tokens=60, drafter=drafter, draft_length=FOUR, **options)
            assert out.tokens == plain.tokens
            assert out.logprobs == plain.logprobs
            assert out.stats.num_drafts > 0
