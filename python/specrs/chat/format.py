"""From messages to the ids a model expects, by the chat template in its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as shortened
from typing import Any

from .._specrs import Tokenizer
from ..arguments import checked_text
from .template import Message, render

# A noncharacter, which no text for interchange contains: marks where a control token's spelling is
# broken.
_BREAK = "\ufdd0"


class ChatFormat:
    """The chat template of a tokenizer, ready for use.

    What stands in a message stays text: if it spells a control token such as ``<|im_end|>``, it
    reaches the model as those characters and never as the token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        template = tokenizer.chat_template
        if template is None:
            raise ValueError(
                "the model file has no chat template (tokenizer.chat_template): it may be no chat "
                "model; write the prompt yourself and call generate() with it, or with "
                "tokenize(prompt, parse_special=True) if it contains control tokens"
            )
        self._tokenizer = tokenizer
        self._template = template

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation, up to where the assistant's reply begins.

        A beginning-of-sequence token is there once if template or file want one, else not at all.
        Raises TypeError or ValueError for malformed messages and TemplateError for the template's
        refusals.
        """
        check_messages(messages)
        tokenizer = self._tokenizer
        text = render(
            self._template,
            [self._plain_message(i, message) for i, message in enumerate(messages)],
            bos_token="" if tokenizer.bos is None else tokenizer.token(tokenizer.bos),
            eos_token="" if tokenizer.eos is None else tokenizer.token(tokenizer.eos),
        )
        ids: list[int] = []
        for part in text.split(_BREAK):
            ids += tokenizer.encode(part, add_bos=False, parse_special=True)
        if tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
            ids.insert(0, tokenizer.bos)
        return ids

    def _plain_message(self, i: int, message: Message) -> Any:
        """Copy a message with every control token's spelling broken up."""
        where = f"messages[{i}]"
        try:
            return self._as_plain_text(where, message)
        except RecursionError:
            raise ValueError(f"{where} contains itself, or is nested too deeply") from None

    def _as_plain_text(self, where: str, value: Any) -> Any:
        """Copy a part of a message, in the same way."""
        if isinstance(value, str):
            text = checked_text(where, value).replace(_BREAK, "")
            return _BREAK.join(self._tokenizer.without_marks(text))
        if isinstance(value, Mapping):
            return {
                self._as_plain_text(where, key): self._as_plain_text(where, item)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._as_plain_text(where, item) for item in value]
        return value


def check_messages(messages: Sequence[Message]) -> None:
    """Raise TypeError or ValueError unless `messages` is a list of dicts with role and content."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(f"messages must be a list of dicts, not {type(messages).__name__}")
    if not messages:
        raise ValueError('messages is empty; give at least {"role": "user", "content": "..."}')
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"messages[{i}] must be a dict, not {type(message).__name__}")
        if not isinstance(message.get("role"), str):
            raise ValueError(f'messages[{i}] has no "role" such as "user", "assistant" or "system"')
        content = message.get("content", "")
        # A message that only calls tools has no text.
        if content is None and message.get("tool_calls"):
            continue
        if not isinstance(content, (str, list, tuple)):
            raise TypeError(
                f'messages[{i}]["content"] must be text or a list of parts, '
                f"not {shortened(content)}"
            )
