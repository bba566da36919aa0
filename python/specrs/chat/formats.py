"""How models write calls of tools and reasoning: one description per format.

A format belongs to a chat template: models were trained to write what the template of their file
writes of earlier replies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .._specrs import Tokenizer
from ..text import Decoder

NAME = re.compile('[^\\s\\[\\]{}<>"\ud800-\udfff]*')
"""A name of a tool where it stands without quotes; halves of surrogate pairs stand for marks."""

Body = Literal["json", "named", "xml"]
"""How a call is written: an object with its name and arguments, or a list of such objects; the
name, a mark and the arguments; or elements for the function and each of its parameters."""


@dataclass(frozen=True)
class CallFormat:
    """How a reply calls tools.

    Attributes:
        name: What documentation and messages call it.
        signs: Texts that together tell a template of this format.
        begins: Marks of which one stands before a call.
        body: What follows.
        close: The mark after it; "" if there is none. It may be missing at the end of a reply.
        bare: Whether a call may also stand without any mark, where a reply begins or after another
            call. It then must name a tool that there is.
        key: Name of the member with the arguments, in a JSON object that the template writes.
        listed: Whether the template writes a list of objects.
        inside: Text between the opening mark and the call, and between the call and the
            closing mark.
        between: What it writes between calls; None if it writes a list, or one call only.
        named: The marks of the body "named": before an id, if it has one, and before the arguments.
        end: A mark that ends a reply with calls, though the file does not say so.
    """

    name: str
    signs: tuple[str, ...]
    begins: tuple[str, ...]
    body: Body
    close: str = ""
    bare: bool = False
    key: str = "arguments"
    listed: bool = False
    inside: str = ""
    between: str | None = None
    named: tuple[str, str] = ("", "")
    end: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that may be tokens."""
        return tuple(mark for mark in (*self.begins, self.close, *self.named) if mark.strip())


#: The first one counts whose signs a template has.
CALL_FORMATS = (
    CallFormat(
        "qwen3-coder",
        signs=("<tool_call>", "<function=", "<parameter="),
        begins=("<tool_call>",),
        body="xml",
        close="</tool_call>",
        inside="\n",
        between="\n",
    ),
    CallFormat(
        "hermes",
        signs=("<tool_call>", "arguments"),
        begins=("<tool_call>",),
        body="json",
        close="</tool_call>",
        inside="\n",
        between="\n",
    ),
    CallFormat(
        "mistral",
        signs=("[TOOL_CALLS]", "[ARGS]"),
        begins=("[TOOL_CALLS]",),
        body="named",
        between="",
        named=("[CALL_ID]", "[ARGS]"),
    ),
    CallFormat(
        "mistral-json",
        signs=("[TOOL_CALLS]",),
        begins=("[TOOL_CALLS]",),
        body="json",
        listed=True,
    ),
    CallFormat(
        "phi-4-mini",
        signs=("<|tool|>", "<|/tool|>"),
        begins=("<|tool_call|>",),
        body="json",
        close="<|/tool_call|>",
        listed=True,
    ),
    CallFormat(
        "granite",
        signs=("<|start_of_role|>", "<|tool_call|>"),
        begins=("<|tool_call|>",),
        body="json",
        listed=True,
    ),
    CallFormat(
        "llama",
        signs=("<|start_header_id|>", '"parameters": '),
        begins=("<|python_tag|>",),
        body="json",
        bare=True,
        key="parameters",
    ),
    CallFormat(
        "glm-4",
        signs=("[gMASK]", "<|observation|>"),
        begins=(),
        body="named",
        bare=True,
        named=("", "\n"),
        end="<|observation|>",
    ),
)


