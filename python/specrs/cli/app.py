"""The command `specrs`: results on stdout, everything else on stderr."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections import defaultdict
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

import specrs

from .display import progress_bar, readable_bytes, shortened, summary
from .options import biases_of, check_max_tokens, given, seed_of, stdin_text, text_of

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    help="Run quantised Llama models on this CPU, with lossless speculative decoding.",
    add_completion=False,
    # rich would take longer to load than all the rest of --help.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class DrafterName(str, Enum):
    """Drafters that need no model."""

    prompt_lookup = "prompt-lookup"
    suffix_decoding = "suffix-decoding"


# Options that reach the library under their own names; None leaves the choice to it.
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name or path of a model.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens to generate.")]
NCtx = Annotated[int | None, typer.Option(help="Positions of the context.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.")]
Device = Annotated[str | None, typer.Option(help="cpu, candle-cpu, metal or cuda.")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Run quantised Llama models on this CPU, with lossless speculative decoding."""
    if version:
        print(specrs.__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="Known name, hf:owner/repo/file.gguf, path.")],
) -> None:
    """Download a model, unless it is there already, and print its path."""
    print(specrs.pull(name))


@app.command()
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
    print("\nMetadata")
    for key, value in header.metadata.items():
        print(f"  {key} = {shortened(value)}")
    counts: dict[str, list[int]] = defaultdict(list)
    for _, kind, _, size in header.tensors:
        counts[kind].append(size)
    print("\nTensors")
    for kind, sizes in sorted(counts.items(), key=lambda item: -sum(item[1])):
        print(f"  {kind:<7}{len(sizes):>6}  {readable_bytes(sum(sizes)):>10}")
    if ignored := header.ignored_tensors():
        print(f"  not used: {shortened(ignored)}")
    llm = specrs.Llama(file, **given(n_ctx=n_ctx, threads=threads))
    cache = llm.cache_bytes_per_token * llm.n_ctx
    print("\nMemory")
    print(f"  weights           {readable_bytes(llm.weight_bytes):>10}")
    print(f"  KV cache, at most {readable_bytes(cache):>10}  ({llm.n_ctx:,} positions)")
    print(f"\nKernels: {llm.kernels}, {llm.threads} threads")


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="Default: stdin.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the file's chat template.")] = False,
    max_tokens: MaxTokens = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the result.")] = None,
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
    n_ctx: NCtx = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Generate text after a prompt."""
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
    if either and not (drafter or draft_model):
        raise ValueError("--num-draft-tokens needs --drafter or --draft-model")
    if draft_length is not None and not (drafter or draft_model):
        raise ValueError("--draft-length needs --drafter or --draft-model")
    length = None if draft_length is None else specrs.FixedLength(draft_length)
    check_max_tokens(max_tokens)
    pattern = None if attention is None else specrs.attention.parse(attention)
    path = specrs.pull(model)
    text = stdin_text() if prompt is None else prompt
    chosen: specrs.Drafter | None = None
    if drafter is DrafterName.prompt_lookup:
        chosen = specrs.PromptLookup(**lookup, **either)
    elif drafter:
        chosen = specrs.SuffixDecoding(**either)
    elif draft_model:
        draft_llm = specrs.Llama(specrs.pull(draft_model), **computing)
        chosen = specrs.DraftModel(draft_llm, **small, **either)

    llm = specrs.Llama(path, **loading)
    options = given(
        max_tokens=max_tokens,
        stop=stop,
        drafter=chosen,
        draft_length=length,
        attention=pattern,
    )
    options |= {"sampling": sampling, "ignore_eos": ignore_eos}
    with progress_bar("prompt") as progress:
        if chat:
            message = {"role": "user", "content": text}
            stream = llm.stream_chat([message], progress=progress, **options)
        else:
            stream = llm.stream(text, progress=progress, **options)
        for chunk in stream:
            print(chunk.text, end="", flush=True)
    print()
    print(summary(stream.stats), file=sys.stderr)


# Most of the reply stands in the prompt already: the kind of task prompt lookup is for.
DEMO_PROMPT = """\
Correct the spelling mistakes in this text and change nothing else:

