"""Grammars as values: how they are made, what they refuse, and what they say of themselves."""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import pytest

from specrs import Grammar

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


def test_a_schema_may_be_a_dict_a_text_or_a_model_class() -> None:
    from pydantic import BaseModel

    class Point(BaseModel):
        x: int
        y: int

    grammar = Grammar.json_schema(POINT)
    assert grammar == Grammar.json_schema(json.dumps(POINT, indent=2))
    described = json.loads(Grammar.json_schema(Point).source)
    assert list(described["properties"]) == ["x", "y"]
    assert Grammar.json_schema(True) == Grammar.json_schema({})


def test_a_grammar_is_a_value() -> None:
    grammars = [
        Grammar.json_schema(POINT),
        Grammar.json_schema(POINT, compact=False),
        Grammar.json(),
        Grammar.regex("[0-9]+"),
        Grammar.lark('start: "a" | "b"'),
    ]
    assert len({*grammars}) == len(grammars)
    for grammar in grammars:
        copied = pickle.loads(pickle.dumps(grammar))
        assert copied == grammar
        assert hash(copied) == hash(grammar)
        assert repr(copied) == repr(grammar)
    with pytest.raises(AttributeError, match="cannot assign"):
        grammars[0].source = "{}"  # type: ignore[misc]


def test_its_repr_tells_it_apart_and_stays_short() -> None:
    assert repr(Grammar.regex("a+")) == "Grammar.regex('a+')"
    assert repr(Grammar.json(compact=False)) == (
        'Grammar.json_schema(\'{"type":"object"}\', compact=False)'
    )
    long = [Grammar.regex("a" * 300 + end) for end in "bc"]
    assert len({*map(repr, long)}) == 2
    assert all(len(repr(grammar)) < 200 for grammar in long)


@pytest.mark.parametrize(
    ("make", "argument", "error", "words"),
    [
        (Grammar.json_schema, 5, TypeError, "schema must be a dict, JSON text or a pydantic"),
        (Grammar.json_schema, int, TypeError, "schema must be a dict"),
        (Grammar.json_schema, "[1]", TypeError, "schema must be a dict"),
        (Grammar.json_schema, "{", ValueError, "the JSON schema is no JSON: .* column"),
        (Grammar.json_schema, {"a": object()}, TypeError, "must be a dict.* not {'a'"),
        (Grammar.json_schema, {"minimum": float("nan")}, ValueError, "not JSON compliant"),
        (Grammar.json_schema, {"type": "thing"}, ValueError, "schema cannot be compiled: .*thing"),
        (Grammar.json_schema, {"type": 5}, ValueError, "cannot be compiled"),
        (Grammar.json_schema, False, ValueError, "cannot be compiled"),
        (Grammar.json_schema, {"$ref": "#/$defs/x"}, ValueError, "cannot be compiled"),
        (Grammar.json_schema, {"$ref": "https://example.com/x"}, ValueError, "cannot be compiled"),
        (Grammar.json_schema, {"type": "string", "contains": 1}, ValueError, "contains"),
        (Grammar.json_schema, {"pattern": "(?=a)", "type": "string"}, ValueError, "look"),
        (Grammar.json_schema, {"const": "\ud800"}, ValueError, "cannot be compiled: .*escape"),
        (Grammar.json_schema, "\ud800", ValueError, "schema is no valid Unicode"),
        (Grammar.regex, "(a", ValueError, "regular expression cannot be compiled: .*unclosed"),
        (Grammar.regex, r"(a)\1", ValueError, "backreference"),
        (Grammar.regex, 5, TypeError, "pattern must be text, not 5"),
        (Grammar.lark, "begin: /a/", ValueError, "Lark grammar cannot be compiled: .*start"),
        (Grammar.lark, "start: thing", ValueError, "thing"),
        (Grammar.lark, "start: (", ValueError, "cannot be compiled"),
        (Grammar.lark, None, TypeError, "rules must be text, not None"),
    ],
)
def test_what_is_no_grammar_is_refused_at_once(
    make: Any, argument: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make(argument)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def cyclic() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    return schema


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(count)}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (lambda: nested(500), "cannot be compiled"),
        (lambda: nested(100_000), "nested too deeply"),
        (lambda: "[" * 100_000, "nested too deeply"),
        (cyclic, "Circular reference"),
        (lambda: {"enum": ["x" * 1000 + str(i) for i in range(2000)]}, "at most 1048576"),
        (lambda: optional(20_000), "too large"),
        (lambda: {"allOf": [{"$ref": "#"}] * 50, "properties": {"a": {}}}, "cannot be compiled"),
    ],
    ids=["deep", "deeper", "text", "cyclic", "long", "many", "all of"],
)
def test_a_schema_that_explodes_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Grammar.json_schema(schema())


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'specrs\[grammar\]'"):
        Grammar.json()
