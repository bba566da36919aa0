"""Families of models beside plain Llama: each fact of one counts, and the engines have it right.

`family_models.py` has the models, `facts.py` what is true of them and how the oracle does without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits, cold
from blocks import Random
from facts import FACTS, Switch
from family_models import FAMILY_MODELS, MAIN, MIXED, MIXTURES, with_keys, with_window
from reference import Array, Reference
from rounded import RoundedReference
from specrs._specrs import GgufError, Model
from tensors import EMBEDDING
from test_logits import (
    candle_allowed,
    check_candle,
    check_rows,
    forward,
    most_rows_error,
    rms,
)
from vectors import KERNEL_SETS

# Through 9 layers noise tips a few weights of attention in most rows. Such a weight is off by
# 1 / 4096: times 16 values of 1, and through weights of 2 / sqrt(64), it moves a residual stream of
# 3 by 2.4e-4 and logits of 3 by as much, or less in later layers. Four of them:
MOST_ROWS_ERROR = 5e-4
# In long sequences through many layers a number tips early, and what follows is rounded as if anew.
# Two evaluations that round independently are sqrt(2) of their rounding error apart, of which the
# root mean square over rows that depend on each other is known to a tenth.
INDEPENDENT = 1.1 * 2**0.5
# What a fact must change when it is switched off, in errors that an engine may make.
COUNTS = 10
# Router logits of 2 are float32 sums of up to 96 products, after up to 7 other matrices:
# sqrt(96) x 2^-24 x 8 x 2.
ROUTER_ERROR = 1e-5
# Models deeper than this have no rows in which nothing has tipped.
SHALLOW = 9
# Facts that say nothing of four positions.
LATE = {
    "attention.temperature_scale",
    "attention.sliding_window",
    "windows",
    "every second block",
    "the last of two blocks",
    "attention.sliding_window_pattern",
}

ALL_FACTS = [(model, fact) for model, facts in FACTS.items() for fact in facts]
EARLY_FACTS = [
    (model, fact)
    for model, fact in ALL_FACTS
    if fact not in LATE and FAMILY_MODELS[model].get("n_layer", 2) <= SHALLOW
]
VARIANTS: dict[str, dict[str, Any]] = {
    **FAMILY_MODELS,
    **{
        f"{name}, window {window}": with_window(name, window)
        for name in ("gemma2", "gemma3", "phi3", "olmo2 with windows")
        for window in (5, 64, 65, 100)
    },
    "gemma2, all but one of 4": with_window("gemma2", 65, attention__sliding_window_pattern=4),
    "qwen2, epsilon": FAMILY_MODELS["qwen2"] | {"rms_eps": 0.05},
    "phi3, longrope by its key": with_keys("phi3", rope__scaling__type="longrope"),
}


def prompt(n_vocab: int, length: int = 250) -> list[int]:
    ids: list[int] = (Random(0, "families").bytes(2 * length).view("<u2") % n_vocab).tolist()
    return ids


def n_vocab_of(oracle: Reference) -> int:
    return len(oracle.weights[EMBEDDING])


def switched_off(oracle: Reference, switch: Switch) -> Reference:
    switch(oracle)
    return oracle


class Remembered(RoundedReference):
    """Computes the logits of each sequence once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.remembered: dict[tuple[int, ...], Array] = {}

    def logits(self, tokens: Sequence[int]) -> Array:
        if tuple(tokens) not in self.remembered:
            self.remembered[tuple(tokens)] = super().logits(tokens)
        return self.remembered[tuple(tokens)]


@cache
def rounded_oracle(path: Path) -> Remembered:
    return Remembered(path, np.float64)


@cache
def long_logits(path: Path) -> tuple[Array, Array]:
    """Compute the exact and the rounded logits of the long prompt."""
    oracle = Reference(path, np.float64)
    tokens = prompt(n_vocab_of(oracle))
    return oracle.logits(tokens), rounded_oracle(path).logits(tokens)


@cache
def long_candle(path: Path) -> float:
    """Tell how far candle may be from the exact logits of the long prompt."""
    exact, _ = long_logits(path)
    return candle_allowed(path, exact, prompt(exact.shape[1]))


def check(path: Path, model: Model) -> None:
    """Compare with the oracle: rows of short sequences, where nothing tipped, and a long one."""
    if rounded_oracle(path).n_layer <= SHALLOW:
        assert most_rows_error(rounded_oracle(path), forward(model)) <= MOST_ROWS_ERROR
    check_rows(forward(model)(prompt(model.n_vocab)), *long_logits(path), INDEPENDENT)


def test_every_model_has_facts() -> None:
    assert list(FACTS) == list(FAMILY_MODELS)


@pytest.mark.once
@pytest.mark.parametrize(("model", "fact"), ALL_FACTS)
def test_every_fact_counts_in_long_sequences(
    tiny: Callable[..., Path], model: str, fact: str
) -> None:
    path = tiny(**FAMILY_MODELS[model])
    exact, rounded = long_logits(path)
    oracle = switched_off(Reference(path, np.float64), FACTS[model][fact])
    wrong = oracle.logits(prompt(n_vocab_of(oracle)))
    error = rms(wrong - exact)
    assert error > COUNTS * INDEPENDENT * rms(rounded - exact)
    assert error > COUNTS * long_candle(path)


