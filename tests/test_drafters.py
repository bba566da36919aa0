"""Prompt lookup against a brute-force search over histories that change in every way; chains."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import thread_time
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrs import Chain, Draft, Drafter, PromptLookup, SuffixDecoding
from specrs.speculation.drafters import Occurrence, common_prefix

# Few different ids, so that n-grams repeat.
HISTORIES = st.lists(st.integers(0, 2), max_size=60)


def brute_force(
    tokens: Sequence[int],
    k: int,
    longest: int,
    shortest: int,
    occurrence: str = "last",
    min_hits: int = 1,
) -> list[int]:
    """Search as the definition says: longest n-gram first, latest earlier occurrence first."""
    tokens = list(tokens)
    for n in range(longest, shortest - 1, -1):
        end = tokens[len(tokens) - n :]
        hits = [i + n for i in range(len(tokens) - n) if tokens[i : i + n] == end]
        if len(hits) < min_hits:
            continue
        followers = [tokens[hit] for hit in hits]
        at = {
            "last": hits[-1],
            "first": hits[0],
            "most_frequent": max(hits, key=lambda hit: (followers.count(tokens[hit]), hit)),
        }[occurrence]
        return tokens[at : at + k]
    return []


@given(st.data())
def test_equals_brute_force_whatever_happens_to_the_history(data: st.DataObject) -> None:
    shortest = data.draw(st.integers(1, 4))
    longest = data.draw(st.integers(shortest, 6))
    most = data.draw(st.integers(1, 6))
    occurrence = data.draw(st.sampled_from(get_args(Occurrence)))
    min_hits = data.draw(st.integers(1, 3))
    drafter = PromptLookup(longest, shortest, most, occurrence=occurrence, min_hits=min_hits)
    tokens: list[int] = []
    for _ in range(data.draw(st.integers(1, 12))):
        change = data.draw(st.sampled_from(["grow", "cut", "replace", "copy", "tuple", "again"]))
        if change == "grow":
            tokens.extend(data.draw(HISTORIES))
        elif change == "cut":
            del tokens[data.draw(st.integers(0, len(tokens))) :]
        elif change == "replace":  # another request, which may share a beginning
            tokens = tokens[: data.draw(st.integers(0, len(tokens)))] + data.draw(HISTORIES)
        elif change == "copy":
            tokens = list(tokens)
        given_tokens = tuple(tokens) if change == "tuple" else tokens
        before = list(tokens)
        k = data.draw(st.integers(0, 8))
        proposed = drafter.propose(given_tokens, k)
        k = min(k, most)
        assert proposed == brute_force(tokens, k, longest, shortest, occurrence, min_hits)
        assert tokens == before


def test_a_list_that_was_cut_and_grew_again_unseen() -> None:
    drafter = PromptLookup(2, 1, 8)
    tokens = list(range(100, 140))
    assert drafter.propose(tokens, 4) == []
    del tokens[10:]
    tokens += [*range(200, 240), 105]
    assert drafter.propose(tokens, 4) == [106, 107, 108, 109]
    assert drafter.propose([*tokens[:-1], 135], 4) == []


@pytest.mark.parametrize("lengths", [(40, 5, 0, 40), (5, 40, 39, 1), (40, 0, 40)])
def test_one_drafter_serves_shorter_and_longer_histories(lengths: tuple[int, ...]) -> None:
    drafter = PromptLookup()
    base = [i % 11 for i in range(40)]
    for length in lengths:
        assert drafter.propose(base[:length], 8) == brute_force(base[:length], 8, 3, 1)


@pytest.mark.parametrize(
    "tokens", [[], [1], [1, 2], [1] * 30, [1, 2] * 15, [1, 2, 3, 4, 5, 6, 7] * 5]
)
@pytest.mark.parametrize("k", range(17))
def test_short_and_periodic_histories(tokens: list[int], k: int) -> None:
    for longest in range(1, 9):
        for shortest in range(1, longest + 1):
            found = PromptLookup(longest, shortest, 16).propose(tokens, k)
            assert found == brute_force(tokens, k, longest, shortest)
            assert len(found) <= k


def test_numpy_history_gives_the_same() -> None:
    tokens = np.array([1, 2, 3, 9, 1, 2, 3], np.uint32)
    assert PromptLookup().propose(tokens, 2) == [9, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"min_ngram_size": 0},
            "1 <= min_ngram_size <= max_ngram_size <= 64 is needed, not 0 and 3",
        ),
        ({"max_ngram_size": 65}, "max_ngram_size <= 64 is needed, not 1 and 65"),
        ({"max_ngram_size": 10**7}, "<= 64 is needed"),
        ({"max_ngram_size": 1, "min_ngram_size": 2}, "not 2 and 1"),
        ({"num_draft_tokens": 0}, "num_draft_tokens must be at least 1, not 0"),
        ({"min_hits": 0}, "min_hits must be at least 1, not 0"),
        ({"occurrence": "best"}, "occurrence must be 'last', 'first' or 'most_frequent', not 'be"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"PromptLookup: .*{words}"):
        PromptLookup(**settings)


@pytest.mark.parametrize("value", ["3", 2.5, True, None])
@pytest.mark.parametrize("name", ["max_ngram_size", "min_ngram_size", "num_draft_tokens"])
def test_settings_that_are_no_numbers(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"PromptLookup: {name} must be an int, not {value!r}"):
        PromptLookup(**{name: value})


@pytest.mark.parametrize("most", [1000, 2**63 - 1])
def test_any_number_may_be_asked_for(most: int) -> None:
    assert PromptLookup(num_draft_tokens=most).propose([1, 2, 3, 1], most) == [2, 3, 1]
    assert SuffixDecoding(most).propose([1, 2, 3, 1], most)[:1] == [2]


def test_two_threads_share_a_drafter() -> None:
    drafter = PromptLookup()
    wrong: list[object] = []

    def work(offset: int) -> None:
        tokens = [(i * offset) % 13 for i in range(50)]
        for _ in range(200):
            if drafter.propose(tokens, 8) != brute_force(tokens, 8, 3, 1):
                wrong.append(offset)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def seconds_per_proposal(drafter: Drafter, tokens: list[int], new: Sequence[int]) -> float:
    """Time proposals while `tokens` grows by `new`, one id at a time; the best of five parts."""
    drafter.propose(tokens, 16)
    best, fifth = float("inf"), len(new) // 5
    for start in range(0, len(new), fifth):
        started = thread_time()
        for token in new[start : start + fifth]:
            tokens.append(token)
            drafter.propose(tokens, 16)
        best = min(best, (thread_time() - started) / fifth)
    return best


@pytest.mark.parametrize("kind", ["no match", "all equal", "random", "repeated"])
@pytest.mark.parametrize("make", [PromptLookup, SuffixDecoding])
def test_the_cost_does_not_grow_with_the_history(make: type[Drafter], kind: str) -> None:
    random = np.random.default_rng(1)
    costs = {}
    for length in (1_000, 100_000):
        total = length + 1_000
        ids: list[int] = {
            "no match": np.arange(total),
            "all equal": np.full(total, 7),
            "random": random.integers(0, 300, total),
            "repeated": np.resize(random.integers(0, 49_152, 700), total),
        }[kind].tolist()
        costs[length] = seconds_per_proposal(make(), ids[:length], ids[length:])
    # About 2 us are usual; a scan of 100,000 ids takes a thousand times as long.
    assert costs[100_000] < 20e-6, costs
    assert costs[100_000] < 8 * costs[1_000] + 5e-6, costs


@pytest.mark.parametrize("make", [PromptLookup, SuffixDecoding])
def test_a_long_prompt_is_indexed_quickly(make: type[Drafter]) -> None:
    tokens = np.random.default_rng(2).integers(0, 49_152, 100_000).tolist()
    start = thread_time()
    make().propose(tokens, 8)
    assert thread_time() - start < 2.0  # 0.1 s are usual


def test_anything_with_propose_is_a_drafter() -> None:
    class Mine:
        def propose(self, tokens: Sequence[int], k: int) -> Sequence[int]:
            return tokens[:k]

    assert isinstance(Mine(), Drafter)
    assert not isinstance(object(), Drafter)
    assert repr(PromptLookup(occurrence="first")) == (
        "PromptLookup(max_ngram_size=3, min_ngram_size=1, num_draft_tokens=16, "
        "occurrence='first', min_hits=1)"
    )


def test_a_proposal_says_how_long_a_context_it_rests_on() -> None:
    drafter = PromptLookup()
    for history, matched in (([1, 2, 3, 1, 2, 3], 3), ([1, 2, 3, 9, 2, 3], 2), ([1, 9, 1], 1)):
        draft = drafter.propose(history, 4)
        assert isinstance(draft, Draft)
        assert draft.matched == matched
    assert drafter.propose([1, 2], 4).matched == 0


class Fixed:
    """Propose the same ids whenever asked, and count."""

    def __init__(self, *ids: int) -> None:
        self.ids = list(ids)
        self.asked = 0

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        self.asked += 1
        return self.ids[:k]


def test_in_a_chain_the_first_that_proposes_wins() -> None:
    silent, first, second = Fixed(), Fixed(1, 2), Fixed(3)
    chain = Chain(silent, Chain(first, second))
    assert chain.propose([5], 8) == [1, 2]
    assert (silent.asked, first.asked, second.asked) == (1, 1, 0)
    assert Chain(silent, second).propose([5], 8) == [3]
    assert Chain(silent).propose([5], 8) == []
    assert repr(Chain(PromptLookup(min_hits=2), PromptLookup())).count("PromptLookup(") == 2


def test_what_is_no_chain() -> None:
    with pytest.raises(ValueError, match="Chain: at least one drafter"):
        Chain()
    for wrong in (PromptLookup, None, 5):
        with pytest.raises(TypeError, match="Chain: every member must be an object with a method"):
            Chain(PromptLookup(), wrong)  # type: ignore[arg-type]


@given(HISTORIES, HISTORIES, st.integers(0, 60))
def test_common_prefix(a: list[int], b: list[int], start: int) -> None:
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert common_prefix(a, b, min(start, expected)) == expected
    assert common_prefix(tuple(a), b) == expected
