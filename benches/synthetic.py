"""Writes models of TinyLlama's shape with random weights: `python benches/synthetic.py [FOLDER]`.

1.1 billion weights in Q4_0, Q4_K_M and Q8_0, as large and as fast as the real ones. Matrices of one
shape share their weights, which no engine can make use of, so that a file is written in seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

N_LAYER = 22
SHAPE = {
    "n_layer": N_LAYER,
    "n_embd": 2048,
    "n_head": 32,
    "n_head_kv": 4,
    "n_ff": 5632,
    "n_vocab": 32000,
    "n_ctx": 40960,
    "tokenizer": "spm",
    "shared": True,
}


def q4_k_m() -> dict[str, str]:
    """Name the tensors to which llama.cpp's mix Q4_K_M gives six bits, with their type."""
    from tensors import OUTPUT, Block

    eighth = N_LAYER // 8
    layers = [
        layer
        for layer in range(N_LAYER)
        if layer < eighth or layer >= 7 * N_LAYER // 8 or (layer - eighth) % 3 == 2
    ]
    names = [name for block in map(Block, layers) for name in (block.attn_v, block.ffn_down)]
    return dict.fromkeys([*names, OUTPUT], "Q6_K")


QUANTS: dict[str, tuple[str, dict[str, str]]] = {
    "Q4_0": ("Q4_0", {}),
    "Q4_K_M": ("Q4_K", q4_k_m()),
    "Q8_0": ("Q8_0", {}),
}


def cache_folder() -> Path:
    """Return the folder of the files: SPECRS_CACHE, or the results of the benches."""
    chosen = os.environ.get("SPECRS_CACHE")
    return Path(chosen) if chosen else Path(__file__).parent / "results"


def synthetic_models(folder: Path | None = None) -> list[Path]:
    """Return the files, smallest first; those that are not in `folder` yet are written."""
    from models import write_model

    folder = folder or cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (quant, types) in QUANTS.items():
        path = folder / f"synthetic-1.1b-{name.lower()}.gguf"
        if not path.exists():
            partial = write_model(path.with_suffix(".partial"), quant=quant, types=types, **SHAPE)
            partial.rename(path)
        paths.append(path)
    return paths


def main() -> None:
    """Write the files and name them."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="default: SPECRS_CACHE or results")
    for path in synthetic_models(parser.parse_args().folder):
        print(f"{path}  {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
