"""Compares the oracle with llama.cpp: `python tests/llama_cpp_logits.py`, by hand.

Needs an environment with `llama-cpp-python` (0.3.36), `gguf` and `numpy`. Every model of
`family_models.py` is written in F32 and run with a cache of F32; the table has the root mean square
of what is between the two, relative to the deviation of the logits, and the status is 1 if any
exceeds what is allowed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blocks import Random
from family_models import FAMILY_MODELS, with_window
from models import write_model
from reference import Reference
from tensors import EMBEDDING

N_CTX = 512
LENGTH = 250
# Sums in float32, of other orders.
ALLOWED = 1e-5
# llama.cpp takes GELU from a table of half-precision numbers, whose steps are 2^-11 of a value.
ALLOWED_GELU = 1e-3
#: llama.cpp ignores the window of phi3, which transformers apply, and refuses a Llama whose heads
#: turn in part.
MODELS = FAMILY_MODELS | {
    "phi3": with_window("phi3", 0),
    "llama with biases": FAMILY_MODELS["llama with biases"] | {"rope_dims": None},
}


def main() -> None:
    """Print the table."""
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, options in MODELS.items():
            path = write_model(Path(folder) / "model.gguf", **options)
            oracle = Reference(path, np.float64, N_CTX)
            ids = prompt(len(oracle.weights[EMBEDDING]))
            exact = oracle.logits(ids)
            error = np.sqrt(np.square(llama_cpp_logits(path, ids) - exact).mean()) / exact.std()
            allowed = ALLOWED_GELU if oracle.family.gelu else ALLOWED
            failed |= bool(not error <= allowed)
            print(f"{name:26} {error:.1e} {'' if error <= allowed else 'TOO LARGE'}", flush=True)
    sys.exit(failed)


def prompt(n_vocab: int) -> list[int]:
    """Give the ids of which logits are compared."""
    ids: list[int] = (Random(0, "llama.cpp").bytes(2 * LENGTH).view("<u2") % n_vocab).tolist()
    return ids


def llama_cpp_logits(path: Path, ids: list[int]) -> npt.NDArray[np.float32]:
    """Compute the logits after each of `ids`: [len(ids), n_vocab]."""
    from llama_cpp import Llama

    model = Llama(
        str(path),
        n_ctx=N_CTX,
        n_batch=N_CTX,
        n_ubatch=N_CTX,
        n_gpu_layers=0,
        n_threads=1,
        logits_all=True,
        flash_attn=False,
        type_k=0,
        type_v=0,
        swa_full=True,
        yarn_beta_fast=-1.0,  # as the file says; the defaults of the binding are numbers
        yarn_beta_slow=-1.0,
        verbose=False,
    )
    model.reset()
    model.eval(ids)
    return np.array(model.scores[: len(ids)])


if __name__ == "__main__":
    main()
