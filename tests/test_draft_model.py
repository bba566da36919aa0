"""A draft model: same vocabulary, own session, never an influence on the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_engine import LETTERS, toy_llama
from specrs import DraftModel, FixedLength, Llama, PromptLookup

WORDS = [f"w{i}" for i in range(60)]


class Loader:
    """Load toy models by their settings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch = monkeypatch
        self.folder = folder
        self.count = 0

    def __call__(self, **options: Any) -> Llama:
        self.count += 1
        return toy_llama(self.monkeypatch, self.folder / f"toy{self.count}", **options)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Loader:
    return Loader(monkeypatch, tmp_path)


def test_the_target_itself_as_draft_is_always_right(load: Loader) -> None:
    llm, twin = load(order=2), load(order=2)
    plain = llm.generate([5, 6, 7], max_tokens=25, ignore_eos=True)
    drafter = DraftModel(twin, num_draft_tokens=4)
    out = llm.generate(
        [5, 6, 7], max_tokens=25, ignore_eos=True, drafter=drafter, draft_length=FixedLength(8)
    )
    assert out.tokens == plain.tokens
    assert out.stats.acceptance_rate == 1
    assert out.stats.forward_calls == 5


@pytest.mark.parametrize("seed", range(5))
def test_another_model_as_draft_changes_nothing(load: Loader, seed: int) -> None:
    llm, other = load(order=1, vocab=LETTERS), load(order=1, seed=seed, vocab=LETTERS)
    drafter = DraftModel(other, num_draft_tokens=3)
    for prompt in ([5], [5, 6, 7], [5, 6, 9, 9], [5, 6, 9, 9], [8]):
        out = llm.generate(prompt, max_tokens=30, ignore_eos=True, drafter=drafter)
        assert out.tokens == llm.generate(prompt, max_tokens=30, ignore_eos=True).tokens
        assert out.stats.num_drafts > 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_proposals_depend_on_the_history_alone(load: Loader, data: st.DataObject) -> None:
    draft = load(order=3, n_ctx=64)
    drafter = DraftModel(draft, num_draft_tokens=5)
    tokens: list[int] = [3]
    for _ in range(data.draw(st.integers(1, 8))):
        tokens = tokens[: data.draw(st.integers(1, len(tokens)))]
        tokens = tokens + data.draw(st.lists(st.integers(2, 6), max_size=6))
        if data.draw(st.booleans()):  # the usual case: some of the last proposal was right
            tokens += drafter.propose(tokens, 3)[:2]
        k = data.draw(st.integers(0, 6))
        fresh = DraftModel(draft, num_draft_tokens=5).propose(tokens, k)
        assert drafter.propose(tokens, k) == fresh
        if 1 not in fresh:  # an end token ends the draft
            assert len(fresh) == min(k, 5)


def test_the_session_follows_without_evaluating_anything_twice(load: Loader) -> None:
    llm, twin = load(order=2), load(order=2)
    drafter = DraftModel(twin, num_draft_tokens=4)
    llm.generate([5, 6, 7], max_tokens=25, ignore_eos=True, drafter=drafter)
    rows = drafter._caches.take([]).session.rows  # type: ignore[attr-defined]
    # Prompt, then three more; after a step the last draft and the target's own token are new.
    assert rows[:8] == [3, 1, 1, 1, 2, 1, 1, 1]


def test_a_smaller_context_is_refused(load: Loader) -> None:
    llm, small = load(order=2, n_ctx=64), load(order=2, n_ctx=20)
    words = "DraftModel: the draft's context of 20 is smaller .* 64; load the target with n_ctx=20"
    with pytest.raises(ValueError, match=words):
        llm.generate([5, 6, 7], drafter=DraftModel(small))
    # On its own, it proposes while there is room.
    drafter = DraftModel(small, num_draft_tokens=8)
    assert len(drafter.propose([5] * 19, 8)) <= 2
    assert len(drafter.propose([5] * 20, 8)) == 1
    assert drafter.propose([5] * 21, 8) == []


@pytest.mark.parametrize(("rows", "target_rows"), [(64, 80), (80, 64), (60, 60), (64, 60)])
def test_padding_rows_may_differ(load: Loader, rows: int, target_rows: int) -> None:
    llm = load(vocab=WORDS, n_vocab=target_rows, script={"6": 60} if target_rows > 60 else {})
    # The draft's favourite is one of its padding rows, twice.
    padding = {"4": 61, "5": 63} if rows > 63 else {}
    draft = load(vocab=[*WORDS, *[None] * 3], n_vocab=rows, script=padding) if rows > 63 else None
    draft = draft or load(vocab=WORDS, n_vocab=rows)
    drafter = DraftModel(draft)
    for n in range(1, 7):
        assert max(drafter.propose([5, 6, 7, 8][:n], 4)) < 60
    plain = llm.generate([5, 6, 7], max_tokens=25)
    out = llm.generate([5, 6, 7], max_tokens=25, drafter=drafter)
    assert out.tokens == plain.tokens
    assert out.stats.num_drafts > 0


