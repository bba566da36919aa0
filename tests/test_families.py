"""Families of models beside Llama: each fact of one counts, and both engines have it right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference import Reference
from rounded import RoundedReference
from specrs._specrs import GgufError, Model
from test_logits import (
    NOT_SHARED,
    TOKENS,
    candle_allowed,
    check,
    check_candle,
    most_rows_error,
    rms,
)
from vectors import KERNEL_SETS

FAMILIES: dict[str, dict[str, Any]] = {
    "smollm3": {"architecture": "smollm3", "n_layer": 9, "tied": True, "rope_base": 5e6},
}
# Through 9 layers noise tips a few weights of attention in most rows. Such a weight is off by
# 1 / 4096: times 16 values of 1, and through weights of 2 / sqrt(64), it moves a residual stream of
# 3 by 2.4e-4 and logits of 3 by as much, or less in later layers. Four of them:
MOST_ROWS_ERROR = 5e-4
FACTS = [("smollm3", "no_rope_period")]
# What a fact must change when it is switched off, in errors that an engine may make.
COUNTS = 10


def without(oracle: Reference, fact: str) -> Reference:
    oracle.family = replace(oracle.family, **{fact: None})
    return oracle


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
@pytest.mark.parametrize(("family", "fact"), FACTS)
def test_every_fact_counts(tiny: Callable[..., Path], family: str, fact: str, quant: str) -> None:
    path = tiny(quant=quant, **FAMILIES[family])
    wrong = without(RoundedReference(path, np.float64), fact)
    error = most_rows_error(RoundedReference(path, np.float64), wrong.logits)
    assert error > COUNTS * MOST_ROWS_ERROR


@pytest.mark.parametrize(("family", "fact"), FACTS)
def test_every_fact_counts_in_long_sequences(
    tiny: Callable[..., Path], family: str, fact: str
) -> None:
    path = tiny(**FAMILIES[family])
    exact, rounded = (
        oracle(path, np.float64).logits(TOKENS) for oracle in (Reference, RoundedReference)
    )
    wrong = without(Reference(path, np.float64), fact).logits(TOKENS)
    assert rms(wrong - exact) > COUNTS * NOT_SHARED * rms(rounded - exact)
    assert rms(wrong - exact) > COUNTS * candle_allowed(path, exact)


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
@pytest.mark.parametrize("kernels", KERNEL_SETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_kernel_set_agrees_with_the_oracle(
    tiny: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    family: str,
    kernels: str,
    quant: str,
) -> None:
    path = tiny(quant=quant, **FAMILIES[family])
    monkeypatch.setenv("SPECRS_KERNELS", kernels)
    try:
        model = Model(path, threads=threads)
    except ValueError as error:
        if "not available on this CPU" not in str(error):
            raise
        pytest.skip(str(error))
    assert model.kernels.startswith(kernels)
    check(path, model, MOST_ROWS_ERROR)


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_candle_agrees_with_the_oracle(tiny: Callable[..., Path], family: str, quant: str) -> None:
    check_candle(tiny(quant=quant, **FAMILIES[family]))


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_of_other_decoders_are_refused(tiny: Callable[..., Path], family: str) -> None:
    name = "blk.0.attn_q.bias"
    path = tiny(extra_tensors=(name,), **FAMILIES[family])
    with pytest.raises(GgufError, match=f'{name}.*"{family}"'):
        Model(path)
