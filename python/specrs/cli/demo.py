"""The command `demo`: what speculation is, on one prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

import specrs

from .display import summary
from .options import MaxTokens, ModelOption, Threads, check_max_tokens, given

if TYPE_CHECKING:
    from rich.console import Console

# The reply stands in the prompt already, which is what prompt lookup is for, and a model of 135M
# parameters can do it.
DEMO_PROMPT = """\
Repeat this text word for word:

The old lighthouse stood on a rocky cliff above the sea. Every evening the keeper climbed the one \
hundred and twelve steps to light the lamp, and every morning he walked down again to write the \
names of the ships in his book."""

# The same for a model that only continues text: one record says how the next goes on.
DEMO_RECORDS = """\
{"city": "Paris", "country": "France", "continent": "Europe", "language": "French"}
{"city": "Tokyo", "country": "Japan", "continent": "Asia", "language": "Japanese"}
{"city": "Cairo", "country": "Egypt", "continent": "Africa", "language": "Arabic"}
{"city": "Rome","""


def demo(
    model: ModelOption = "smollm2-135m",
    max_tokens: MaxTokens = None,
    threads: Threads = None,
) -> None:
    """Show on one prompt what speculation brings; exit with 1 unless both texts are the same."""
    from rich.console import Console

    check_max_tokens(max_tokens)
    note = Console(stderr=True)
    llm = specrs.Llama(specrs.pull(model), **given(threads=threads))
    note.print(f"{llm.path.stem}, {llm.kernels}, {llm.threads} threads")
    chats = llm.tokenizer.chat_template is not None
    prompt = DEMO_PROMPT if chats else DEMO_RECORDS
    ids = llm.chat_tokens([{"role": "user", "content": prompt}]) if chats else llm.tokenize(prompt)
    options = given(max_tokens=max_tokens)
    llm.generate(ids, max_tokens=8)  # the first run after loading is slower

    out = Console(highlight=False, soft_wrap=True)
    out.print("[bold]prompt[/]")
    out.print(prompt, markup=False)
    out.print("\n[bold]plain decoding[/]")
    plain = _show(out, llm.stream(ids, **options))
    out.print("[bold]with PromptLookup[/], accepted draft tokens in [green]green[/]")
    drafted = _show(out, llm.stream(ids, drafter=specrs.PromptLookup(), **options))

    same = plain[0] == drafted[0]
    before, after = plain[1].tokens_per_second, drafted[1].tokens_per_second
    out.print(f"plain:       {summary(plain[1])}")
    out.print(f"speculative: {summary(drafted[1])}")
    out.print(f"speed-up: {after / before if before else 1:.2f}x")
    out.print(f"identical: {'yes' if same else 'NO'} ({len(plain[0])} tokens)")
    if not same:
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
