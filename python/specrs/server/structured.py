"""What a text must be like: the parameters `response_format`, `tools` and `tool_choice`."""

from __future__ import annotations

from typing import Any

from .errors import invalid, not_offered
from .parameters import Chat, Common


def grammar_of(body: Common) -> dict[str, Any]:
    """Return the options of `Batch.add` that hold a text to `response_format`."""
    wanted = body.response_format
    if wanted is None:
        return {}
    kind = wanted.get("type")
    if kind == "text":
        return {}
    if kind in ("json_object", "json_schema"):
        raise not_offered(
            f"response_format: this version has no grammars, so it cannot promise {kind}",
            "response_format",
        )
    raise invalid(
        f"response_format: type must be text, json_object or json_schema, not {kind!r}",
        "response_format",
    )


def check_tools(body: Chat) -> None:
    """Raise ApiError for tools that the reply might call: nothing reads calls from it yet."""
    if body.tools and body.tool_choice != "none":
        raise not_offered("tools: this version does not read calls from replies", "tools")
    if body.tool_choice not in (None, "none", "auto"):
        raise invalid("tool_choice needs tools", "tool_choice")
