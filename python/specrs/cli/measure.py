"""The commands that compare: `sparse-check` and `bench`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import specrs

from .bench import Contestant, compare, read_prompts, record, table
from .display import progress_bar
from .options import (
    Device,
    MaxTokens,
    Model,
    ModelOption,
    NCtx,
    Threads,
    check_max_tokens,
    complete_model,
    default_of,
    given,
    text_of,
)


def sparse_check(
    file: Annotated[Path, typer.Argument(help="A long text, the prompt.")],
    model: ModelOption = "smollm2-135m",
    attention: Annotated[
        str, typer.Option(help="What is compared: auto, or a pattern as 'SinkWindow(window=512)'.")
    ] = "auto",
    heat_map: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw what was kept into a picture (needs matplotlib)."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate both ways.")] = 32,
    n_ctx: NCtx = None,
    threads: Threads = None,
) -> None:
    """Tell what sparse attention does to a long text: how much it skips, gains and changes."""
    from ..attention.fidelity import check_heat_map

    check_max_tokens(max_tokens)
    pattern = specrs.attention.parse(attention)
    if heat_map is not None:
        check_heat_map(heat_map)
    text = text_of(file)
    llm = specrs.Llama(specrs.pull(model), **given(n_ctx=n_ctx, threads=threads))
    ids = llm.tokenize(text)
    print(f"{file}: {len(ids):,} tokens; {llm.kernels}, {llm.threads} threads")
    with progress_bar("comparing") as progress:
        report = specrs.attention.compare(
            llm, ids, pattern, new_tokens=max_tokens, progress=progress
        )
    print(report)
    print(f"exact:  {llm.detokenize(report.dense_tokens)!r}")
    print(f"sparse: {llm.detokenize(report.sparse_tokens)!r}")
    if heat_map is not None:
        report.save_heat_map(heat_map)


def bench(
    model: Model,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Lines of JSON, each with "task" and "prompt".',
            show_default="a few that are built in",
        ),
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Measure this draft model too.", autocompletion=complete_model
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Most prompts to use.", show_default="all")
    ] = None,
    max_tokens: MaxTokens = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="How often to run each; the median counts.",
            show_default=default_of(compare, "rounds"),
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures here.")
    ] = None,
    n_ctx: NCtx = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Measure how much faster speculation is; exit with 1 if a token differs."""
    import json

    computing = given(threads=threads, device=device)  # of a draft model too
    loading = given(n_ctx=n_ctx) | computing
    llm = specrs.Llama(specrs.pull(model), **loading)
    contestants = {
        "PromptLookup": Contestant(specrs.PromptLookup()),
        "SuffixDecoding": Contestant(specrs.SuffixDecoding()),
    }
    if draft_model:
        small = specrs.Llama(specrs.pull(draft_model), **computing)
        contestants["DraftModel"] = Contestant(specrs.DraftModel(small))
    chosen = read_prompts(llm, prompts, limit)
    print(f"{llm.path.name}, {llm.kernels}, {llm.threads} threads, {len(chosen)} prompts")
    results = compare(
        llm,
        contestants,
        chosen,
        progress=lambda done: print(f"\r{done}/{len(chosen)}", end="", file=sys.stderr, flush=True),
        **given(max_tokens=max_tokens, rounds=rounds),
    )
    print(file=sys.stderr)
    print(table(results))
    if json_file is not None:
        json_file.write_text(json.dumps(record(results), indent=2) + "\n")
    if any(figures["all"].different for figures in results.values()):
        raise typer.Exit(1)