@dataclass(frozen=True)
class ReasoningFormat:
    """How a reply begins with reasoning: between two marks.

    Attributes:
        open: The mark before it, which the prompt may have already.
        close: The mark after it.
        answer: Marks around the text that follows, if there are any.
    """

    open: str
    close: str
    answer: tuple[str, str] | tuple[()] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that may be tokens."""
        return self.open, self.close, *self.answer


#: As with calls; but marks that the vocabulary has count as well where the template has none.
REASONING_FORMATS = (
    ReasoningFormat("<think>", "</think>", answer=("<response>", "</response>")),
    ReasoningFormat("<think>", "</think>"),
    ReasoningFormat("[THINK]", "[/THINK]"),
)


class Marks:
    """The formats of a model, and its marks: those that are tokens of their own, and the others.

    A mark that is a token is only ever this token. Where text is looked for marks, the token stands
    as a character that no text has (half of a surrogate pair), so that text which spells a mark is
    not taken for one. Marks that are no tokens are found by how they are spelled.

    Attributes:
        calls: How replies call tools; None if the template has none of the formats.
        reasoning: How they reason; None if neither template nor vocabulary has such marks.
        call_tokens: The character that stands for a mark of calls, by the mark's id.
        reasoning_tokens: The same for marks of reasoning.
        end_id: The token that ends a reply with calls, though the file does not say so; or None.
    """

    def __init__(self, template: str, tokenizer: Tokenizer) -> None:
        self.calls = next(
            (form for form in CALL_FORMATS if all(sign in template for sign in form.signs)), None
        )
        marks = [mark for form in REASONING_FORMATS for mark in form.marks]
        if self.calls is not None:
            marks += filter(None, [*self.calls.marks, self.calls.end])
        found = {mark: _mark_id(tokenizer, mark) for mark in marks}
        self._ids = {mark: token for mark, token in found.items() if token is not None}
        told = [
            form
            for form in REASONING_FORMATS
            if all(mark in template for mark in (form.close, *form.answer))
        ]
        had = [form for form in REASONING_FORMATS if {*form.marks} <= self._ids.keys()]
        self.reasoning = next(iter([*told, *had]), None)
        self.end_id = None if self.calls is None else self._ids.get(self.calls.end)
        self._written: dict[str, str] = {}
        self.call_tokens = self._tokens(self.calls)
        self.reasoning_tokens = self._tokens(self.reasoning)
        self._spelling = {ord(written): mark for mark, written in self._written.items()}

    def _tokens(self, form: CallFormat | ReasoningFormat | None) -> dict[int, str]:
        tokens = {}
        for mark in () if form is None else form.marks:
            if mark in self._ids:
                self._written[mark] = tokens[self._ids[mark]] = chr(0xD800 + len(self._written))
        return tokens

    def token(self, mark: str) -> int | None:
        """Return the token that a mark is; None if it is spelled with several."""
        return self._ids.get(mark)

    def written(self, text: str) -> str:
        """Return how a text with marks stands where marks are looked for."""
        for mark, written in self._written.items():
            text = text.replace(mark, written)
        return text

    def spelled(self, text: str) -> str:
        """Return a text with its marks spelled out."""
        return text.translate(self._spelling)


class MarkedDecoder:
    """Makes text of ids, with characters that no text has for those that are marks.

    Args:
        decoder: The tokenizer's stream of whole characters.
        tokens: The characters by their ids.
    """

    def __init__(self, decoder: Decoder, tokens: Mapping[int, str]) -> None:
        self._decoder = decoder
        self._tokens = tokens

    def push(self, token: int) -> str:
        """Return the text that became complete with `token`."""
        mark = self._tokens.get(token)
        # No character goes on behind a mark.
        return self._decoder.push(token) if mark is None else self._decoder.finish() + mark

    def finish(self) -> str:
        """Return what was held back."""
        return self._decoder.finish()


def _mark_id(tokenizer: Tokenizer, mark: str) -> int | None:
    """Return the token that a mark is; None if it is spelled with several."""
    ids = tokenizer.encode_pieces([(mark, True)])
    return ids[0] if len(ids) == 1 and tokenizer.token(ids[0]) == mark else None
