"""From a conversation as JSON has it to text in pieces, each the template's own or a message's."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from .origin import (
    CONTINUED,
    MESSAGE,
    Arguments,
    NotTextError,
    Parts,
    Text,
    origin_of,
    tracked,
)
from .sandbox import RefusalError, compiled

# What a template may write by itself, in characters; the conversation may appear in it several
# times. More would only have to be tokenised for nothing.
MOST_OWN = 1 << 20
MOST_COPIES = 8

# How templates that take no `tools` have them with a message.
_TOOLS_OF_A_MESSAGE = "message['tools']"


def render(request: dict[str, Any]) -> dict[str, Any]:
    """Render a conversation.

    Messages are given in the form that the template takes: content in parts or as one text,
    arguments of calls as an object or as JSON text, no content and no tools as None or empty. The
    first form counts for which the template neither fails nor leaves out parts.

    Args:
        request: "template", its source; "messages"; "tools", a list or None; "variables", a dict;
            "continued", whether the last message is to be continued; and other variables of the
            template under "fixed".

    Returns "pieces", a list of text and whether it is the template's own; or "refused", the
    template's words; or "failed", what went wrong; or "unused", names that the template does not
    read.
    """
    try:
        template, names = compiled(request["template"])
    except MemoryError:
        raise
    except Exception as error:
        return {"failed": str(error)}
    if request["tools"] and "tools" not in names and _TOOLS_OF_A_MESSAGE in request["template"]:
        request = _with_tools_in_message(request)
    given = [*request["variables"], *(["tools"] if request["tools"] else [])]
    if unused := [name for name in given if name not in names]:
        return {"unused": unused, "read": sorted(names - {"messages", *request["fixed"]})}
    shown = [part["text"].strip() for part in _text_parts(request["messages"])]
    found: str | None = None
    refusal: RefusalError | None = None
    failure: Exception | None = None
    for variables in _forms(request, "tools" in names):
        try:
            text = template.render(variables)
        except RefusalError as error:
            refusal = refusal or error  # it may take another form
            continue
        except MemoryError:
            raise
        except Exception as error:  # a template can make any operation of Python fail
            if failure is None or isinstance(failure, NotTextError):
                failure = error
            continue
        whole = all(part in text for part in shown)
        if found is None or whole:
            found = text
        if whole:
            break
    if found is None:
        return {"refused": str(refusal)} if refusal else {"failed": str(failure)}
    most = MOST_OWN + MOST_COPIES * len(json.dumps(request["messages"]))
    if len(found) > most:
        return {"failed": f"it writes {len(found)} characters, more than {most}"}
    try:
        found.encode()
    except UnicodeEncodeError as error:
        return {"failed": f"it writes what is no valid Unicode: {error}"}
    origin = origin_of(found)
    if request["continued"]:
        end = origin.rfind(CONTINUED) + 1
        if not end:
            return {"failed": "it leaves out the text of the message that is to be continued"}
        found, origin = found[:end], origin[:end]
    runs = re.finditer(rb"\0+|[^\0]+", origin)
    return {
        "pieces": [
            [str.__getitem__(found, slice(*run.span())), run[0].startswith(b"\0")] for run in runs
        ]
    }


def _with_tools_in_message(request: dict[str, Any]) -> dict[str, Any]:
    """Move tools to where a template like that of Phi-4-mini reads them: a message of the system.

    There they are the functions alone, as JSON text.
    """
    system, *others = request["messages"]
    if system["role"] != "system":
        system, others = {"role": "system", "content": ""}, request["messages"]
    functions = [tool.get("function", tool) for tool in request["tools"]]
    system = {**system, "tools": json.dumps(functions, ensure_ascii=False)}
    return {**request, "messages": [system, *others], "tools": None}


def _forms(request: dict[str, Any], reads_tools: bool) -> Iterator[dict[str, Any]]:
    """Give the variables in every form that a template might take."""
    messages, tools = request["messages"], request["tools"]
    has_parts = any(isinstance(message.get("content"), list) for message in messages)
    has_calls = any(message.get("tool_calls") for message in messages)
    lacks_content = any(message.get("content", "") is None for message in messages)
    fixed = {"documents": None, **request["fixed"], **tracked(request["variables"])}
    last = len(messages) - 1 if request["continued"] else None
    without_tools: tuple[list[Any] | None, ...] = (None,)
    if reads_tools and tools is None:
        without_tools = (None, [])
    for no_tools, joined, empty, as_json in itertools.product(
        without_tools,
        (False, True) if has_parts else (False,),
        (False, True) if lacks_content else (False,),
        (False, True) if has_calls else (False,),
    ):
        yield {
            **fixed,
            "messages": [
                _message(message, CONTINUED if i == last else MESSAGE, joined, empty, as_json)
                for i, message in enumerate(messages)
            ],
            "tools": no_tools if tools is None else tracked(tools),
        }


def _message(
    message: dict[str, Any], origin: bytes, joined: bool, empty: bool, as_json: bool
) -> dict[str, Any]:
    """Copy a message with its texts tracked, in one of the forms."""
    copy: dict[str, Any] = {}
    for key, value in message.items():
        if key == "content":
            copy[key] = "" if value is None and empty else _content(value, origin, joined)
        elif key == "tool_calls" and isinstance(value, list):
            copy[key] = [_call(call, as_json) for call in value]
        elif key == "role" and re.fullmatch(r"\w+", value):
            copy[key] = value  # a word of which templates make marks, as `'<|' + role + '|>'`
        else:
            copy[key] = tracked(value)
    return copy


def _content(content: Any, origin: bytes, joined: bool) -> Any:
    if not isinstance(content, list):
        return tracked(content, origin)
    if joined:
        texts = [part["text"] for part in content if part["type"] == "text"]
        return tracked("\n".join(texts), origin)
    return Parts(tracked(content, origin))


def _call(call: Any, as_json: bool) -> Any:
    """Copy a call of a tool, whose arguments may stand in it or in its function."""
    if not isinstance(call, dict):
        return tracked(call)
    copy = tracked({key: value for key, value in call.items() if key != "arguments"})
    if isinstance(call.get("function"), dict):
        copy["function"] = _call(call["function"], as_json)
    if "arguments" in call:
        copy["arguments"] = _arguments(call["arguments"], as_json)
    return copy


def _arguments(arguments: Any, as_json: bool) -> Any:
    if as_json:
        is_text = isinstance(arguments, str)
        return Text(arguments if is_text else json.dumps(arguments, ensure_ascii=False))
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except ValueError:
            value = arguments
    return Arguments(tracked(value)) if isinstance(value, dict) else tracked(arguments)


def _text_parts(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if isinstance(message.get("content"), list):
            yield from (part for part in message["content"] if part["type"] == "text")
