"""What the tests of batches share: a toy model, prompts for it, and when results are the same."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from fake_engine import toy_llama
from specrs import Completion, Llama

CHAT = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"

PROMPTS = ["abc", "hello", "b", "abcd", "zz top"]


def toy_of_batches(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Llama:
    """Load a toy that replies to chats as well."""
    return toy_llama(monkeypatch, folder / "toy", n_ctx=200, order=2, chat_template=CHAT)


def same(result: Completion, wanted: Completion) -> bool:
    """Whether two results say the same."""
    return (result.text, result.tokens, result.logprobs, result.finish_reason) == (
        wanted.text,
        wanted.tokens,
        wanted.logprobs,
        wanted.finish_reason,
    )


class Gate:
    """A drafter that waits, so that a test can do something in the middle of a generation."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.reached = threading.Event()
        self.open = threading.Event()

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        """Propose nothing, once the gate is open."""
        if len(tokens) >= self.after:
            self.reached.set()
            assert self.open.wait(60)
        return []