@pytest.mark.parametrize(
    ("draft_settings", "target_settings"),
    [
        # As Qwen 2.5: the same tokens, then 151,936 rows in a small model, 152,064 in a large one.
        (
            {"vocab": [*WORDS, "[PAD60]"]},
            {"vocab": [*WORDS, *(f"[PAD{i}]" for i in range(60, 70))]},
        ),
        ({"vocab": [*WORDS, "spare"], "unused": [60]}, {"vocab": WORDS, "n_vocab": 64}),
        ({"vocab": [*WORDS, "a"], "unused": [60]}, {"vocab": [*WORDS, "b"], "unused": [60]}),
        # One converter calls unused what another does not.
        ({"vocab": WORDS, "unused": [50, 51]}, {"vocab": WORDS}),
        ({"vocab": WORDS}, {"vocab": WORDS, "unused": [50, 51]}),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_models_of_a_family_pair_up(
    load: Loader, draft_settings: dict[str, Any], target_settings: dict[str, Any], swapped: bool
) -> None:
    settings = [draft_settings, target_settings]
    draft, target = (load(order=2, **options) for options in settings[:: -1 if swapped else 1])
    out = target.generate([5, 6, 7], max_tokens=25, drafter=DraftModel(draft))
    assert out.tokens == target.generate([5, 6, 7], max_tokens=25).tokens
    assert out.stats.num_drafts > 0


def test_files_of_a_family_pair_up(tiny: Callable[..., Path], threads: int) -> None:
    """The same vocabulary with 8 and with 40 rows of padding, read from files."""
    small, large = (Llama(tiny(n_vocab=320 + 32 * i, seed=i), threads=threads) for i in (0, 1))
    assert small.n_vocab != large.n_vocab
    for draft, target in [(small, large), (large, small)]:
        drafter = DraftModel(draft, num_draft_tokens=4)
        plain = target.generate([5, 6, 7], max_tokens=20)
        assert target.generate([5, 6, 7], max_tokens=20, drafter=drafter).tokens == plain.tokens


def test_a_history_the_draft_cannot_read_gets_no_proposal(load: Loader) -> None:
    draft = load(vocab=WORDS)
    drafter = DraftModel(draft)
    before = drafter.propose([5, 6], 4)
    assert drafter.propose([5, 6, 60], 4) == []
    assert drafter.propose([5, 6], 4) == before


@pytest.mark.parametrize(
    ("draft_settings", "words"),
    [
        ({"vocab": WORDS[:48]}, r"token 48 is only padding in the draft \(48 rows\) and 'w48'"),
        ({"vocab": [*WORDS[:7], "x", *WORDS[8:]]}, "token 7 is 'x' in the draft .* and 'w7'"),
        ({"vocab": [WORDS[1], WORDS[0], *WORDS[2:]]}, "token 0 is 'w1' in the draft .* and 'w0'"),
        ({"vocab": [*WORDS, "[PAD61]"]}, r"token 60 is '\[PAD61\]' in the draft .* only padding"),
        ({"vocab": [*WORDS[:7], "x", *WORDS[8:]], "unused": [7]}, "7 is only padding .* and 'w7'"),
        ({"vocab": [*WORDS, "extra"]}, "token 60 is 'extra' in the draft .* and only padding"),
        ({"vocab": WORDS, "eos": 3}, "eos token is 3 in the draft and None in the target"),
        ({"vocab": WORDS, "bos": 4}, "bos token is 4 in the draft and None in the target"),
    ],
)
def test_another_vocabulary_is_refused_before_any_work(
    load: Loader, draft_settings: dict[str, Any], words: str
) -> None:
    llm = load(vocab=WORDS)
    drafter = DraftModel(load(**draft_settings))
    session = llm.session()
    with pytest.raises(ValueError, match=f"DraftModel: .*{words}"):
        llm.generate([5, 6], drafter=drafter, session=session)
    assert len(session) == 0
    assert len(llm.generate([5, 6], max_tokens=5, session=session).tokens) == 5


def test_p_min_stops_where_the_draft_is_unsure(load: Loader) -> None:
    draft = load(order=2)
    sure = DraftModel(draft, num_draft_tokens=8).propose([5, 6, 7], 8)
    history, probabilities = [5, 6, 7], []
    for guess in sure:
        logits = draft._model.row(history).astype(np.float64)  # type: ignore[attr-defined]
        probabilities.append(np.exp(logits)[guess] / np.exp(logits).sum())
        history.append(guess)
    bar = sorted(probabilities)[2]
    expected = next(i for i, p in enumerate(probabilities) if p < bar * 1.0001)
    found = DraftModel(draft, num_draft_tokens=8, p_min=bar * 1.0001).propose([5, 6, 7], 8)
    assert found == sure[:expected]
    assert DraftModel(draft, p_min=1.0).propose([5, 6, 7], 8) == []


def test_an_interrupted_draft_recovers(load: Loader) -> None:
    draft = load(order=2)
    drafter = DraftModel(draft)
    expected = drafter.propose([5, 6, 7], 4)
    # As if an interrupt had come before the ids were noted.
    drafter.cache([]).session.forward([3, 3])
    assert drafter.propose([5, 6, 7], 4) == expected


def test_settings_out_of_range(load: Loader) -> None:
    llm = load()
    with pytest.raises(TypeError, match=r"draft_llm must be a specrs.Llama, not 'model.gguf'"):
        DraftModel("model.gguf")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_draft_tokens must be at least 1, not 0"):
        DraftModel(llm, num_draft_tokens=0)
    with pytest.raises(TypeError, match=r"draft_llm must be a specrs.Llama, not <class"):
        DraftModel(type(llm))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"num_draft_tokens must be an int, not 1.5"):
        DraftModel(llm, num_draft_tokens=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="DraftModel: p_min must be a number, not 'x'"):
        DraftModel(llm, p_min="x")  # type: ignore[arg-type]
    for p_min in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="p_min must be from 0 to 1"):
            DraftModel(llm, p_min=p_min)


def test_the_length_policy_bounds_every_drafter(load: Loader) -> None:
    llm, twin = load(order=2), load(order=2)
    for drafter in (DraftModel(twin, num_draft_tokens=8), PromptLookup()):
        out = llm.generate(
            [5, 6, 7] * 4,
            max_tokens=20,
            ignore_eos=True,
            drafter=drafter,
            draft_length=FixedLength(2),
            trace=True,
        )
        assert out.trace is not None
        assert max(step.drafted for step in out.trace) == 2
