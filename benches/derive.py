"""Makes a model out of another by leaving out layers: a draft model without a download.

What the layers of a Llama add to the residual stream is small in the middle of the stack, so a
model without a few of them says mostly the same, sooner. Of SmolLM2-135M (30 layers), dropping
layer 15 keeps about 84 % of the next tokens, 14 and 18 about 70 %, 12, 15, 18 and 21 about 38 %.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import gguf
import numpy as np


def drop_layers(source: Path, target: Path, dropped: Collection[int]) -> Path:
    """Write the model `source` without its layers `dropped` to `target`; returns `target`."""
    reader = gguf.GGUFReader(source)
    n_layer = int(reader.fields["llama.block_count"].contents())
    kept = [layer for layer in range(n_layer) if layer not in dropped]
    if len(kept) != n_layer - len(set(dropped)):
        raise ValueError(f"{source.name} has layers 0 to {n_layer - 1}, not all of {dropped}")
    writer = gguf.GGUFWriter(target, "llama")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        value = len(kept) if key == "llama.block_count" else field.contents()
        writer.add_key_value(key, value, field.types[0], element)
    for tensor in reader.tensors:
        name = tensor.name
        if layer := re.match(r"blk\.(\d+)\.", name):
            if int(layer[1]) in dropped:
                continue
            name = f"blk.{kept.index(int(layer[1]))}.{name[layer.end() :]}"
        writer.add_tensor(name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
