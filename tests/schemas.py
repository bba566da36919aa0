"""About 200 JSON schemas: made here, keyword by keyword, and public ones with their definitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from itertools import combinations, product
from typing import Any

Schema = dict[str, Any]


def record(required: int | None = None, /, **properties: Any) -> Schema:
    """Return the schema of an object with these properties alone, the first ones required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:required],
        "additionalProperties": False,
    }


SCALARS: dict[str, Schema] = {
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "string": {"type": "string", "maxLength": 12},
    "constant": {"const": {"a": [1, None, "é"]}},
    "enum": {"enum": ["red", 5, None, [True], 2.5]},
    "words": {"enum": ["north", "north-east", "north east", 'quo"te', "日本", "a\\b\n"]},
    "range": {"type": "integer", "minimum": -7, "maximum": 1234},
    "open range": {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 100},
    "decimal": {"type": "number", "minimum": -0.5, "maximum": 2.75},
    "multiple": {"type": "integer", "minimum": 0, "maximum": 90, "multipleOf": 15},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    "contained": {"type": "string", "pattern": "[0-9]{2}", "maxLength": 8},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
    "e-mail": {"type": "string", "format": "email", "maxLength": 30},
    "host": {"type": "string", "format": "hostname", "maxLength": 30},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "uuid": {"type": "string", "format": "uuid"},
    "types": {"type": ["integer", "null", "boolean"]},
}

ARRAYS: dict[str, Schema] = {
    "empty": {"type": "array", "maxItems": 0},
    "some": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"const": "x"}, {"type": "null"}],
        "items": False,
        "minItems": 3,
    },
    "open tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}],
        "items": {"type": "boolean"},
        "maxItems": 3,
    },
    "matrix": {
        "type": "array",
        "items": {"type": "array", "items": {"enum": [0, 1]}, "minItems": 2, "maxItems": 2},
        "minItems": 2,
        "maxItems": 2,
    },
}

TREE: Schema = {
    "$defs": {
        "tree": record(
            1,
            value={"type": "integer", "minimum": 0, "maximum": 9},
            children={"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
        )
    },
    "$ref": "#/$defs/tree",
}

OBJECTS: dict[str, Schema] = {
    "none": record(),
    "optional": record(0, a={"type": "integer"}, b={"type": "boolean"}, c={"type": "null"}),
    "last optional": record(1, kind={"const": "k"}, note={"type": "string", "maxLength": 4}),
    "keys to escape": record(
        None, **{'a"b': {"type": "null"}, "é": {"type": "null"}, "": {"const": 1}}
    ),
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
    "named keys": {
        "type": "object",
        "patternProperties": {"^[a-z]{1,3}$": {"type": "integer", "maximum": 9, "minimum": 0}},
        "additionalProperties": False,
    },
    "tree": TREE,
    "list": {
        "$defs": {"node": record(1, head={"type": "boolean"}, tail={"$ref": "#/$defs/node"})},
        "$ref": "#/$defs/node",
    },
    "deep": record(a=record(b=record(c=record(d=record(e={"type": "integer"}))))),
    "wide": record(None, **{f"property {i}": {"type": "boolean"} for i in range(40)}),
    "any of": {"anyOf": [record(a={"type": "integer"}), record(b={"type": "null"})]},
    "one of": {"oneOf": [record(kind={"const": "a"}), record(kind={"const": "b"})]},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"a": {"minimum": 5, "maximum": 50}}, "additionalProperties": False},
        ]
    },
}


def made() -> Iterator[tuple[str, Schema]]:
    """Give the schemas made here, by name."""
    everything = {**SCALARS, **ARRAYS, **OBJECTS}
    yield from everything.items()
    for name, schema in SCALARS.items():
        yield f"list of {name}", {"type": "array", "items": schema, "maxItems": 3}
        yield f"optional {name}", record(1, id={"type": "integer", "maximum": 99}, value=schema)
    for (a, one), (b, other) in combinations(list(SCALARS.items())[::2], 2):
        yield f"{a} and {b}", record(first=one, second=other)
    for (a, one), (b, other) in product(list(OBJECTS.items())[:4], list(ARRAYS.items())[:3]):
        if "$ref" not in one:
            yield f"{a} with {b}", record(head=one, tail=other)


def public() -> Iterator[tuple[str, Schema]]:
    """Give schemas that others wrote, which the package check-jsonschema has, by file name."""
    folder = files("check_jsonschema") / "builtin_schemas"
    for place in (folder / "vendor", folder / "custom"):
        for path in sorted(place.iterdir(), key=lambda path: path.name):
            if path.name.endswith(".json"):
                yield path.name, json.loads(path.read_text(encoding="utf-8"))


def definitions(name: str, schema: Schema, most: int) -> Iterator[tuple[str, Schema]]:
    """Give some of a schema's own definitions as schemas of their own."""
    for key in ("$defs", "definitions"):
        for part in list(schema.get(key, {}))[:most]:
            if "/" not in part and "~" not in part and "%" not in part:
                whole = {
                    k: v for k, v in schema.items() if k in ("$defs", "definitions", "$schema")
                }
                yield f"{name}: {part}", {**whole, "$ref": f"#/{key}/{part}"}
