"""Grammars of replies that must call a tool: of a format's marks and the schemas of the tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from re import escape
from reprlib import repr as shortened
from typing import Any

from ..structured.grammar import Grammar
from .formats import NAME, CallFormat, Marks
from .parameters import choices, is_text_only

#: As templates write JSON.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

#: What may stand after reasoning.
_AFTER = r'("\n" "\n"?)?'

#: What a tool without parameters takes.
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def call_grammar(
    marks: Marks, tools: Mapping[str, Any], thinks: bool | None, several: bool
) -> Grammar:
    """Return the grammar of replies that call some of the tools.

    Args:
        marks: Formats and marks of the model.
        tools: Schemas of the arguments, by the names of the tools that may be called.
        thinks: Whether the reply begins with reasoning, which the prompt has opened then; None lets
            the model choose.
        several: Whether there may be several calls.

    Raises ValueError if the template has no known format, or a schema cannot be obeyed.
    """
    form = marks.calls
    if form is None:
        raise ValueError(
            "tool_choice cannot force a call: how replies call tools is not known of the chat "
            "template of this model; leave it at 'auto'"
        )
    for name, schema in tools.items():
        if schema is not None and not _describes_an_object(schema):
            raise ValueError(
                f"tool_choice cannot force a call of {name!r}: its parameters must be a JSON "
                f"schema of an object, not {shortened(schema)}"
            )
        if form.body != "json" and not (name and NAME.fullmatch(name)):
            raise ValueError(
                f"tool_choice cannot force a call of {name!r}: as this model writes calls, a name "
                "has neither white space, quotes nor brackets"
            )
        named = schema.get("properties") if isinstance(schema, dict) else None
        if form.body == "xml" and any(">" in key for key in named or ()):
            raise ValueError(
                f"tool_choice cannot force a call of {name!r}: as this model writes calls, names "
                "of parameters have no '>'"
            )
    rules = "\n".join(_Rules(marks, form).lines(tools, thinks, several))
    try:
        return Grammar.lark(rules)
    except ValueError as error:
        raise ValueError(
            f"tool_choice cannot force a call of these tools, for a schema among them cannot be "
            f"obeyed: {error}"
        ) from None


class _Rules:
    """Writes the rules of one format."""

    def __init__(self, marks: Marks, form: CallFormat) -> None:
        self._marks = marks
        self._form = form

    def lines(self, tools: Mapping[str, Any], thinks: bool | None, several: bool) -> Iterator[str]:
        """Give the rules, a line each."""
        form = self._form
        thought = ""
        if self._marks.reasoning is not None and thinks is not False:
            thought = "thought" if thinks else "thought?"
            yield from self._thought(opened=thinks is True)
        begin = "" if form.bare else self._mark(form.begins[0])
        inside, close = _text(form.inside), self._mark(form.close)
        if form.listed:
            more = '(", " tool)*' if several else ""
            yield f'start: {thought} {begin} "[" tool {more} "]" {close}'
        else:
            more = f"({_text(form.between)} call)*" if several and form.between is not None else ""
            yield f"start: {thought} call {more}"
            yield f"call: {begin} {inside} tool {inside} {close}"
        yield f"tool: {' | '.join(f'tool_{i}' for i in range(len(tools)))}"
        for i, (name, schema) in enumerate(tools.items()):
            yield from self._tool(i, name, _closed(schema))

    def _tool(self, i: int, name: str, schema: Any) -> Iterator[str]:
        form = self._form
        if form.body == "xml":
            yield from _xml(i, name, schema)
            return
        if form.body == "json":
            head = f'{{"name": {_quoted(name)}, "{form.key}": '
            yield f'tool_{i}: {_text(head)} arguments_{i} "}}"'
        else:
            id_, arguments = form.named
            id_ = f"({self._mark(id_)} /[a-zA-Z0-9]{{9}}/)? " if id_ else ""
            yield f"tool_{i}: {_text(name)} {id_}{self._mark(arguments)} arguments_{i}"
        yield f"arguments_{i}: {_json(schema)}"

    def _thought(self, opened: bool) -> Iterator[str]:
        form = self._marks.reasoning
        assert form is not None
        begin = "" if opened else self._mark(form.open)
        if self._marks.token(form.close) is None:
            yield f"thought: {begin} thinking {_AFTER}"
            yield f"thinking[suffix={_text(form.close)}]: /(?s:.*)/"
        else:
            # A mark may be text as well: as such it would not end this.
            close = escape(form.close).replace("/", r"\/")
            yield f"thought: {begin} THINKING {self._mark(form.close)} {_AFTER}"
            yield f"THINKING: /(?s:.*)/ & ~/(?s:.*){close}(?s:.*)/"

    def _mark(self, mark: str) -> str:
        token = self._marks.token(mark)
        return _text(mark) if token is None else f"<[{token}]>"


def _xml(i: int, name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Give the rules of a tool whose parameters are elements, in the order of the schema."""
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    parts = []
    for n, (key, of) in enumerate(schema.get("properties", {}).items()):
        part, value = f"parameter_{i}_{n}", f"value_{i}_{n}"
        parts.append(part if key in schema.get("required", []) else f"{part}?")
        begin, end = _text(f"<parameter={key}>\n"), _text("\n</parameter>\n")
        if not is_text_only(of):
            yield f"{part}: {begin} {value} {end}"
            yield f"{value}: {_json({**of, **shared})}"
        elif values := choices(of):
            yield f"{part}: {begin} ({' | '.join(map(_quoted, values))}) {end}"
        else:
            yield f"{part}: {begin} {value}"
            yield f"{value}[suffix={end}]: /(?s:.*)/"
    head = _text(f"<function={name}>\n")
    yield f'tool_{i}: {head} {" ".join(parts)} "</function>"'


def _describes_an_object(schema: Any) -> bool:
    return (
        isinstance(schema, dict)
        and schema.get("type", "object") == "object"
        and isinstance(schema.get("properties", {}), dict)
        and isinstance(schema.get("required", []), list)
    )


def _closed(schema: dict[str, Any] | None) -> dict[str, Any]:
    """Return the schema of all arguments, without any that it does not name."""
    if not schema:
        return _NOTHING
    schema = {"type": "object", **schema}
    if "properties" in schema and not {"additionalProperties", "patternProperties"} & {*schema}:
        return {**schema, "additionalProperties": False}
    return schema


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _SPACING})}"


def _text(text: str) -> str:
    """Return a text as rules quote it; nothing if it is empty."""
    return _quoted(text) if text else ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