@pytest.mark.once
@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
@pytest.mark.parametrize(("model", "fact"), EARLY_FACTS)
def test_every_fact_counts(tiny: Callable[..., Path], model: str, fact: str, quant: str) -> None:
    path = tiny(quant=quant, **FAMILY_MODELS[model])
    wrong = switched_off(RoundedReference(path, np.float64), FACTS[model][fact])
    error = most_rows_error(rounded_oracle(path), wrong.logits)
    assert error > COUNTS * MOST_ROWS_ERROR


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_engine_agrees_with_the_oracle(
    tiny: Callable[..., Path], threads: int, name: str, quant: str
) -> None:
    path = tiny(quant=quant, **VARIANTS[name])
    check(path, Model(path, threads=threads))


@pytest.mark.parametrize("name", MIXED)
def test_the_engine_agrees_with_the_oracle_on_mixed_types(
    tiny: Callable[..., Path], threads: int, name: str
) -> None:
    path = tiny(**MIXED[name])
    check(path, Model(path, threads=threads))


@pytest.mark.once
@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("family", MAIN)
def test_every_kernel_set_agrees_with_the_oracle(
    tiny: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    family: str,
    kernels: str,
    quant: str,
) -> None:
    path = tiny(quant=quant, **FAMILY_MODELS[family])
    monkeypatch.setenv("SPECRS_KERNELS", kernels)
    try:
        model = Model(path, threads=threads)
    except ValueError as error:
        if "not available on this CPU" not in str(error):
            raise
        pytest.skip(str(error))
    assert model.kernels.startswith(kernels)
    check(path, model)


@pytest.mark.parametrize("n_ctx", [64, 65, 256])
def test_the_length_of_a_session_chooses_the_rotation(
    tiny: Callable[..., Path], threads: int, n_ctx: int
) -> None:
    """The short divisors up to the original context of 64, the long ones beyond."""
    path = tiny(**FAMILY_MODELS["phi3"])
    model = Model(path, n_ctx=n_ctx, threads=threads)
    tokens = prompt(model.n_vocab, min(n_ctx, 250))
    exact = Reference(path, np.float64, n_ctx).logits(tokens)
    rounded = RoundedReference(path, np.float64, n_ctx).logits(tokens)
    check_rows(forward(model)(tokens), exact, rounded, INDEPENDENT)
    other = Reference(path, np.float64, 65 if n_ctx == 64 else 64).logits(tokens)
    assert rms(other - exact) > COUNTS * INDEPENDENT * rms(rounded - exact)


@pytest.mark.parametrize("name", ["gemma2", "phi3", "olmo2 with windows"])
def test_a_window_beyond_the_prompt_is_none(
    tiny: Callable[..., Path], threads: int, name: str
) -> None:
    keys = {"rope__scaling__factor": 1.0} if name.startswith("olmo2") else {}
    wide, none = (
        Model(tiny(**with_window(name, window, **keys)), threads=threads) for window in (300, 0)
    )
    tokens = prompt(wide.n_vocab)
    assert_same_bits(cold(wide, tokens), cold(none, tokens))


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "phi3", "olmo2 with windows"])
def test_a_window_has_as_many_positions_as_it_says(
    tiny: Callable[..., Path], threads: int, name: str
) -> None:
    """The position before the window is neither seen nor does its token matter."""
    options = with_window(name, 5) | {"n_layer": 1}
    model = Model(tiny(**options), threads=threads)
    tokens = prompt(model.n_vocab, 80)
    wanted = model.session().forward(tokens)
    for distance, seen in ((1, True), (4, True), (5, False), (70, False)):
        changed = list(tokens)
        changed[-1 - distance] = (changed[-1 - distance] + 1) % model.n_vocab
        same = np.array_equal(model.session().forward(changed), wanted)
        assert same != seen, distance


@pytest.mark.once
@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", [name for name in FAMILY_MODELS if name not in MIXTURES])
def test_candle_agrees_with_the_oracle(tiny: Callable[..., Path], name: str, quant: str) -> None:
    path = tiny(quant=quant, **FAMILY_MODELS[name])
    check_candle(path, prompt(n_vocab_of(Reference(path))))


@pytest.mark.parametrize("name", MIXTURES)
def test_candle_refuses_experts(tiny: Callable[..., Path], name: str) -> None:
    with pytest.raises(GgufError, match=r'does not run mixtures of experts; use device="cpu"'):
        Model(tiny(**FAMILY_MODELS[name]), device="candle-cpu")


@pytest.mark.parametrize("name", MIXTURES)
def test_the_oracle_is_sure_of_the_experts(tiny: Callable[..., Path], name: str) -> None:
    """No choice hangs on an error of float32, so that the comparison is one of numbers."""
    path = tiny(**FAMILY_MODELS[name])
    gaps = []
    for oracle in (Reference, RoundedReference):
        rounded = oracle(path, np.float64)
        rounded.logits(prompt(n_vocab_of(rounded)))
        gaps.append(rounded.smallest_gap)
    assert min(gaps) > 20 * ROUTER_ERROR, gaps


@pytest.mark.parametrize("family", MAIN)
def test_tensors_of_other_decoders_are_refused(tiny: Callable[..., Path], family: str) -> None:
    name = "blk.0.attn_sinks.weight"
    path = tiny(**FAMILY_MODELS[family], extra_tensors=(name,))
    with pytest.raises(GgufError, match=f'{name}.*"{family}"'):
        Model(path)
