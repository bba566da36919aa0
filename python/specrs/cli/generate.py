"""The command `generate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import specrs

from ..llama import Llama
from .decoding import (
    DRAFTER_HELP,
    DrafterName,
    DraftModel,
    FrequencyPenalty,
    LogitBias,
    MinP,
    NumDraftTokens,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    Temperature,
    TopK,
    TopP,
    check_drafter,
    drafter_of,
    sampling_of,
)
from .display import parted, progress_bar, summary
from .lines import generate_lines, report
from .options import (
    Device,
    MaxTokens,
    Model,
    NCtx,
    System,
    TemplateVariable,
    Threads,
    Tools,
    check_max_tokens,
    default_of,
    given,
    grammar_of,
    stdin_text,
    text_of,
    tools_of,
    unescaped,
    variables_of,
)


def generate(
    model: Model,
    prompt: Annotated[
        str | None,
        typer.Option("-p", "--prompt", help="The prompt.", show_default="standard input"),
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the prompt from a file of text.")
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="The prompt is a message: apply the model's chat template."),
    ] = False,
    system: System = None,
    tools: Tools = None,
    template_variable: TemplateVariable = None,
    parse_special: Annotated[
        bool,
        typer.Option(
            "--parse-special",
            help="Let control tokens that the prompt spells be these tokens; not with --chat.",
        ),
    ] = False,
    max_tokens: MaxTokens = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help=r"End before this text, or at this control token; \n is a line break. Repeatable.",
        ),
    ] = None,
    stop_token_id: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="End at this token. Repeatable.")
    ] = None,
    special_tokens: Annotated[
        bool, typer.Option("--special-tokens", help="Show control tokens in the text.")
    ] = False,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on where the model would end.")
    ] = False,
    count: Annotated[
        int,
        typer.Option(
            "-n", "--num-results", min=1, help="Results to draw, each with the next seed."
        ),
    ] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an object of JSON a line for each result.")
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            min=0, help="With --json: tell log-probabilities, and this many likeliest tokens."
        ),
    ] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    repetition_penalty: RepetitionPenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    presence_penalty: PresencePenalty = None,
    logit_bias: LogitBias = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The text is JSON that fits the schema in this file."),
    ] = None,
    grammar: Annotated[
        Path | None,
        typer.Option(metavar="FILE.lark", help="The text is what the rules in this file derive."),
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="The text matches this regular expression as a whole.")
    ] = None,
    drafter: Annotated[
        DrafterName | None, typer.Option(help=DRAFTER_HELP, show_default="none")
    ] = None,
    max_ngram_size: Annotated[
        int | None,
        typer.Option(
            help="prompt-lookup: longest ending that it looks for.",
            show_default=default_of(specrs.PromptLookup, "max_ngram_size"),
        ),
    ] = None,
    min_ngram_size: Annotated[
        int | None,
        typer.Option(
            help="prompt-lookup: shortest ending that it looks for.",
            show_default=default_of(specrs.PromptLookup, "min_ngram_size"),
        ),
    ] = None,
    draft_model: DraftModel = None,
    p_min: Annotated[
        float | None,
        typer.Option(
            help="Draft model: least probability of a token that it guesses.",
            show_default=default_of(specrs.DraftModel, "p_min"),
        ),
    ] = None,
    num_draft_tokens: NumDraftTokens = None,
    draft_length: Annotated[
        int | None,
        typer.Option(
            help="Always guess this many tokens.", show_default="as many as pay, by measuring"
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            help="What a prompt looks at: dense, auto, or a pattern as 'SinkWindow(window=512)'.",
            show_default=default_of(Llama.stream, "attention"),
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="Many prompts, a line of JSON each."),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Where the results of --input go."),
    ] = None,
    max_requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Prompts of --input that run at once.",
            show_default=default_of(Llama.batch, "max_requests"),
        ),
    ] = None,
    n_ctx: NCtx = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Generate text after a prompt, or after each prompt of a file."""
    sampling = sampling_of(
        seed,
        logit_bias,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
    )
    computing = given(threads=threads, device=device)  # of a draft model too
    lookup = given(max_ngram_size=max_ngram_size, min_ngram_size=min_ngram_size)
    small = given(p_min=p_min)
    either = given(num_draft_tokens=num_draft_tokens)
    check_drafter(drafter, draft_model, draft_length=draft_length, **either)
    if lookup and drafter is not DrafterName.prompt_lookup:
        raise ValueError("--max-ngram-size and --min-ngram-size need --drafter prompt-lookup")
    if small and not draft_model:
        raise ValueError("--p-min needs --draft-model")
    length = None if draft_length is None else specrs.FixedLength(draft_length)
    check_max_tokens(max_tokens)
    constraint = grammar_of(json_schema, grammar, regex)
    conversation = given(
        tools=None if tools is None else tools_of(tools),
        template_variables=variables_of(template_variable),
    )
    if (conversation or system is not None) and not chat:
        raise ValueError("--system, --tools and --template-variable need --chat")
    if parse_special and chat:
        raise ValueError("--parse-special and --chat exclude each other: no message spells tokens")
    if prompt is not None and prompt_file is not None:
        raise ValueError("--prompt and --prompt-file exclude each other")
    if (source is None) != (target is None):
        raise ValueError("--input and --output belong together")
    of_one = given(prompt=prompt, file=prompt_file, logprobs=logprobs)
    if source is not None and (of_one or chat or as_json or count > 1):
        raise ValueError(
            "--input has the prompts; --prompt, --prompt-file, --chat, --json, --logprobs and -n "
            "are for one"
        )
    if source is None and max_requests is not None:
        raise ValueError("--max-requests needs --input")
    if logprobs is not None and not as_json:
        raise ValueError("--logprobs needs --json")
    if count > 1 and not sampling.temperature:
        raise ValueError("-n needs --temperature: without it all results are the same")
    stops = None if stop is None else [unescaped("--stop", text) for text in stop]
    pattern = None if attention is None else specrs.attention.parse(attention)
    path = specrs.pull(model)
    if prompt_file is not None:
        prompt = text_of(prompt_file).removesuffix("\n")
    elif prompt is None and source is None:
        prompt = stdin_text()
    chosen = drafter_of(
        drafter,
        draft_model,
        of_lookup=lookup,
        of_model=small,
        of_either=either,
        computing=computing,
    )
    llm = specrs.Llama(path, **given(n_ctx=n_ctx), **computing)
    options = given(
        max_tokens=max_tokens,
        stop=stops,
        stop_token_ids=stop_token_id,
        logprobs=logprobs,
        drafter=chosen,
        draft_length=length,
        attention=pattern,
        grammar=constraint,
    )
    options |= {"ignore_eos": ignore_eos, "skip_special_tokens": not special_tokens}
    if parse_special:
        options["parse_special"] = True
    if source is not None and target is not None:
        options["sampling"] = sampling
        counts = generate_lines(llm, source, target, options, **given(max_requests=max_requests))
        report(counts, target)
        raise typer.Exit(1 if counts[2] else 0)
    assert prompt is not None
    begun: str | Sequence[int] = prompt
    if chat:
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages.append({"role": "user", "content": prompt})
        begun = llm.chat_tokens(messages, **conversation)
    if count == 1 and not as_json:
        _stream(llm, begun, options | {"sampling": sampling})
        return
    for out in _results(llm, begun, count, sampling, options):
        if as_json:
            print(json.dumps(out.as_dict(), ensure_ascii=False), flush=True)
            continue
        if out.reasoning is not None:
            print(out.reasoning, file=sys.stderr)
        print(out.text, flush=True)
        _tell(out)


