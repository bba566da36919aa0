"""What loading a model needs, from its header alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doctored import Doctor
from specrs._specrs import GgufError, GgufFile, Model
from tensors import EMBEDDING, OUTPUT

ATTRIBUTES = ("n_ctx", "threads", "kernels", "weight_bytes", "cache_bytes_per_token")


@pytest.mark.parametrize(
    "options",
    [
        {"quant": "F32"},
        {"quant": "F16", "tied": True},
        {"quant": "Q4_0", "n_vocab": 321, "head_dim": 40},
        {"quant": "Q4_K", "types": {OUTPUT: "Q6_K"}},
        {"quant": "Q5_1", "split": 3, "n_head_kv": 1},
    ],
    ids=lambda options: options["quant"],
)
def test_a_plan_is_what_loading_gives(tiny: Callable[..., Path], options: dict[str, Any]) -> None:
    path = tiny(**options)
    choices: list[dict[str, Any]] = [{}, {"n_ctx": 100, "threads": 1}]
    for choice in choices:
        plan, model = GgufFile(path).plan(**choice), Model(path, **choice)
        assert [getattr(plan, name) for name in ATTRIBUTES] == [
            getattr(model, name) for name in ATTRIBUTES
        ]


def test_a_plan_reads_no_weights(tiny: Callable[..., Path], tmp_path: Path) -> None:
    """A file of 77 GB, nearly all of it a hole, tells at once what it would need."""
    rows = 2**31
    doctor = Doctor(tiny(quant="Q4_0", tied=True), tmp_path)
    embedding = doctor.layout.tensors[EMBEDDING]
    end = len(doctor.data) // 4096 * 4096 + 4096
    data_start = (doctor.layout.header_end + 31) // 32 * 32
    offset = end - data_start
    offset += -offset % 32
    path = doctor.patch(
        "large", (embedding.dims_at + 8, "Q", rows), (embedding.offset_at, "Q", offset)
    )
    os.truncate(path, data_start + offset + rows * 2 * 18)
    # Blocks of 18 bytes are as large when they are packed.
    assert GgufFile(path).plan().weight_bytes > rows * 2 * 18


def test_a_plan_is_refused_where_loading_is(tiny: Callable[..., Path]) -> None:
    plan = GgufFile(tiny()).plan
    bad: list[dict[str, Any]] = [{"n_ctx": 0}, {"n_ctx": 513}, {"threads": 0}, {"threads": 10**9}]
    for options in bad:
        with pytest.raises(ValueError, match=next(iter(options))):
            plan(**options)
    with pytest.raises(TypeError, match="n_ctx"):
        plan(n_ctx=8.5)  # type: ignore[arg-type]
    with pytest.raises(GgufError, match="qwen2"):
        GgufFile(tiny(architecture="qwen2")).plan()
    with pytest.raises(GgufError, match="tokenizer"):
        GgufFile(tiny(metadata={"tokenizer.ggml.model": "rwkv"})).plan()
