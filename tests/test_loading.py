"""What loading a model needs: told from its header alone, and an error where it is not there."""

from __future__ import annotations

import os
import subprocess
import sys
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
        {"quant": "Q8_0", "experts": 5},
        {"quant": "F16", "experts": 3, "expert_ff": 40, "architecture": "qwen3moe"},
    ],
    ids=str,
)
def test_a_plan_is_what_loading_gives(tiny: Callable[..., Path], options: dict[str, Any]) -> None:
    path = tiny(**options)
    choices: list[dict[str, Any]] = [{}, {"n_ctx": 100, "threads": 1}]
    for choice in choices:
        plan, model = GgufFile(path).plan(**choice), Model(path, **choice)
        assert [getattr(plan, name) for name in ATTRIBUTES] == [
            getattr(model, name) for name in ATTRIBUTES
        ]


def test_a_plan_tells_what_experts_save(tiny: Callable[..., Path]) -> None:
    path = tiny(quant="F32", experts=8, n_embd=256, n_ff=512)
    (note,) = GgufFile(path).plan().notes
    assert note.startswith("a token uses 2 of the 8 experts of a block, and so reads 0.0")
    assert note.endswith(f"of {GgufFile(path).plan().weight_bytes / 1e9:.2f} GB")
    assert not GgufFile(tiny()).plan().notes


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
    with pytest.raises(GgufError, match="deepseek2"):
        GgufFile(tiny(architecture="deepseek2")).plan()
    with pytest.raises(GgufError, match="tokenizer"):
        GgufFile(tiny(metadata={"tokenizer.ggml.model": "rwkv"})).plan()


# Argument: the file. Memory is enough to map it, and then not for its weights.
NO_MEMORY = """
import os, resource, sys
from specrs._specrs import Model
size = os.path.getsize(sys.argv[1])
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
_, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (mapped + size + (100 << 20), hard))
try:
    Model(sys.argv[1], threads=2)
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
print(Model(sys.argv[1], threads=2).session().choose_last([1, 2, 3], 1))
"""


def test_weights_without_memory_are_an_error(tiny: Callable[..., Path]) -> None:
    """250 MB: not a crash, and the next attempt is not hurt by it."""
    sizes = {"n_layer": 8, "n_embd": 1024, "n_head": 16, "n_ff": 8192, "n_vocab": 4096}
    path = tiny(quant="Q8_0", shared=True, **sizes)
    assert path.stat().st_size > 240_000_000
    command = [sys.executable, "-c", NO_MEMORY, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    error, answer = run.stdout.splitlines()
    assert "there is no memory for the " in error
    assert "bytes of the weights; close other programs" in error
    assert answer.startswith("[")
