"""Logits against the numpy oracle: every tensor type and every variant of the architecture.

The engine is compared with an oracle that rounds where the engine rounds by design (`rounded.py`).
They agree but for the noise of float32, until it tips a number over the boundary between two steps:
then a step is between them, and it tips more in the layers and positions that follow. So two things
are checked:

- Short sequences: most rows are over before anything of weight was tipped. Their error is noise,
  which any wrong fact exceeds by far.
- Long ones: all rows together are closer to the oracle than rounding anew would leave them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blocks import FLOAT_TYPES, QUANT_TYPES
from reference import Array, Reference
from rounded import CandleReference, RoundedReference
from specrs._specrs import Model
from tensors import EMBEDDING, OUTPUT, Block

# A float32 sum of up to 256 products in another order than numpy's, through 9 matrices, relative to
# logits of about 3: sqrt(256) x 2^-24 x 9 x 3 = 2.6e-5. Where errors are independent, through 81.
SUMMATION_ERROR = 3e-5
# The rounding tipped most often is that of the output's second part, whose steps are finest: of
# inputs up to 3, 3 / 254 are left and rounded to steps of a 127th of that; weights of 3 / sqrt(64)
# make 3.5e-5 of one. Noise and two of them:
MOST_ROWS_ERROR = 1e-4
# Two evaluations that round independently are sqrt(2) of their rounding error apart. Those that
# round in the same places share most of it: half of it is allowed between them.
NOT_SHARED = 0.5
# The root mean square of thousands of independent errors is known to a few per cent.
RMS_SLACK = 1.15

Load = Callable[..., tuple[Path, Model]]
Forward = Callable[[list[int]], Array]

TOKENS = list(range(4, 250, 4))
SHORT = [[37 * i + 31 * j * j + 5 * j + 4 for j in range(4)] for i in range(16)]


@pytest.fixture(scope="session")
def load(tiny: Callable[..., Path], threads: int) -> Load:
    def load_model(**options: Any) -> tuple[Path, Model]:
        path = tiny(**options)
        return path, Model(path, threads=threads)

    return load_model


def forward(model: Model) -> Forward:
    """Give the function that computes the logits of a new sequence."""
    return lambda tokens: model.session().forward_all_positions(tokens)


def rms(errors: Array, axis: int | None = None) -> npt.NDArray[np.float64]:
    return np.asarray(np.sqrt(np.square(errors, dtype=np.float64).mean(axis)))


def most_rows_error(oracle: Reference, logits: Forward) -> float:
    """Measure the error that half of all rows of short sequences keep within."""
    n_vocab = len(oracle.weights[EMBEDDING])
    texts = [[token % n_vocab for token in text] for text in SHORT]
    rows = [rms(logits(text) - oracle.logits(text), axis=-1) for text in texts]
    return float(np.median(np.concatenate(rows)))


def check_long(path: Path, logits: npt.NDArray[np.float32], tokens: list[int]) -> None:
    exact = Reference(path, np.float64).logits(tokens)
    check_rows(logits, exact, RoundedReference(path, np.float64).logits(tokens), NOT_SHARED)


def check_rows(logits: Array, exact: Array, rounded: Array, allowed: float) -> None:
    """Fail if all rows together differ from `rounded` by more than `allowed` of its own error."""
    assert logits.shape == exact.shape
    assert logits.std() > 1, "the test model says nothing"
    assert rms(logits - rounded) <= allowed * rms(rounded - exact)


def check(path: Path, model: Model, most_rows: float = MOST_ROWS_ERROR) -> None:
    logits = forward(model)
    assert most_rows_error(RoundedReference(path, np.float64), logits) <= most_rows
    check_long(path, logits(TOKENS), TOKENS)


def candle_allowed(path: Path, exact: Array, tokens: list[int]) -> float:
    """Tell how far candle may be from `exact`: it rounds less, so nothing is said of where."""
    rounding = CandleReference(path, np.float64).logits(tokens) - exact
    return float(RMS_SLACK * rms(rounding) + SUMMATION_ERROR)


def check_candle(path: Path, tokens: list[int] = TOKENS) -> None:
    """It keeps its cache in float32, and rounds nothing where weights are floats."""
    model = Model(path, device="candle-cpu")
    assert model.device == "candle-cpu"
    assert model.kernels == "candle"
    session = model.session()
    logits = [session.forward_all_positions(part) for part in (tokens[:20], tokens[20:])]
    exact = Reference(path, np.float64).logits(tokens)
    assert rms(np.concatenate(logits) - exact) <= candle_allowed(path, exact, tokens)


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_every_type(load: Load, quant: str) -> None:
    check(*load(quant=quant))


class WithoutRotation(RoundedReference):
    def _rotate(self, heads: Array, layer: int) -> Array:
        return heads


class ScoresOnePerCentOff(RoundedReference):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.score_scale *= 1.01


class UsualEpsilon(RoundedReference):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rms_eps = 1e-5


class OtherKeyValueHead(RoundedReference):
    def _kv_head(self, head: int) -> int:
        return head % self.n_head_kv


class TwoHeadsSwapped(RoundedReference):
    def _matmul(self, x: Array, name: str) -> Array:
        product = super()._matmul(x, name)
        if name in [Block(layer).attn_q for layer in range(self.n_layer)]:
            first, second, *others = np.split(product, self.n_head, axis=-1)
            product = np.concatenate([second, first, *others], axis=-1)
        return product


class CacheOfEightBits(RoundedReference):
    largest_key = largest_value = 127


class CoarseWeights(RoundedReference):
    largest_weight = 512


class OutputInOnePart(RoundedReference):
    def _output(self, x: Array, name: str) -> Array:
        return self._matmul(x, name)


WRONG = [
    WithoutRotation,
    ScoresOnePerCentOff,
    UsualEpsilon,
    OtherKeyValueHead,
    TwoHeadsSwapped,
    CacheOfEightBits,
    CoarseWeights,
]
WRONG_BY_TYPE = [
    *((wrong, quant) for wrong in WRONG for quant in QUANT_TYPES),
    *((OutputInOnePart, quant) for quant in QUANT_TYPES if quant not in FLOAT_TYPES),
]


@pytest.mark.parametrize(("wrong", "quant"), WRONG_BY_TYPE)
def test_a_wrong_fact_is_far_outside(
    tiny: Callable[..., Path], quant: str, wrong: type[RoundedReference]
) -> None:
    path = tiny(quant=quant)
    error = most_rows_error(RoundedReference(path, np.float64), wrong(path, np.float64).logits)
    assert error > 20 * MOST_ROWS_ERROR


def test_a_wrong_block_is_far_outside(load: Load) -> None:
    """One matrix quantised another way."""
    path, _ = load(quant="Q4_0")
    _, other = load(quant="Q4_0", types={Block(1).ffn_down: "Q4_1"})
    oracle = RoundedReference(path, np.float64)
    assert most_rows_error(oracle, forward(other)) > 20 * MOST_ROWS_ERROR
    with pytest.raises(AssertionError):
        check_long(path, forward(other)(TOKENS), TOKENS)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_fact_shows_in_long_sequences(
    tiny: Callable[..., Path], wrong: type[RoundedReference]
) -> None:
    path = tiny(quant="F32")
    exact, rounded, other = (
        oracle(path, np.float64).logits(TOKENS) for oracle in (Reference, RoundedReference, wrong)
    )
    assert rms(other - rounded) > 5 * NOT_SHARED * rms(rounded - exact)


@pytest.mark.parametrize(
    ("quant", "expected"),
    [
        # Relative to what is rounded, steps of 1 / 127 of the largest of 32, which is 3 times the
        # root mean square (7 times, of what is gated), make an error of 3 / 127 / sqrt(12). It goes
        # into each of 4 products of 2 layers: sqrt(2 (3 x 3^2 + 7^2)) / 127 / sqrt(12).
        ("Q4_0", 0.028),
        ("Q8_0", 0.028),
        ("Q6_K", 0.028),
        # A weight is off by 1 / 4096 / sqrt(12) of the largest. With scores of deviation 2.2 the
        # squares of all sum up to little more than that of the largest, so 30 of them, the average,
        # make sqrt(30) times that; keys, queries and values add less than half of it. Two layers
        # make it sqrt(2) times.
        ("F32", 5.5e-4),
        ("F16", 5.5e-4),
    ],
)
def test_rounding_costs_what_its_steps_say(
    tiny: Callable[..., Path], quant: str, expected: float
) -> None:
    path = tiny(quant=quant)
    exact = Reference(path, np.float64).logits(TOKENS)
    error = rms(RoundedReference(path, np.float64).logits(TOKENS) - exact) / rms(exact)
    assert expected / 2 < error < expected * 2


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
    "rope divisors": {"rope_divisors": (1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0)},
    "tied": {"tied": True},
    "tied, quantised": {"tied": True, "quant": "Q8_0"},
    "mixed types": {
        "quant": "Q4_0",
        "types": {EMBEDDING: "Q8_0", OUTPUT: "F16"},
    },
    "mixed K-quants": {
        "quant": "Q4_K",
        "types": {Block(0).attn_v: "Q6_K", OUTPUT: "Q6_K"},
    },
    "vocabulary with padding rows": {"n_vocab": 320, "quant": "Q5_1"},
    "vocabulary that ends inside a tile": {"n_vocab": 317, "quant": "Q8_0"},
    "one layer": {"n_layer": 1},
    "SPM": {"tokenizer": "spm", "quant": "Q4_1"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant(load: Load, name: str) -> None:
    check(*load(**VARIANTS[name]))


def test_positions_of_the_rotation(load: Load) -> None:
    """The pairing of the rotary embedding shows at positions 0, 1, 17 and 63, each alone."""
    path, model = load(seed=3)
    tokens = list(range(64, 128))
    logits = model.session().forward_all_positions(tokens)
    exact = Reference(path, np.float64).logits(tokens)
    rounded = RoundedReference(path, np.float64).logits(tokens)
    for position in (0, 1, 17, 63):
        allowed = NOT_SHARED * rms(rounded[position] - exact[position])
        assert rms(logits[position] - rounded[position]) <= allowed


def test_scaled_rotation_far_out(load: Load) -> None:
    options = {"rope_divisors": (1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0), "n_ctx": 2048}
    path, model = load(**options)
    tokens = np.random.default_rng(1).integers(0, model.n_vocab, 1010).tolist()
    check_long(path, forward(model)(tokens), tokens)


def test_context_beyond_4096(load: Load) -> None:
    path, model = load(n_ctx=8192, n_layer=1, n_head=2, n_head_kv=1, n_embd=32)
    tokens = np.random.default_rng(2).integers(0, model.n_vocab, 4200).tolist()
    check_long(path, forward(model)(tokens), tokens)


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


@pytest.mark.parametrize(
    "options", [{"quant": "F32"}, {"quant": "Q8_0", "rope_linear": 2.0}, {"quant": "Q4_K"}], ids=str
)
def test_candle_engine_agrees_with_the_oracle(
    tiny: Callable[..., Path], options: dict[str, Any]
) -> None:
    check_candle(tiny(**options))
