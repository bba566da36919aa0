"""Whatever runs beside it, a request gives what it gives alone, to the bit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from schedules import Schedule, Wish
from specrs import (
    AdaptiveLength,
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
from specrs.attention import SinkWindow
from test_sampled_generation import Hostile

# Random schedules on tiny models, and on the real one.
SCHEDULES = int(os.environ.get("SPECRS_SCHEDULES", "40"))
REAL_SCHEDULES = int(os.environ.get("SPECRS_REAL_SCHEDULES", "2"))

DATA = Path(__file__).parent / "data"

COMMON = [5 + i * i % 23 for i in range(150)]  # what prompts may begin with

Alone = Callable[[Wish], Completion]


def alone_on(llm: Llama) -> Alone:
    """Return who answers what `generate` gives; each wish once."""
    known: dict[str, Completion] = {}

    def alone(wish: Wish) -> Completion:
        options = {name: value for name, value in wish.options.items() if name != "drafter"}
        options.pop("draft_length", None)
        key = repr((list(wish.prompt), sorted(options.items(), key=str)))
        if key not in known:
            known[key] = llm.generate(wish.prompt, **options)
        return known[key]

    return alone


@pytest.fixture(scope="module")
def llm(tiny: Callable[..., Path], threads: int) -> Llama:
    return Llama(tiny(), threads=threads)


@pytest.fixture(scope="module")
def small(tiny: Callable[..., Path], threads: int) -> DraftModel:
    """Give a drafter that all requests share, and that is right now and then."""
    return DraftModel(Llama(tiny(n_layer=1), threads=threads), num_draft_tokens=4)


@pytest.fixture(scope="module")
def alone(llm: Llama) -> Alone:
    return alone_on(llm)


def assert_as_alone(schedule: Schedule, alone: Alone) -> None:
    """Compare everything that a request gives."""
    for i, wish in enumerate(schedule.wishes):
        result, wanted = schedule.results[i], alone(wish)
        assert isinstance(result, Completion), result
        if result.finish_reason == "cancelled":
            assert wish.cancelled is not None
            n = len(result.tokens)
            assert n < len(wanted.tokens)
            assert result.tokens == wanted.tokens[:n]
            assert result.logprobs is None or result.logprobs == (wanted.logprobs or [])[:n]
            continue
        assert result.tokens == wanted.tokens
        assert result.text == wanted.text
        assert result.logprobs == wanted.logprobs
        assert result.finish_reason == wanted.finish_reason


SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.9, top_p=0.95, seed=3),
    Sampling(temperature=1.2, top_k=5, seed=4, repetition_penalty=1.2),
    Sampling(frequency_penalty=0.3),
]

GRAMMARS = [
    Grammar.regex("((the|a) (cat|hat) sat on the mat[.;] ?){1,9}"),
    Grammar.json_schema({"type": "array", "items": {"enum": ["the cat", "the mat", 12]}}),
]


@st.composite
def wishes(
    draw: st.DrawFn, prompts: st.SearchStrategy[list[int]], model: DraftModel | None = None
) -> Wish:
    options: dict[str, Any] = {
        "max_tokens": draw(st.sampled_from([1, 2, 5, 20, 70])),
        "sampling": draw(st.sampled_from(SAMPLINGS)),
        "logprobs": draw(st.sampled_from([None, None, 0, 2])),
        "ignore_eos": draw(st.booleans()),
    }
    if draw(st.integers(0, 2)) == 0:
        options["grammar"] = draw(st.sampled_from(GRAMMARS))
    prompt = draw(prompts)
    names = [None, "lookup", "suffix", "hostile", "chain", "forced"]
    drafter = draw(st.sampled_from(names))
    if drafter is not None:
        make: dict[str, Callable[[], Any]] = {
            "lookup": PromptLookup,
            "suffix": SuffixDecoding,
            "hostile": lambda: Hostile(prompt, 1),
            "forced": ForcedTokens,
            "chain": lambda: Chain(PromptLookup(), *filter(None, [model])),
        }
        options["drafter"] = make[drafter]()
        options["draft_length"] = draw(
            st.sampled_from([None, FixedLength(3), AdaptiveLength(max_length=5)])
        )
    if draw(st.integers(0, 9)) == 0:
        options["attention"] = SinkWindow(sink=0, window=64)
    if draw(st.integers(0, 5)) == 0:
        options["progress"] = lambda done, total: None
    return Wish(
        prompt,
        options,
        arrives=draw(st.integers(0, 30)),
        cancelled=draw(st.none() | st.integers(0, 60)),
        salt=draw(st.sampled_from([None, None, "other"])),
    )


def prompts_of(n_vocab: int) -> st.SearchStrategy[list[int]]:
    """Prompts that may begin alike, some of them as long as several pages."""
    own = st.lists(st.integers(2, n_vocab - 1), min_size=1, max_size=90)
    shared = st.sampled_from([0, 1, 63, 64, 65, 128, 150])
    return st.builds(lambda length, rest: COMMON[:length] + rest, shared, own)


@hypothesis.settings(max_examples=SCHEDULES)
@hypothesis.given(data=st.data())
def test_random_schedules_change_nothing(
    llm: Llama, small: DraftModel, alone: Alone, data: st.DataObject
) -> None:
    wish = wishes(prompts_of(llm.n_vocab), small)
    schedule = Schedule(
        llm,
        data.draw(st.lists(wish, min_size=1, max_size=8), "wishes"),
        pages=data.draw(st.sampled_from([8, 11, 16, 1000]), "pages"),
        max_requests=data.draw(st.sampled_from([1, 2, 3, 16]), "max_requests"),
        prefixes=data.draw(st.booleans(), "prefixes"),
        rows=data.draw(st.sampled_from([1, 7, 40, 300]), "rows"),
        tick=data.draw(st.sampled_from([0.0, 0.01, 10.0]), "tick"),
    )
    schedule.run()
    assert_as_alone(schedule, alone)


def test_the_youngest_pauses_where_memory_ends_and_loses_nothing(llm: Llama, alone: Alone) -> None:
    """Nobody says how long replies get, so that they outgrow what was promised."""
    options = {"max_tokens": None, "ignore_eos": True}
    long = [Wish([5 + i, 6, 7], options) for i in range(3)]
    schedule = Schedule(llm, long, pages=13, prefixes=False)
    schedule.run()
    assert schedule.steps.scheduler.paused
    assert_as_alone(schedule, alone)
    assert schedule.ended == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.usefixtures("two_cpus")
def test_threads_change_nothing(tiny: Callable[..., Path], alone: Alone, count: int) -> None:
    llm = Llama(tiny(), threads=count)
    sampling = Sampling(temperature=0.8, seed=1)
    options = {"max_tokens": 40, "sampling": sampling, "logprobs": 3, "ignore_eos": True}
    many = [Wish([*COMMON[: 70 + i], 9, i + 3], options, arrives=2 * i) for i in range(6)]
    schedule = Schedule(llm, many, rows=24)
    schedule.run()
    assert_as_alone(schedule, alone)


@pytest.fixture(scope="module")
def real(smollm2: Path, threads: int) -> Llama:
    return Llama(smollm2, threads=threads)


def texts() -> list[str]:
    lines = (DATA / "spec_bench_60.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines]


@hypothesis.settings(max_examples=REAL_SCHEDULES)
@hypothesis.given(data=st.data())
def test_random_schedules_of_the_real_model(real: Llama, data: st.DataObject) -> None:
    ids = sorted((real.tokenize(text) for text in texts()), key=len)[:24]
    prompts = st.builds(
        lambda prompt, cut: prompt[: cut or None], st.sampled_from(ids), st.sampled_from([0, 40])
    )
    schedule = Schedule(
        real,
        data.draw(st.lists(wishes(prompts), min_size=2, max_size=6)),
        pages=data.draw(st.sampled_from([24, 1000])),
        rows=data.draw(st.sampled_from([7, 64])),
    )
    schedule.run()
    assert_as_alone(schedule, alone_on(real))


@pytest.mark.parametrize(
    "options",
    [{}, {"sampling": Sampling(temperature=0.8, top_p=0.95, seed=7), "logprobs": 2}],
    ids=["greedy", "sampled"],
)
def test_prompts_of_the_real_model_in_one_batch(real: Llama, options: dict[str, Any]) -> None:
    everything = sorted(texts(), key=len)
    prompts = everything if os.environ.get("SPECRS_FULL") == "1" else everything[:8]
    options = {"max_tokens": 32, "drafter": PromptLookup(), **options}
    together = real.generate_many(prompts, max_requests=16, **options)
    for prompt, result in zip(prompts, together, strict=True):
        wanted = real.generate(prompt, **options)
        assert result.tokens == wanted.tokens
        assert result.text == wanted.text
        assert result.logprobs == wanted.logprobs
        assert result.finish_reason == wanted.finish_reason