def _stream(llm: specrs.Llama, prompt: str | Sequence[int], options: dict[str, Any]) -> None:
    """Print one text as it comes."""
    with progress_bar("prompt") as progress:
        stream = llm.stream(prompt, progress=progress, **options)
        chunks = []
        for chunk in parted(stream):
            chunks.append(chunk)
            print(chunk.reasoning, end="", file=sys.stderr, flush=True)
            print(chunk.text, end="", flush=True)
    print()
    _tell(stream.completion(chunks))


def _tell(out: specrs.Completion) -> None:
    """Print what there is beside the text of a result."""
    for call in out.tool_calls:
        print(json.dumps(call.as_dict(), ensure_ascii=False))
    print(summary(out.stats), file=sys.stderr)


def _results(
    llm: specrs.Llama,
    prompt: str | Sequence[int],
    count: int,
    sampling: specrs.Sampling,
    options: dict[str, Any],
) -> Iterable[specrs.Completion]:
    """Draw several results, with seeds that follow one another."""
    if count == 1:
        return [llm.generate(prompt, sampling=sampling, **options)]
    first = sampling.seeded().seed or 0
    drawn = [replace(sampling, seed=(first + i) % 2**64) for i in range(count)]
    return llm.generate_many([prompt] * count, sampling=drawn, **options)
