"""The commands about model files: `pull` and `inspect`."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

import typer

import specrs

from ..arguments import checked_positive
from ..models import MODELS
from ..models.hub import FORMS
from .display import printable, readable_bytes, shortened
from .options import Model, NCtx, Threads, given

KNOWN = "; ".join(f"{name} (licence: {model.licence})" for name, model in MODELS.items())


def pull(
    name: Annotated[str, typer.Argument(help=f"A known name: {KNOWN}. Or {FORMS}, or a path.")],
) -> None:
    """Download a model, unless it is there already, and print its path."""
    print(specrs.pull(name))


def inspect(
    model: Model,
    n_ctx: NCtx = None,
    threads: Threads = None,
) -> None:
    """Show what is in a model file and what it needs in memory."""
    from .._specrs import GgufFile

    file = specrs.pull(model)
    header = GgufFile(file)
    print(f"{file}: GGUF v{header.version}, {readable_bytes(header.size)}")
    for known in MODELS.values():
        if (known.filename, known.size) == (file.name, header.size):
            print(f"Licence: {known.licence}")
    print("\nMetadata")
    for key, value in header.metadata.items():
        print(f"  {printable(key)} = {shortened(value)}")
    counts: dict[str, list[int]] = defaultdict(list)
    for _, kind, _, size in header.tensors:
        counts[kind].append(size)
    print("\nTensors")
    for kind, sizes in sorted(counts.items(), key=lambda item: -sum(item[1])):
        print(f"  {kind:<7}{len(sizes):>6}  {readable_bytes(sum(sizes)):>10}")
    if ignored := header.ignored_tensors():
        print(f"  not used: {shortened(ignored)}")
    for option, value in given(n_ctx=n_ctx, threads=threads).items():
        checked_positive(option, value)
    plan = header.plan(n_ctx=n_ctx, threads=threads)
    cache = plan.cache_bytes_per_token * plan.n_ctx
    if plan.notes:
        print("\nNotes")
        for note in plan.notes:
            print(f"  {note}")
    print("\nMemory")
    print(f"  weights           {readable_bytes(plan.weight_bytes):>10}")
    print(f"  KV cache, at most {readable_bytes(cache):>10}  ({plan.n_ctx:,} positions)")
    print(f"\nKernels: {plan.kernels}, {plan.threads} threads")
