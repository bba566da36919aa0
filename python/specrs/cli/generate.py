"""The command `generate`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

import specrs

from .display import progress_bar, summary
from .lines import generate_lines, report
from .options import (
    Device,
    MaxTokens,
    Model,
    NCtx,
    Threads,
    biases_of,
    check_max_tokens,
    given,
    grammar_of,
    seed_of,
    stdin_text,
    tools_of,
    variables_of,
)


class DrafterName(str, Enum):
    """Drafters that need no model."""

    prompt_lookup = "prompt-lookup"
    suffix_decoding = "suffix-decoding"
    forced_tokens = "forced-tokens"


def generate(
    model: Model,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="Default: stdin.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the file's chat template.")] = False,
    max_tokens: MaxTokens = None,
    tools: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON list of tools; needs --chat.")
    ] = None,
    template_variable: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of the chat template; JSON, or else text."),
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text, or a control token, that ends the result.")
    ] = None,
    stop_token_id: Annotated[list[int] | None, typer.Option(help="Id that ends it.")] = None,
    special_tokens: Annotated[
        bool, typer.Option("--special-tokens", help="Show control tokens in the text.")
    ] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end.")] = False,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw among so many tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among this probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Least share of the likeliest.")] = None,
    seed: Annotated[str | None, typer.Option(help="A number, or random.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="1 is none.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="Per occurrence.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="For any occurrence.")] = None,
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=NUMBER", help="-inf forbids the token.")
    ] = None,
    json_schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON of this schema, compact.")
    ] = None,
    grammar: Annotated[
        Path | None, typer.Option(metavar="FILE.lark", help="What these rules derive.")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="What this matches as a whole.")] = None,
    drafter: Annotated[DrafterName | None, typer.Option(help="Guess ahead, no model.")] = None,
    max_ngram_size: Annotated[int | None, typer.Option(help="Of prompt-lookup.")] = None,
    min_ngram_size: Annotated[int | None, typer.Option(help="Of prompt-lookup.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="Guess ahead with this model.")] = None,
    p_min: Annotated[float | None, typer.Option(help="Of the draft model.")] = None,
    num_draft_tokens: Annotated[int | None, typer.Option(help="Of either drafter.")] = None,
    draft_length: Annotated[int | None, typer.Option(help="Always ask for so many.")] = None,
    attention: Annotated[
        str | None, typer.Option(help="Of the prompt: dense, auto, 'SinkWindow(window=512)' …")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="JSON lines: prompts.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="JSON lines: their results.")
    ] = None,
    max_requests: Annotated[int | None, typer.Option(help="Of --input at once.")] = None,
    n_ctx: NCtx = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Generate text after a prompt, or after many: those of a file."""
    sampling = specrs.Sampling(
        **given(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            logit_bias=biases_of(logit_bias),
            seed=None if seed is None else seed_of(seed),
        )
    )
    if not sampling.temperature and given(a=top_k, b=top_p, c=min_p, d=seed):
        note = "--top-k, --top-p, --min-p and --seed do nothing without --temperature"
        print(f"specrs: {note}", file=sys.stderr)
    if seed == "random":
        sampling = replace(sampling, seed=None)
    computing = given(threads=threads, device=device)  # of a draft model too
    loading = given(n_ctx=n_ctx) | computing
    lookup = given(max_ngram_size=max_ngram_size, min_ngram_size=min_ngram_size)
    small = given(p_min=p_min)
    either = given(num_draft_tokens=num_draft_tokens)
    if drafter and draft_model:
        raise ValueError("--drafter and --draft-model exclude each other")
    if lookup and drafter is not DrafterName.prompt_lookup:
        raise ValueError("--max-ngram-size and --min-ngram-size need --drafter prompt-lookup")
    if small and not draft_model:
        raise ValueError("--p-min needs --draft-model")
    if either and not draft_model and drafter in (None, DrafterName.forced_tokens):
        raise ValueError("--num-draft-tokens needs --drafter or --draft-model")
    if draft_length is not None and not (drafter or draft_model):
        raise ValueError("--draft-length needs --drafter or --draft-model")
    length = None if draft_length is None else specrs.FixedLength(draft_length)
    check_max_tokens(max_tokens)
    constraint = grammar_of(json_schema, grammar, regex)
    conversation = given(
        tools=None if tools is None else tools_of(tools),
        template_variables=variables_of(template_variable),
    )
    if conversation and not chat:
        raise ValueError("--tools and --template-variable need --chat")
    if (source is None) != (target is None):
        raise ValueError("--input and --output belong together")
    if source is not None and (prompt is not None or chat):
        raise ValueError("--input has the prompts; --prompt and --chat are for one")
    if source is None and max_requests is not None:
        raise ValueError("--max-requests needs --input")
    if max_requests is not None and max_requests < 1:
        raise ValueError(f"--max-requests must be 1 or more, not {max_requests}")
    pattern = None if attention is None else specrs.attention.parse(attention)
    path = specrs.pull(model)
    text = stdin_text() if prompt is None and source is None else prompt or ""
    chosen: specrs.Drafter | None = None
    if drafter is DrafterName.prompt_lookup:
        chosen = specrs.PromptLookup(**lookup, **either)
    elif drafter is DrafterName.suffix_decoding:
        chosen = specrs.SuffixDecoding(**either)
    elif drafter:
        chosen = specrs.ForcedTokens()
    elif draft_model:
        draft_llm = specrs.Llama(specrs.pull(draft_model), **computing)
        chosen = specrs.DraftModel(draft_llm, **small, **either)

    llm = specrs.Llama(path, **loading)
    options = given(
        max_tokens=max_tokens,
        stop=stop,
        stop_token_ids=stop_token_id,
        drafter=chosen,
        draft_length=length,
        attention=pattern,
        grammar=constraint,
    )
    options |= {"sampling": sampling, "ignore_eos": ignore_eos}
    options |= {"skip_special_tokens": not special_tokens}
    if source is not None and target is not None:
        counts = generate_lines(llm, source, target, options, max_requests=max_requests or 16)
        report(counts, target)
        raise typer.Exit(1 if counts[2] else 0)
    with progress_bar("prompt") as progress:
        if chat:
            message = {"role": "user", "content": text}
            stream = llm.stream_chat([message], progress=progress, **conversation, **options)
        else:
            stream = llm.stream(text, progress=progress, **options)
        chunks = []
        for chunk in stream:
            chunks.append(chunk)
            print(chunk.reasoning, end="", file=sys.stderr, flush=True)
            print(chunk.text, end="", flush=True)
    print()
    for call in stream.completion(chunks).tool_calls:
        print(json.dumps(call.as_dict(), ensure_ascii=False))
    print(summary(stream.stats), file=sys.stderr)
