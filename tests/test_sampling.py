"""Settings, filters and draws of the sampler, against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sampling_reference as reference
from specrs import Sampling
from specrs._specrs import Sampler

Row = npt.NDArray[np.float32]


def row_of(*probabilities: float) -> Row:
    """Logits of a distribution."""
    logits: Row = np.log(np.array(probabilities)).astype(np.float32)
    return logits


def drawn(row: Row, draws: int, **settings: Any) -> npt.NDArray[np.float64]:
    """Count how often each token is drawn, at `draws` positions."""
    sampler = Sampler(seed=11, **settings)
    picks = [sampler.pick(row) for _ in range(draws)]
    return np.bincount(picks, minlength=len(row)).astype(np.float64)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *[("temperature", value) for value in (-1, float("nan"), float("inf"), 10**400)],
        *[("top_p", value) for value in (0, 1.1, -0.5, float("nan"))],
        *[("min_p", value) for value in (-0.1, 1.1, float("nan"))],
        ("top_k", -1),
        *[("seed", value) for value in (-1, 2**64)],
        *[("repetition_penalty", value) for value in (0, -1, float("inf"), float("nan"))],
        ("frequency_penalty", float("nan")),
        ("presence_penalty", float("inf")),
        *[("logit_bias", bias) for bias in ({-1: 0.0}, {"a": 1.0}, {3: float("nan")})],
        ("logit_bias", {3: float("inf")}),
    ],
)
def test_settings_out_of_range_are_named(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=setting):
        Sampling(**{setting: value})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", "hot"),
        ("temperature", None),
        ("top_k", 2.5),
        ("top_k", True),
        ("top_p", True),
        ("seed", 1.5),
        ("seed", "7"),
        ("logit_bias", [3]),
        ("logit_bias", {3: "much"}),
        ("logits_processor", 5),
        ("top_q", 1),
    ],
)
def test_settings_of_the_wrong_type_are_named(setting: str, value: Any) -> None:
    with pytest.raises(TypeError, match=setting):
        Sampling(**{setting: value})


def test_settings_may_be_numpy_numbers() -> None:
    sampling = Sampling(
        temperature=np.float32(0.5),
        top_k=np.int64(3),
        seed=np.uint64(2**63),
        logit_bias={np.int32(1): np.float64(-np.inf)},
    )
    assert sampling.sampler(0).pick(row_of(0.5, 0.25, 0.25)) in (0, 2)
    assert Sampling(top_k=10**30, temperature=1).sampler(0).pick(row_of(1.0)) == 0


def test_what_was_checked_cannot_change() -> None:
    bias = {1: -1.0}
    sampling = Sampling(logit_bias=bias)
    bias[2] = float("nan")
    assert sampling.logit_bias == {1: -1.0}
    assert sampling == Sampling(logit_bias={1: -1.0})


def test_a_seed_is_drawn_only_where_there_is_none() -> None:
    fixed = Sampling(temperature=1, seed=7)
    assert fixed.seeded() is fixed
    seeds = {Sampling(seed=None).seeded().seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(seed is not None and 0 <= seed < 2**64 for seed in seeds)


@given(
    st.lists(st.floats(-8, 8, width=16), min_size=2, max_size=40),
    st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0, 0.2, 0.8, 1.0, 2.0]),
            "top_k": st.integers(0, 9),
            "top_p": st.sampled_from([1.0, 0.95, 0.6, 0.05]),
            "min_p": st.sampled_from([0.0, 0.05, 0.4]),
            "repetition_penalty": st.sampled_from([1.0, 1.25, 0.5]),
            "frequency_penalty": st.sampled_from([0.0, 0.75, -0.5]),
            "presence_penalty": st.sampled_from([0.0, 1.5, -0.25]),
            "logit_bias": st.lists(st.tuples(st.integers(0, 40), st.sampled_from([-2.5, 3.0]))),
            "seed": st.integers(0, 2**64 - 1),
            "prompt_tokens": st.integers(0, 5),
        }
    ),
    st.lists(st.integers(0, 39), max_size=12),
)
def test_every_choice_is_that_of_the_definition(
    logits: list[float], settings: dict[str, Any], history: list[int]
) -> None:
    row = np.array(logits, np.float32)
    native, defined = Sampler(**settings), reference.Sampler(**settings)
    native.extend(history)
    defined.extend(history)
    for _ in range(6):
        adjusted = defined.adjust(row)
        np.testing.assert_array_max_ulp(native.adjust(row), adjusted, 1)
        left = defined.distribution(adjusted)
        score = {i: np.log(p) for i, p in left.items()}
        for i in score:
            score[i] += reference.gumbel(settings["seed"], len(defined), i)
        token = native.pick(row)
        # A rounding apart: the float32 weights of the engine move a score by less than this.
        assert token in left
        assert score[token] >= max(score.values()) - 1e-5
        defined.extend([token])
    native.truncate(len(history))
    defined.truncate(len(history))
    np.testing.assert_array_max_ulp(native.adjust(row), defined.adjust(row), 1)


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.65}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.75}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"min_p": 0.45}, [4 / 9, 3 / 9, 2 / 9, 0]),
        # 0.4 is 4/7 of the two that top_k leaves: top_p acts on what is left.
        ({"top_k": 2, "top_p": 0.55}, [1, 0, 0, 0]),
        ({"top_p": 0.95, "min_p": 0.7}, [4 / 7, 3 / 7, 0, 0]),
        ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        # The temperature comes first: at 0.5 two tokens reach 0.8, at 1 it would take three.
        ({"temperature": 0.5, "top_p": 0.8}, [16 / 25, 9 / 25, 0, 0]),
        ({"logit_bias": [(0, -np.inf)]}, [0, 3 / 6, 2 / 6, 1 / 6]),
        ({"logit_bias": [(3, np.log(4))]}, [4 / 13, 3 / 13, 2 / 13, 4 / 13]),
    ],
)
def test_frequencies_are_those_of_the_closed_form(
    settings: dict[str, Any], left: list[float]
) -> None:
    draws = 40_000
    counts = drawn(row_of(0.4, 0.3, 0.2, 0.1), draws, **{"temperature": 1.0, **settings})
    expected = np.array(left) * draws
    assert counts[expected == 0].sum() == 0
    some = expected > 0
    # The 99.9 % point of chi-square with 3 degrees of freedom is 16.3, with fewer it is lower.
    assert (((counts - expected)[some]) ** 2 / expected[some]).sum() < 16.3


def test_equal_logits_are_kept_and_chosen_by_id() -> None:
    row = np.zeros(9, np.float32)
    assert Sampler().pick(row) == 0
    assert np.flatnonzero(drawn(row, 500, temperature=1.0, top_k=3)).tolist() == [0, 1, 2]
    assert np.flatnonzero(drawn(row, 500, temperature=1.0, top_p=0.5)).tolist() == [0, 1, 2, 3, 4]
    assert np.flatnonzero(drawn(row, 500, temperature=1.0, min_p=1.0)).tolist() == [*range(9)]


def test_damaged_logits_never_win_and_nothing_to_choose_is_an_error() -> None:
    for temperature in (0.0, 1.0):
        sampler = Sampler(temperature=temperature)
        assert sampler.pick(np.array([np.nan, 1, -np.inf, np.nan], np.float32)) == 1
        assert sampler.pick(np.array([0, np.inf, 3], np.float32)) == 1
        with pytest.raises(ValueError, match="no token can be chosen at position 2: every logit"):
            sampler.pick(np.array([np.nan, -np.inf], np.float32))
        assert len(sampler) == 2


@pytest.mark.parametrize(
    "logits",
    [[1.0, 2.0], np.zeros(4), np.zeros((2, 4), np.float32), np.zeros(8, np.float32)[::2], None],
)
def test_only_rows_of_float32_are_taken(logits: Any) -> None:
    with pytest.raises(TypeError, match="contiguous float32 array of one dimension"):
        Sampler().pick(logits)


def test_log_probabilities_are_the_log_softmax_of_the_logits() -> None:
    row = np.random.default_rng(1).normal(0, 4, 5000).astype(np.float32)
    sampler = Sampler(temperature=0.5, top_k=3, logit_bias=[(7, 5.0)])
    for count in (0, 1, 20, 5000):
        logprob, top = sampler.log_probabilities(row, 7, count)
        expected, best = reference.Sampler().log_probabilities(row, 7, count)
        assert logprob == pytest.approx(expected, abs=1e-6)
        assert [i for i, _ in top] == [i for i, _ in best]
        np.testing.assert_allclose([v for _, v in top], [v for _, v in best], atol=1e-6)
    with pytest.raises(ValueError, match="token 5000 has no probability among 5000 logits"):
        sampler.log_probabilities(row, 5000, 1)
