"""Writes models with random weights: `python benches/synthetic.py [FOLDER] [--shape NAME ...]`.

By default TinyLlama's shape, 1.1 billion weights, in Q4_0, Q4_K_M and Q8_0, as large and as fast as
the real ones. Matrices of one shape share their weights, which no engine can make use of, so that a
file is written in seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

TINY_LLAMA = "1.1b"
SHAPES: dict[str, dict[str, Any]] = {
    TINY_LLAMA: {
        "n_layer": 22,
        "n_embd": 2048,
        "n_head": 32,
        "n_head_kv": 4,
        "n_ff": 5632,
        "n_vocab": 32000,
        "n_ctx": 40960,
    },
    "qwen3-0.6b": {
        "architecture": "qwen3",
        "n_layer": 28,
        "n_embd": 1024,
        "n_head": 16,
        "n_head_kv": 8,
        "head_dim": 128,
        "n_ff": 3072,
        "n_vocab": 151936,
        "n_ctx": 40960,
        "rope_base": 1e6,
        "tied": True,
    },
    # 6 of its 48 layers, and a vocabulary that does not hide them.
    "qwen3-30b-a3b-6-layers": {
        "architecture": "qwen3moe",
        "n_layer": 6,
        "n_embd": 2048,
        "n_head": 32,
        "n_head_kv": 4,
        "head_dim": 128,
        "n_ff": 6144,
        "experts": 128,
        "experts_used": 8,
        "expert_ff": 768,
        "n_vocab": 32000,
        "n_ctx": 40960,
        "rope_base": 1e6,
    },
    # 8 of its 32 layers.
    "phi-4-mini-8-layers": {
        "architecture": "phi3",
        "n_layer": 8,
        "n_embd": 3072,
        "n_head": 24,
        "n_head_kv": 8,
        "head_dim": 128,
        "rope_dims": 96,
        "n_ff": 8192,
        "n_vocab": 200064,
        "n_ctx": 4096,
        "tied": True,
    },
}
QUANTS = {"Q4_0": "Q4_0", "Q4_K_M": "Q4_K", "Q8_0": "Q8_0"}


def types(quant: str, shape: Mapping[str, Any]) -> dict[str, str]:
    """Name the tensors that have another type than most, as llama.cpp's mix Q4_K_M gives it."""
    from tensors import EMBEDDING, OUTPUT, Block

    if quant != "Q4_K_M":
        return {}
    count = shape["n_layer"]
    eighth = count // 8
    large = [
        layer
        for layer in range(count)
        if layer < eighth or layer >= 7 * count // 8 or (layer - eighth) % 3 == 2
    ]
    names = [
        name
        for block in map(Block, large)
        for name in (block.attn_v, block.ffn_down, block.experts.down)
    ]
    six_bits = dict.fromkeys([*names, EMBEDDING if shape.get("tied") else OUTPUT], "Q6_K")
    return six_bits | {Block(layer).attn_qkv: "Q5_K" for layer in range(count)}


def cache_folder() -> Path:
    """Return the folder of the files: SPECRS_CACHE, or the results of the benches."""
    chosen = os.environ.get("SPECRS_CACHE")
    return Path(chosen) if chosen else Path(__file__).parent / "results"


def synthetic_models(
    folder: Path | None = None, shape: str = TINY_LLAMA, quants: Iterable[str] = QUANTS
) -> list[Path]:
    """Return the files, smallest first; those that are not in `folder` yet are written."""
    from models import write_model
    from tensors import Stem

    folder = folder or cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in quants:
        path = folder / f"synthetic-{shape}-{name.lower()}.gguf"
        if not path.exists():
            options = SHAPES[shape] | {"tokenizer": "spm", "shared": True}
            if options.get("architecture") == "phi3":
                options["fused"] = (Stem.ATTN_QKV, Stem.FFN_UP)
            partial = path.with_suffix(".partial")
            write_model(partial, quant=QUANTS[name], types=types(name, options), **options)
            partial.rename(path)
        paths.append(path)
    return paths


def main() -> None:
    """Write the files and name them."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="default: SPECRS_CACHE or results")
    parser.add_argument("--shape", choices=SHAPES, action="append", help=f"default: {TINY_LLAMA}")
    parser.add_argument("--quant", choices=QUANTS, action="append", help="default: all")
    options = parser.parse_args()
    for shape in options.shape or [TINY_LLAMA]:
        for path in synthetic_models(options.folder, shape, options.quant or QUANTS):
            print(f"{path}  {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
