"""Logits have the committed bits, on the kernel set in use; `vectors.py` writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vectors
from bits import in_pieces
from models import model_hash
from specrs._specrs import Model

COMMITTED: dict[str, dict[str, Any]] = json.loads(vectors.FILE.read_text())


def test_every_model_has_a_vector() -> None:
    assert list(COMMITTED) == list(vectors.MODELS)


@pytest.mark.parametrize("name", COMMITTED)
def test_logits_have_the_committed_bits(tiny: Callable[..., Path], threads: int, name: str) -> None:
    committed = COMMITTED[name]
    path = tiny(**vectors.options(name))
    assert model_hash(path) == committed["model"], "it is the test's model that changed"
    model = Model(path, threads=threads)
    tokens = vectors.prompt(model.n_vocab)
    wanted = {key: committed[key] for key in ("logits", "first", "last")}
    # All at once, one by one, and in calls of other lengths: the same bits.
    for lengths in ([len(tokens)], [1], [vectors.SHORT, 1, 16, 64]):
        logits = in_pieces(model.session(), tokens, lengths)
        assert vectors.vector(logits) == wanted, f"{model.kernels}, calls of {lengths} tokens"
    short = model.session().forward_all_positions(tokens[: vectors.SHORT])
    assert vectors.hash_of_bits(short) == committed["logits"][0]
    assert model.session().choose_last(tokens, vectors.CHOICES) == committed["choices"]


def test_one_bit_makes_another_vector() -> None:
    logits = np.ones((vectors.ROWS, 8), np.float32)
    before = vectors.vector(logits)
    logits[130, 5] = np.nextafter(np.float32(1), np.float32(2))
    after = vectors.vector(logits)
    differ = [a != b for a, b in zip(after["logits"], before["logits"], strict=True)]
    assert differ == [False, False, False, True, False, False]


def test_the_hash_of_a_model_sees_weights_and_architecture(tiny: Callable[..., Path]) -> None:
    options = vectors.options("Q4_0")
    others: list[dict[str, Any]] = [{"seed": 1}, {"rms_eps": 0.02}, {"tied": True}]
    paths = [tiny(**options), *(tiny(**options, **other) for other in others)]
    assert len({model_hash(path) for path in paths}) == 4
    # Not what the tokenizer says, nor the order of the file.
    assert model_hash(tiny(**options, chat_template=None)) == model_hash(paths[0])