The old lighthouse stood on a rocky cliff above the see. Every evening the keeper climed the one \
hundred and twelve steps to light the great lamp. He had done so for thirty years, in summer and \
in winter, and he had never once been late. The sailors who past the cliff at night knew his \
light and trusted it."""


@app.command()
def demo(
    max_tokens: MaxTokens = None,
    threads: Threads = None,
) -> None:
    """Decode one prompt plainly and speculatively; exit with 1 unless both results are the same."""
    from rich.console import Console

    check_max_tokens(max_tokens)
    note = Console(stderr=True)
    llm = specrs.Llama(specrs.pull("smollm2-135m"), **given(threads=threads))
    note.print(f"SmolLM2-135M-Instruct, {llm.kernels}, {llm.threads} threads")
    messages = [{"role": "user", "content": DEMO_PROMPT}]
    options = given(max_tokens=max_tokens)
    llm.chat(messages, max_tokens=8)  # the first run after loading is slower

    out = Console(highlight=False, soft_wrap=True)
    out.print(f"[bold]prompt[/]\n{DEMO_PROMPT}\n")
    out.print("[bold]plain decoding[/]")
    plain = _show(out, llm.stream_chat(messages, **options))
    out.print("[bold]with PromptLookup[/], accepted draft tokens in [green]green[/]")
    drafted = _show(out, llm.stream_chat(messages, drafter=specrs.PromptLookup(), **options))

    same = plain[0] == drafted[0]
    before, after = plain[1].tokens_per_second, drafted[1].tokens_per_second
    out.print(f"plain:       {summary(plain[1])}")
    out.print(f"speculative: {summary(drafted[1])}")
    out.print(f"speed-up: {after / before if before else 1:.2f}x")
    out.print(f"identical: {'yes' if same else 'NO'} ({len(plain[0])} tokens)")
    if not same:
        raise typer.Exit(1)


@app.command("sparse-check")
def sparse_check(
    file: Annotated[Path, typer.Argument(help="A long text, the prompt.")],
    model: Annotated[str, typer.Option(help="Name or path of a model.")] = "smollm2-135m",
    attention: Annotated[
        str, typer.Option(help="auto, or a pattern such as 'SinkWindow(window=512)'.")
    ] = "auto",
    heat_map: Annotated[Path | None, typer.Option(help="Draw what was kept (matplotlib).")] = None,
    max_tokens: Annotated[int, typer.Option(help="Greedy tokens to compare.")] = 32,
    n_ctx: NCtx = None,
    threads: Threads = None,
) -> None:
    """Compare sparse with exact prefill of a text: fidelity, density, speed, greedy tokens."""
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


@app.command()
def bench(
    model: Model,
    prompts: Annotated[
        Path | None, typer.Option(help='JSON lines with "task" and "prompt"; default: built in.')
    ] = None,
    draft_model: Annotated[str | None, typer.Option(help="Measure this draft model too.")] = None,
    limit: Annotated[int | None, typer.Option(help="Most prompts.")] = None,
    max_tokens: MaxTokens = None,
    rounds: Annotated[int | None, typer.Option(help="Turns of each; medians count.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures here.")] = None,
    n_ctx: NCtx = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Measure speculation against plain decoding; exit with 1 if a token differs."""
    import json

    from .bench import Contestant, compare, read_prompts, record, table

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


def _show(out: Console, stream: specrs.Stream) -> tuple[list[int], specrs.Stats]:
    """Print a stream as it comes; return its ids and stats."""
    from rich.text import Text

    tokens: list[int] = []
    for chunk in stream:
        tokens += chunk.tokens
        out.print(Text(chunk.text, "green" if chunk.from_draft else ""), end="")
    out.print("\n")
    return tokens, stream.stats


def main() -> None:
    """Run the command line: a user's mistake is one line on stderr and exit code 2."""
    if sys.stderr is None:  # closed; print() would take stdout in its place
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as long as we live
    if sys.stdout is None:
        sys.exit(_mistake("standard output is closed; there is nowhere to write the result"))
    _write_any_text(sys.stdout)
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # the reader had enough
        sys.stderr.close()
        code = 1
    except OSError as error:
        # Without the "[Errno 2]" of str(error).
        known = error.filename is not None and error.strerror is not None
        code = _mistake(f"{error.filename}: {error.strerror}" if known else str(error))
    except (NotImplementedError, ValueError) as error:
        code = _mistake(str(error))
    except Exception as error:
        # Every usage error of the parser can word itself; anything else is a fault of ours.
        wording = getattr(error, "format_message", None)
        if wording is None:
            raise
        code = _mistake(wording())
    sys.exit(code)


def _write_any_text(stream: TextIO) -> None:
    """Let no text fail on a stream of some other encoding, nor paths that are no text on UTF-8."""
    if isinstance(stream, io.TextIOWrapper):
        utf8 = codecs.lookup(stream.encoding).name == "utf-8"
        stream.reconfigure(errors="surrogateescape" if utf8 else "replace")


def _mistake(message: str) -> int:
    print(f"specrs: {' '.join(message.split())}", file=sys.stderr)
    return 2
