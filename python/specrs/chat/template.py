"""What a chat template makes of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .process import TemplateError as TemplateError
from .process import renderer

Message = Mapping[str, Any]


def render(
    template: str,
    messages: Sequence[Message],
    *,
    bos_token: str,
    eos_token: str,
    tools: Sequence[Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> list[tuple[str, bool]]:
    """Render a Hugging Face chat template in a process of its own, in 2 s and 256 MiB at most.

    Memory is bounded where the system can do it, which is on Linux; time everywhere.

    Args:
        template: Its source.
        messages: What `checked_messages` gives.
        bos_token: Spelling of the mark at the beginning of texts.
        eos_token: And of that at their end.
        tools: Descriptions of tools, as JSON has them.
        variables: More variables of the template.
        add_generation_prompt: Whether the beginning of a reply follows.
        continue_final_message: Whether the text ends within the last message, for the reply to go
            on with it.

    Returns the text in pieces, each with whether it is the template's own; all others came from
    messages, tools or variables. Raises TemplateError when the template is faulty, takes too much,
    or raises by itself, and ValueError for variables that it does not read.
    """
    answer = renderer.ask(
        {
            "template": template,
            "messages": messages,
            "tools": tools,
            "variables": variables or {},
            "continued": continue_final_message,
            "fixed": {
                "bos_token": bos_token,
                "eos_token": eos_token,
                "add_generation_prompt": add_generation_prompt,
            },
        }
    )
    if "refused" in answer:
        raise TemplateError(answer["refused"])
    if "failed" in answer:
        raise TemplateError(f"the chat template failed: {answer['failed']}")
    if "unused" in answer:
        raise ValueError(
            f"the chat template of this model does not use {', '.join(answer['unused'])}; the "
            f"variables that it reads are {', '.join(answer['read']) or 'none'}"
        )
    return [(text, own) for text, own in answer["pieces"]]
