"""Checks of conversations, and their copy as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as shortened
from typing import Any

from ..arguments import checked_text

# Parts of a content that are text; some templates know parts of reasoning.
TEXT_PARTS = frozenset({"text", "thinking"})

# Variables of a template that other arguments or the file decide.
FIXED_VARIABLES = {
    "messages": "it is the first argument",
    "tools": "give them as tools=",
    "add_generation_prompt": "give it as add_generation_prompt=",
    "bos_token": "the model file has it",
    "eos_token": "the model file has it",
}


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Return `messages` as plain data; TypeError or ValueError unless they are messages."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(f"messages must be a list of dicts, not {type(messages).__name__}")
    if not messages:
        raise ValueError('messages is empty; give at least {"role": "user", "content": "..."}')
    return [_checked_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def checked_tools(tools: Any) -> list[Any] | None:
    """Return `tools` as plain data; TypeError or ValueError unless they describe tools."""
    if tools is None:
        return None
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence):
        raise TypeError(f"tools must be a list of dicts, not {type(tools).__name__}")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise TypeError(
                f"tools[{i}] must be a dict that describes a function as JSON schema does, "
                f"not {shortened(tool)}"
            )
    return list(plain("tools", tools))


def checked_variables(variables: Any) -> dict[str, Any]:
    """Return variables of a template as plain data; TypeError or ValueError for anything else."""
    if variables is None:
        return {}
    if not isinstance(variables, Mapping):
        raise TypeError(f"template_variables must be a dict, not {type(variables).__name__}")
    for name, why in FIXED_VARIABLES.items():
        if name in variables:
            raise ValueError(f"template_variables must not contain {name!r}: {why}")
    return dict(plain("template_variables", variables))


def plain(where: str, value: Any) -> Any:
    """Copy `value`, of which everything must be such as JSON has."""
    try:
        return _plain(where, value)
    except RecursionError:
        raise ValueError(f"{where} contains itself, or is nested too deeply") from None


def _plain(where: str, value: Any) -> Any:
    if isinstance(value, str):
        return str(checked_text(where, value))
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        copy = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {shortened(key)}; keys must be text")
            copy[checked_text(where, key)] = _plain(where, item)
        return copy
    if isinstance(value, (list, tuple)):
        return [_plain(where, item) for item in value]
    raise TypeError(
        f"{where} contains {shortened(value)}; only dicts, lists, text, numbers, True, False and "
        "None can be given to a template"
    )


def _checked_message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TypeError(f"{where} must be a dict, not {type(message).__name__}")
    if not isinstance(message.get("role"), str):
        raise ValueError(f'{where} has no "role" such as "user", "assistant" or "system"')
    content = message.get("content", "")
    # A message that only calls tools has no text.
    is_call = content is None and message.get("tool_calls")
    if not is_call and not isinstance(content, (str, list, tuple)):
        raise TypeError(
            f'{where}["content"] must be text or a list of parts, not {shortened(content)}'
        )
    copy = dict(plain(where, message))
    if isinstance(copy.get("content"), list):
        for i, part in enumerate(copy["content"]):
            _check_part(f'{where}["content"][{i}]', part)
    return copy


def _check_part(where: str, part: Any) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise TypeError(
            f'{where} must be a part such as {{"type": "text", "text": "..."}}, '
            f"not {shortened(part)}"
        )
    if kind not in TEXT_PARTS:
        raise ValueError(f"{where} is a part of type {kind!r}; this engine takes text only")
    if kind == "text" and not isinstance(part.get("text"), str):
        raise TypeError(f'{where}["text"] must be text, not {shortened(part.get("text"))}')
