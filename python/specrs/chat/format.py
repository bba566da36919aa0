"""From messages to the ids a model expects, by the chat template in its file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .._specrs import Tokenizer
from ..arguments import checked_bool
from .messages import checked_messages, checked_tools, checked_variables
from .template import Message, render


class ChatTokens(list[int]):
    """The ids of a conversation.

    Attributes:
        continued: Whether what follows goes on with a text, or begins one.
    """

    def __init__(self, ids: Sequence[int], continued: bool) -> None:
        super().__init__(ids)
        self.continued = continued


class ChatFormat:
    """The chat template of a tokenizer, ready for use.

    What stands in a message stays text: if it spells a mark such as ``<|im_end|>``, it reaches the
    model as those characters and never as the token. Warns of what the file says wrongly about its
    marks.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        template = tokenizer.chat_template
        if template is None:
            raise ValueError(
                "the model file has no chat template (tokenizer.chat_template): it may be no chat "
                "model; write the prompt yourself and call generate() with it, or with "
                "tokenize(prompt, parse_special=True) if it contains control tokens"
            )
        for note in tokenizer.notes:
            warnings.warn(f"the model file: {note}", stacklevel=2)
        self._tokenizer = tokenizer
        self._template = template

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
    ) -> ChatTokens:
        """Return the ids of a conversation, up to where the assistant's reply begins or goes on.

        A beginning-of-sequence token is there once if template or file want one, else not at all.
        `Llama.chat_tokens` explains the arguments. Raises TypeError or ValueError for malformed
        ones and TemplateError for the template's refusals.
        """
        continued = checked_bool("continue_final_message", continue_final_message)
        if add_generation_prompt is None:
            add_generation_prompt = not continued
        if checked_bool("add_generation_prompt", add_generation_prompt) and continued:
            raise ValueError(
                "add_generation_prompt and continue_final_message exclude each other: the reply "
                "either begins or goes on"
            )
        tokenizer = self._tokenizer
        pieces = render(
            self._template,
            checked_messages(messages),
            bos_token="" if tokenizer.bos is None else tokenizer.token(tokenizer.bos),
            eos_token="" if tokenizer.eos is None else tokenizer.token(tokenizer.eos),
            tools=checked_tools(tools),
            variables=checked_variables(template_variables),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continued,
        )
        ids = tokenizer.encode_pieces(pieces)
        if tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
            ids.insert(0, tokenizer.bos)
        return ChatTokens(ids, continued)
