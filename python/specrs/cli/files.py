"""The commands about model files: `pull` and `inspect`."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Annotated

import typer

import specrs

from ..arguments import checked_positive
from ..models import MODELS
from ..models.hub import FORMS
from ..models.packages import path_in_cache, remove_from_cache
from .display import printable, readable_bytes, shortened
from .options import Model, NCtx, Threads, complete_model, given

KNOWN = "; ".join(f"{name} (licence: {model.licence})" for name, model in MODELS.items())


def pull(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help=f"A known name: {KNOWN}. Or {FORMS}, or a path.",
            show_default=False,
            autocompletion=complete_model,
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="List the known names and which of them are here.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete the downloaded model of this name.")
    ] = False,
) -> None:
    """Download a model, unless it is here already, and print its path."""
    if show:
        if name is not None or remove:
            raise ValueError("--list takes no name and excludes --remove")
        for known, model in MODELS.items():
            path = path_in_cache(model)
            place = "not here" if path is None else str(path)
            print(f"{known:<14}{readable_bytes(model.size):>10}  {place}  ({model.licence})")
        return
    if name is None:
        raise ValueError("give the name of a model, or --list")
    if not remove:
        print(specrs.pull(name))
        return
    if name not in MODELS:
        raise ValueError(
            f"{name!r} is no name that specrs keeps models of; these are {', '.join(MODELS)}. "
            f"The models of hf: names are in the cache of huggingface_hub: `hf cache` has them"
        )
    path = path_in_cache(MODELS[name])
    remove_from_cache(MODELS[name])
    print(f"{name} was not here" if path is None else f"removed {path}", file=sys.stderr)


def inspect(
    model: Model,
    n_ctx: NCtx = None,
    threads: Threads = None,
) -> None:
    """Show what a model file holds and what memory it needs."""
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
