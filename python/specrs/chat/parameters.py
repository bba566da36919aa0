"""Arguments that models write without quotes: what they are follows from the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

#: How Python says what JSON says otherwise; templates write values so.
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def typed(name: str, value: str, schema: Any) -> str:
    """Return an argument as JSON has it, with its name.

    Args:
        name: The parameter's.
        value: What the model wrote.
        schema: Of all arguments. A value stays text where this allows text alone or says nothing;
            where text is one of several types, also if it is none of the others; and where it is
            no JSON.
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    of = properties.get(name) if isinstance(properties, dict) else None
    wanted = set(_types(of))
    text = json.dumps(value, ensure_ascii=False)
    if not is_text_only(of):
        written = _PYTHON.get(value.strip(), value.strip())
        try:
            found = json.loads(written, parse_constant=_refuse)
        except (ValueError, RecursionError):
            pass
        else:
            if "string" not in wanted or wanted & {_type_of(found), _wider(found)}:
                text = written
    return f"{json.dumps(name, ensure_ascii=False)}: {text}"


def is_text_only(schema: Any) -> bool:
    """Whether the schema of a parameter allows text alone, or does not say."""
    return not set(_types(schema)) - {"string"}


def choices(schema: Any) -> list[Any]:
    """Return the only values that the schema of a parameter allows, if it lists them."""
    if not isinstance(schema, dict):
        return []
    return [schema["const"]] if "const" in schema else _listed(schema.get("enum"))


def _types(schema: Any) -> Iterator[str]:
    """Name the types that a schema allows, as far as it says."""
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    yield from [kind] if isinstance(kind, str) else map(str, _listed(kind))
    for key in ("anyOf", "oneOf"):
        for choice in _listed(schema.get(key)):
            yield from _types(choice)
    yield from map(_type_of, choices(schema))


def _listed(value: Any) -> list[Any]:
    """Return a list of a schema; none where something else stands in its place."""
    return value if isinstance(value, list) else []


def _wider(value: Any) -> str:
    return "number" if _type_of(value) == "integer" else _type_of(value)


def _type_of(value: Any) -> str:
    """Name the type that JSON schema has for a value."""
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
