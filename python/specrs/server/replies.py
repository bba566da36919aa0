"""What is sent: the objects of OpenAI's API."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ..decoding.stats import Stats


class PromptDetails(msgspec.Struct):
    """What was cheap about a prompt."""

    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct):
    """What became of drafts."""

    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct):
    """Tokens used; every prompt counts once."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptDetails = msgspec.field(default_factory=PromptDetails)
    completion_tokens_details: CompletionDetails = msgspec.field(default_factory=CompletionDetails)

    def add(self, stats: Stats, *, first: bool) -> None:
        """Add a choice; the `first` one of its prompt brings the prompt."""
        if first:
            self.prompt_tokens += stats.prompt_tokens
            self.prompt_tokens_details.cached_tokens += stats.cached_tokens
        self.completion_tokens += stats.tokens_generated
        self.total_tokens = self.prompt_tokens + self.completion_tokens
        details = self.completion_tokens_details
        details.accepted_prediction_tokens += stats.num_accepted_tokens
        details.rejected_prediction_tokens += stats.num_draft_tokens - stats.num_accepted_tokens


class Message(msgspec.Struct):
    """A reply; what it has not is left out."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class Delta(msgspec.Struct):
    """A piece of a reply."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One reply of several."""

    index: int
    message: Message
    logprobs: dict[str, Any] | None
    finish_reason: str


class ChatDelta(msgspec.Struct):
    """A piece of one of several replies."""

    index: int
    delta: Delta
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None


class TextChoice(msgspec.Struct):
    """One completion of several, or a piece of it."""

    index: int
    text: str
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None


class Reply(msgspec.Struct, kw_only=True):
    """A whole answer, or an event of a stream."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Any]
    usage: Usage | UnsetType | None = UNSET
