"""How the command line writes what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from ..decoding.stats import Stats
from ..text import Chunk


def readable_bytes(n: int) -> str:
    """Write a number of bytes, large ones in MB."""
    return f"{n / 1e6:,.1f} MB" if n >= 100_000 else f"{n:,} B"


def shortened(value: Any, limit: int = 70) -> str:
    """Show a metadata value in one line: long lists by their beginning and length."""
    if isinstance(value, (list, tuple)) and len(value) > 4:
        start = ", ".join(shortened(item, 20) for item in value[:4])
        return f"[{start}, …] ({len(value):,})"
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def printable(text: str, keep: str = "") -> str:
    """Escape what a terminal might obey, all but `keep`: a file or a model may say anything."""
    harmless = (
        char.isprintable() or char in keep or 0xDC80 <= ord(char) <= 0xDCFF  # or of a path
        for char in text
    )
    return "".join(c if shown else ascii(c)[1:-1] for c, shown in zip(text, harmless, strict=True))


def summary(stats: Stats) -> str:
    """Put the figures of a generation in one line."""
    parts = [
        f"{stats.tokens_generated} tokens",
        f"{stats.tokens_per_second:.1f} tokens/s",
        f"{stats.tokens_per_call:.2f} per forward",
    ]
    if stats.num_drafts:
        kept, of = stats.num_accepted_tokens, stats.num_draft_tokens
        parts.append(f"{kept} of {of} drafted accepted ({stats.acceptance_rate:.0%})")
    if stats.seed is not None:
        parts.append(f"seed {stats.seed}")
    prompt = f"prompt {stats.prompt_tokens} at {stats.prefill_tokens_per_second:.0f} tokens/s"
    return ", ".join([*parts, prompt])


def parted(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Give the chunks of a reply, with a line break at the end of its reasoning."""
    thinking = False
    for chunk in chunks:
        thinking = thinking or chunk.reasoning != ""
        if thinking and chunk.text:
            thinking = False
            yield replace(chunk, reasoning=chunk.reasoning + "\n")
        else:
            yield chunk


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show calls of `progress(done, total)` as a bar on stderr, from the first until all is done.

    Nothing appears where stderr is no terminal, or for work that is reported done at once.
    """
    with ExitStack() as stack:
        update: Callable[[int, int], object] | None = None

        def progress(done: int, total: int) -> None:
            nonlocal update
            if done >= total:
                stack.close()  # what follows may write lines of its own
            elif update is None:
                update = stack.enter_context(_bar(label))
            if update is not None:
                update(done, total)

        yield progress


@contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int], object]]:
    # Imported here: it takes longer to load than a short prompt takes.
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label)
        yield lambda done, total: bar.update(task, completed=done, total=total)
