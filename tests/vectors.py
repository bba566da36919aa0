"""Logits whose bits are committed: `python tests/vectors.py` writes `data/logits.json` anew.

Every kernel set must give these bits, so there is one vector for all of them. It is computed with
each set that this CPU has, and written only if they agree.

Commit a new vector when bits change on purpose, with the reason. A change of the engine leaves
every `model` as it was; where one differs, the test's model is another one and its logits say
nothing about the engine.

Rust takes `cos`, `sin` and `powf` of float64 and `log2` of float32 from the system's C library. On
x86-64 Linux they agree; where they do not, neither will the bits.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blocks import QUANT_TYPES, Random
from family_models import FAMILY_MODELS, MAIN, QUANTS
from models import model_hash, write_model
from specrs._specrs import Model
from tensors import EMBEDDING, OUTPUT, Block

FILE = Path(__file__).parent / "data" / "logits.json"
KERNEL_SETS = ("scalar", "avx2", "avxvnni", "avx512", "amx")

#: Rows of the short prompt, and where the long one, of all rows, is cut: after each page of 64.
SHORT = 5
CUTS = (0, SHORT, 64, 128, 192, 256, 300)
ROWS = CUTS[-1]
#: Rows whose likeliest tokens are kept.
CHOICES = 8

#: What each model is, as options of `write_model`.
MODELS: dict[str, dict[str, Any]] = {
    **{quant: {"quant": quant} for quant in QUANT_TYPES},
    "mixed like Q4_K_M": {
        "quant": "Q4_K",
        "types": {
            Block(0).attn_v: "Q6_K",
            Block(1).ffn_down: "Q6_K",
            OUTPUT: "Q6_K",
        },
    },
    "three heads on one": {
        "quant": "Q4_0",
        "types": {EMBEDDING: "Q8_0"},
        "tied": True,
        "n_embd": 96,
        "n_head": 3,
        "n_head_kv": 1,
        "rope_divisors": tuple(1 + pair / 4 for pair in range(16)),
    },
    "incomplete tiles": {
        "quant": "F16",
        "n_vocab": 329,
        "n_ff": 72,
        "head_dim": 24,
        "rope_linear": 4.0,
    },
    **{f"family {name}": FAMILY_MODELS[name] | {"quant": QUANTS[name]} for name in MAIN},
}


def options(name: str) -> dict[str, Any]:
    """Complete the options of a model: the size of its vocabulary is its own."""
    return {"n_vocab": 320, **MODELS[name]}


def prompt(n_vocab: int) -> list[int]:
    """Give the ids of the long prompt, which begins with the short one."""
    ids: list[int] = (Random(0, "prompt").bytes(2 * ROWS).view("<u2") % n_vocab).tolist()
    return ids


def vector(logits: npt.NDArray[np.float32]) -> dict[str, Any]:
    """Describe the logits of the long prompt: a hash of the bits between two cuts, some values."""
    parts = [logits[start:end] for start, end in itertools.pairwise(CUTS)]
    return {
        "logits": [hash_of_bits(part) for part in parts],
        "first": [float(str(logit)) for logit in logits[0, :4]],  # the shortest that rounds to it
        "last": [float(str(logit)) for logit in logits[-1, :4]],
    }


def hash_of_bits(logits: npt.NDArray[np.float32]) -> str:
    """Hash the bits of some logits."""
    assert logits.dtype == np.float32
    return hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()[:16]


def entry(path: Path) -> dict[str, Any]:
    """Compute all that is committed about the model at `path`."""
    model = Model(path, threads=1)
    tokens = prompt(model.n_vocab)
    return {
        "model": model_hash(path),
        **vector(model.session().forward_all_positions(tokens)),
        "choices": model.session().choose_last(tokens, CHOICES),
    }


def with_each_kernel_set(path: Path) -> dict[str, Any]:
    """Compute the entry with every kernel set this CPU has; they must agree."""
    found: dict[str, Any] = {}
    for kernels in KERNEL_SETS:
        os.environ["SPECRS_KERNELS"] = kernels
        try:
            found[kernels] = entry(path)
        except ValueError as error:
            if "not available on this CPU" not in str(error):
                raise
            print(f"  without {kernels}, which this CPU has not")
    first, *others = found.items()
    for kernels, other in others:
        if other != first[1]:
            raise SystemExit(f"{kernels} differs from {first[0]}:\n{other}\n{first[1]}")
    return dict(first[1])


def main() -> None:
    """Write the file."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            print(name)
            path = write_model(Path(folder) / "model.gguf", **options(name))
            lines.append(f"{json.dumps(name)}: {json.dumps(with_each_kernel_set(path))}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    main()
