"""Families of models beside Llama: each fact of one counts, and both engines have it right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from reference import Reference
from specrs._specrs import GgufError, Model
from test_logits import RMS_SLACK, SUMMATION_ERROR, TOKENS, check

KERNELS = ["scalar", "avx2", "avxvnni", "avx512", "amx"]
FAMILIES: dict[str, dict[str, Any]] = {
    "smollm3": {"architecture": "smollm3", "n_layer": 9, "tied": True, "rope_base": 5e6},
}
# What a fact must change when it is switched off, in errors that the engine may make.
COUNTS = 10


def rms(values: npt.NDArray[np.float32]) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


@pytest.mark.parametrize(("family", "fact"), [("smollm3", "no_rope_period")])
def test_every_fact_counts(tiny: Callable[..., Path], family: str, fact: str) -> None:
    path = tiny(**FAMILIES[family])
    oracle = Reference(path)
    exact = oracle.logits(TOKENS)
    rounding = Reference(path, rounded=True).logits(TOKENS) - exact
    oracle.family = replace(oracle.family, **{fact: None})
    allowed = RMS_SLACK * rms(rounding) + SUMMATION_ERROR
    assert rms(oracle.logits(TOKENS) - exact) > COUNTS * allowed


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
@pytest.mark.parametrize("kernels", KERNELS)
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
    check(path, model.session().forward_all_positions(TOKENS), TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
def test_candle_agrees_with_the_oracle(tiny: Callable[..., Path], family: str) -> None:
    path = tiny(**FAMILIES[family])
    session = Model(path, device="candle-cpu").session()
    pieces = [session.forward_all_positions(part) for part in (TOKENS[:20], TOKENS[20:])]
    check(path, np.concatenate(pieces), TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_of_other_decoders_are_refused(tiny: Callable[..., Path], family: str) -> None:
    name = "blk.0.attn_q.bias"
    path = tiny(extra_tensors=(name,), **FAMILIES[family])
    with pytest.raises(GgufError, match=f'{name}.*"{family}"'):
        Model(path)
