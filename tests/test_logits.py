"""Logits against the numpy oracle: every tensor type and every variant of the architecture.

The error allowed is derived, not tried out. By design the engine rounds in two places: the inputs
of quantised matrices to int8 per 32 columns, and cached keys and values to float16. The oracle
rounds there too when asked; how far that moves its own logits is how far the engine may be from the
exact ones, times a slack for the luck of the rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blocks import QUANT_TYPES
from reference import Reference
from specrs._specrs import Model

# The root mean square of thousands of independent errors is known to a few per cent; the largest of
# them is not.
RMS_SLACK = 1.5
MAX_SLACK = 2.5
# A float32 sum of up to 256 products in another order than numpy's, through 9 matrices, relative to
# logits of about 3: sqrt(256) x 2^-24 x 9 x 3 = 2.6e-5.
SUMMATION_ERROR = 3e-5

Load = Callable[..., tuple[Path, Model]]


@pytest.fixture(scope="session")
def load(tiny: Callable[..., Path], threads: int) -> Load:
    def load_model(**options: Any) -> tuple[Path, Model]:
        path = tiny(**options)
        return path, Model(path, threads=threads)

    return load_model


def check(path: Path, logits: npt.NDArray[np.float32], tokens: list[int]) -> None:
    exact = Reference(path).logits(tokens)
    allowed = np.abs(Reference(path, rounded=True).logits(tokens) - exact)
    error = np.abs(logits - exact)
    assert logits.shape == exact.shape
    assert logits.std() > 1, "the test model says nothing"

    def rms(values: npt.NDArray[np.float32]) -> float:
        return float(np.sqrt(np.square(values, dtype=np.float64).mean()))

    assert rms(error) <= RMS_SLACK * rms(allowed) + SUMMATION_ERROR
    assert error.max() <= MAX_SLACK * allowed.max() + 10 * SUMMATION_ERROR


TOKENS = list(range(4, 250, 4))


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_every_type(load: Load, quant: str) -> None:
    path, model = load(quant=quant)
    check(path, model.session().forward_all_positions(TOKENS), TOKENS)


def test_the_bound_sees_a_wrong_block(load: Load) -> None:
    """One matrix quantised another way is outside what rounding allows: `check` can fail."""
    path, _ = load(quant="Q4_0")
    _, other = load(quant="Q4_0", types={"blk.1.ffn_down.weight": "Q4_1"})
    with pytest.raises(AssertionError):
        check(path, other.session().forward_all_positions(TOKENS), TOKENS)


VARIANTS: dict[str, dict[str, Any]] = {
    "one key/value head": {"n_head_kv": 1},
    "as many key/value heads as heads": {"n_head_kv": 4},
    "three heads per key/value head": {"n_head": 6, "n_head_kv": 2, "n_embd": 96},
    "attention.key_length": {"head_dim": 32},
    "attention.key_length, quantised": {"head_dim": 32, "quant": "Q8_0"},
    "odd number of blocks": {"n_embd": 96, "n_head": 3, "n_head_kv": 1, "quant": "Q4_0"},
    "odd number of tiles": {"n_ff": 80},
    "incomplete tile": {"n_ff": 72},
    "rope.freq_base": {"rope_base": 500000.0},
    "linear scaling": {"rope_linear": 4.0},
    "rope_freqs": {"rope_freqs": (1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0)},
    "tied": {"tied": True},
    "tied, quantised": {"tied": True, "quant": "Q8_0"},
    "mixed types": {
        "quant": "Q4_0",
        "types": {"token_embd.weight": "Q8_0", "output.weight": "F16"},
    },
    "mixed K-quants": {
        "quant": "Q4_K",
        "types": {"blk.0.attn_v.weight": "Q6_K", "output.weight": "Q6_K"},
    },
    "vocabulary with padding rows": {"n_vocab": 320, "quant": "Q5_1"},
    "vocabulary that ends inside a tile": {"n_vocab": 317, "quant": "Q8_0"},
    "one layer": {"n_layer": 1},
    "SPM": {"tokenizer": "spm", "quant": "Q4_1"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant(load: Load, name: str) -> None:
    path, model = load(**VARIANTS[name])
    check(path, model.session().forward_all_positions(TOKENS), TOKENS)


def test_positions_of_the_rotation(load: Load) -> None:
    """The pairing of the rotary embedding shows at positions 0, 1, 17 and 63, each alone."""
    path, model = load(seed=3)
    tokens = list(range(64, 128))
    logits = model.session().forward_all_positions(tokens)
    for position in (0, 1, 17, 63):
        check(path, logits[: position + 1], tokens[: position + 1])


def test_scaled_rotation_far_out(load: Load) -> None:
    options = {"rope_freqs": (1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0), "n_ctx": 2048}
    path, model = load(**options)
    tokens = np.random.default_rng(1).integers(0, model.n_vocab, 1010).tolist()
    check(path, model.session().forward_all_positions(tokens), tokens)


def test_context_beyond_4096(load: Load) -> None:
    path, model = load(n_ctx=8192, n_layer=1, n_head=2, n_head_kv=1, n_embd=32)
    tokens = np.random.default_rng(2).integers(0, model.n_vocab, 4200).tolist()
    check(path, model.session().forward_all_positions(tokens), tokens)


def test_the_three_forwards_agree(load: Load) -> None:
    _, model = load(quant="Q4_0")
    every = model.session().forward_all_positions(TOKENS)
    last = model.session().forward(TOKENS)
    assert every.shape == (len(TOKENS), model.n_vocab)
    assert last.shape == (model.n_vocab,)
    assert np.array_equal(last, every[-1])
    for positions in (1, 2, len(TOKENS)):
        some = model.session().forward_last(TOKENS, positions)
        assert np.array_equal(some, every[-positions:])


@pytest.mark.parametrize("quant", ["Q4_1", "Q6_K", "F16"])
def test_chosen_tokens_are_those_with_the_highest_logits(load: Load, quant: str) -> None:
    _, model = load(quant=quant, n_embd=256, n_ff=256)
    for start in range(20):
        tokens = [(token + start) % model.n_vocab for token in TOKENS]
        logits = model.session().forward_all_positions(tokens)
        session = model.session()
        assert session.choose_last(tokens, len(tokens)) == logits.argmax(axis=1).tolist()
        assert session.tokens == tokens


@pytest.mark.parametrize("positions", [0, -1, len(TOKENS) + 1])
def test_forward_last_refuses_rows_it_has_not(load: Load, positions: int) -> None:
    session = load(quant="Q4_0")[1].session()
    with pytest.raises(ValueError, match=str(abs(positions))):
        session.forward_last(TOKENS, positions)
    assert len(session) == 0


def test_ids_come_as_any_integer_sequence(load: Load) -> None:
    _, model = load(quant="Q4_0")
    wanted = model.session().forward(TOKENS)
    forms: list[Any] = [tuple(TOKENS), range(4, 250, 4)]
    forms += [
        np.array(TOKENS, kind) for kind in (np.uint16, np.int32, np.uint32, np.int64, np.uint64)
    ]
    forms.append(np.array([TOKENS, TOKENS]).T[:, 0])  # with strides
    for tokens in forms:
        assert np.array_equal(model.session().forward(tokens), wanted)


def test_candle_engine_agrees_with_the_oracle(tiny: Callable[..., Path]) -> None:
    for options in ({"quant": "F32"}, {"quant": "Q8_0", "rope_linear": 2.0}, {"quant": "Q4_K"}):
        path = tiny(**options)
        model = Model(path, device="candle-cpu")
        assert model.device == "candle-cpu"
        assert model.kernels == "candle"
        session = model.session()
        first = session.forward_all_positions(TOKENS[:20])
        rest = session.forward_all_positions(TOKENS[20:])
        check(path, np.concatenate([first, rest]), TOKENS)
