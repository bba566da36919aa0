"""What a text must be like: the parameters `response_format` and `json_schema`."""

from __future__ import annotations

from typing import Any

import msgspec

import specrs

from .errors import invalid, not_offered
from .parameters import Common
from .settings import SCHEMA_BYTES, SCHEMA_DEPTH

FORMATS = ("text", "json_object", "json_schema")


def grammar_of(body: Common) -> specrs.Grammar | None:
    """Return the grammar that a text is held to; None if it is free.

    It takes its time: schemas are compiled.
    """
    if body.json_schema is not None:
        return _of_schema(body.json_schema, "json_schema")
    wanted = body.response_format
    if wanted is None:
        return None
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":  # llama.cpp's may have a schema as well
        schema = wanted.get("schema", {"type": "object"})
    elif kind == "json_schema":
        described = wanted.get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else None
    else:
        raise invalid(
            f"response_format: type must be one of {', '.join(FORMATS)}, not {kind!r}",
            "response_format",
        )
    return _of_schema(schema, "response_format")


def _of_schema(schema: Any, param: str) -> specrs.Grammar:
    if not isinstance(schema, dict):
        raise invalid(f"{param}: the schema must be an object", param)
    size, depth = len(msgspec.json.encode(schema)), _depth(schema)
    if size > SCHEMA_BYTES:
        raise invalid(f"{param}: a schema may have {SCHEMA_BYTES} bytes, not {size}", param)
    if depth > SCHEMA_DEPTH:
        raise invalid(f"{param}: a schema may be nested {SCHEMA_DEPTH} deep", param)
    try:
        return specrs.Grammar.json_schema(schema)
    except ModuleNotFoundError as error:
        raise not_offered(str(error), param) from None
    except (TypeError, ValueError) as error:
        raise invalid(f"{param}: {error}", param) from None


def _depth(value: Any) -> int:
    """Return how deep JSON is nested, at most one more than is allowed."""
    level, depth = [value], 0
    while level and depth <= SCHEMA_DEPTH:
        depth += 1
        level = [
            part
            for one in level
            for part in (one.values() if isinstance(one, dict) else one)
            if isinstance(part, (dict, list))
        ]
    return depth
