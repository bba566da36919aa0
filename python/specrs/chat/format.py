"""From messages to the ids a model expects, by the chat template in its file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .._specrs import Tokenizer
from ..arguments import checked_bool
from .formats import Marks, ReasoningFormat
from .messages import checked_messages, checked_tools, checked_variables
from .reading import ReplyRules
from .template import Message, render
from .tokens import ChatTokens
from .tools import call_ids, checked_choice, schemas_of


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
        self._marks = Marks(template, tokenizer)

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = True,
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
        tokenizer, marks = self._tokenizer, self._marks
        given = checked_tools(tools)
        schemas = schemas_of(given or ())
        choice = checked_choice(tool_choice, schemas)
        parallel = checked_bool("parallel_tool_calls", parallel_tool_calls)
        if choice == "none":
            given, schemas = None, {}
        pieces = render(
            self._template,
            checked_messages(messages),
            bos_token="" if tokenizer.bos is None else tokenizer.token(tokenizer.bos),
            eos_token="" if tokenizer.eos is None else tokenizer.token(tokenizer.eos),
            tools=given,
            variables=checked_variables(template_variables),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continued,
        )
        ids = tokenizer.encode_pieces(pieces)
        if tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
            ids.insert(0, tokenizer.bos)
        thinks = _thinks(marks.reasoning, pieces, continued)
        grammar = None
        if choice not in ("auto", "none"):
            if continued:
                raise ValueError("tool_choice cannot force a call where a begun reply goes on")
            from .forced import call_grammar

            must = schemas if choice == "required" else {choice[1:]: schemas[choice[1:]]}
            grammar = call_grammar(marks, must, thinks, parallel and choice == "required")
        rules = ReplyRules(
            marks=marks,
            tools=schemas,
            thinking=thinks is True,
            continued=continued,
            parallel=parallel,
            certain=grammar is not None,
            call_id=call_ids(ids),
        )
        return ChatTokens(ids, continued, rules, grammar)


def _thinks(
    form: ReasoningFormat | None, pieces: Sequence[tuple[str, bool]], continued: bool
) -> bool | None:
    """Whether a prompt ends within reasoning, or after it; None if the reply has not begun so."""
    if form is None:
        return None
    # A begun reply is the last piece, and the template's beginning of it the one before.
    last = pieces[-2:] if continued else pieces[-1:]
    end = "".join(text for text, own in last if own or continued)
    opened, closed = end.rfind(form.open), end.rfind(form.close)
    return None if opened == closed else opened > closed
