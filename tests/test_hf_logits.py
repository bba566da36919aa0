"""The oracle against Hugging Face's transformers, which define these models: `hf_logits.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import hf_logits
from models import model_hash
from reference import Reference

# transformers compute in float32. A sum of up to 512 products is off by sqrt(512) x 2^-24 of their
# size, and through 60 matrices that add up independently by 1e-5. Relative to the deviation of
# logits:
ALLOWED = 1e-5

pytestmark = pytest.mark.once

STORED: dict[str, npt.NDArray[Any]] = dict(np.load(hf_logits.FILE))


def test_every_entry_is_stored() -> None:
    names = [name for name in STORED if not name.endswith(": model")]
    assert names == list(hf_logits.ENTRIES)


@pytest.mark.parametrize("name", hf_logits.ENTRIES)
def test_the_oracle_agrees_with_transformers(tiny: Callable[..., Path], name: str) -> None:
    entry = hf_logits.ENTRIES[name]
    path = tiny(**entry.options)
    assert model_hash(path) == str(STORED[f"{name}: model"]), "it is the test's model that changed"
    oracle = Reference(path, np.float64, entry.n_ctx)
    tokens = hf_logits.prompt(len(STORED[name][0]), entry.length)
    logits, wanted = hf_logits.kept(oracle.logits(tokens)), STORED[name]
    assert logits.shape == wanted.shape
    assert np.sqrt(np.square(logits - wanted).mean()) <= ALLOWED * wanted.std()
