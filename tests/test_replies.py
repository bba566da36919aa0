"""Replies are told apart into text, reasoning and calls, however they are cut into pieces."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reply_cases import ALL_MARKS, REPLIES, SIGNS, Reply, marks_of, read, rules_of
from specrs.chat.formats import CALL_FORMATS, Marks
from specrs.chat.parameters import typed
from specrs.chat.reading import ReplyReader
from specrs.text import Piece, ToolCallDelta, joined

FOLDER = Path(os.environ.get("SPECRS_TEMPLATES", Path(__file__).parent / "templates"))

#: What replies are made of that nobody trained a model to write.
FRAGMENTS = (
    *ALL_MARKS,
    *('{"name": "get_time", "arguments": {}}', '{"name": "', '"arguments": {"a": [1, ', "get_time"),
    *("<function=get_time>", "<parameter=city>", "</parameter>", "</function>", "[{", "}]", "}}"),
    *("\n", " ", ";", "{", "}", '"', "\\", "\\u00e", "text", "é🦙", "-1.5e", "null", "[", "]", ","),
)


def template_of(name: str) -> str:
    """Return a template by its name, or skip the test where it is not there."""
    if name in SIGNS:
        return SIGNS[name]
    file = FOLDER / f"{name}.jinja"
    if not file.exists():
        pytest.skip(f"{file} is not there; SPECRS_TEMPLATES names a folder of templates")
    return file.read_text()


CASES = [
    pytest.param(name, reply, id=f"{name}-{number}")
    for name, replies in REPLIES.items()
    for number, reply in enumerate(replies)
]


def said(reply: Reply) -> Piece:
    """Return what a reader has to make of a reply."""
    ids = reply.ids or [f"call{index}" for index in range(len(reply.calls))]
    calls = [
        ToolCallDelta(index, id_, *call)
        for index, (id_, call) in enumerate(zip(ids, reply.calls, strict=True))
    ]
    return Piece(reply.text, reply.reasoning, tuple(calls))


def rules_for(marks: Marks, reply: Reply, **changes: Any) -> Any:
    form = marks.reasoning
    opened = form is not None and reply.prompt.rfind(form.open) > reply.prompt.rfind(form.close)
    return rules_of(marks, thinking=opened, **changes)


@pytest.mark.parametrize("tokens", [(), ALL_MARKS], ids=["spelled", "tokens"])
@pytest.mark.parametrize(("name", "reply"), CASES)
def test_replies_of_released_models(name: str, reply: Reply, tokens: tuple[str, ...]) -> None:
    """Cut in two anywhere, or into characters, a reply says the same."""
    marks = marks_of(template_of(name), tokens)
    rules, written, wanted = rules_for(marks, reply), marks.written(reply.written), said(reply)
    for cut in range(len(written) + 1):
        assert read(rules, [written[:cut], written[cut:]]) == wanted, (written[:cut], cut)
    assert read(rules, written) == wanted
    for call in wanted.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(("name", "reply"), CASES)
def test_calls_that_a_grammar_vouches_for_come_as_they_are_written(name: str, reply: Reply) -> None:
    """All the same in the end; and of arguments nothing is held back but unfinished words."""
    marks = marks_of(template_of(name), ALL_MARKS)
    rules = rules_for(marks, reply, certain=True)
    written = marks.written(reply.written)
    reader = ReplyReader(rules)
    pieces = [*map(reader.feed, written), reader.finish()]
    if '"arguments":{' not in reply.written and '"name": "Zoe"' not in reply.written:
        wanted = said(replace(reply, ids=() if '"id"' in reply.written else reply.ids))
        assert joined(pieces) == wanted
    if marks.calls is not None and marks.calls.body != "xml" and "Zürich" in reply.written:
        deltas = [delta for piece in pieces for delta in piece.tool_calls]
        assert any(delta.arguments == "Z" for delta in deltas)


def test_a_call_comes_when_it_is_whole() -> None:
    """Until then it may be text after all."""
    marks = marks_of("<tool_call> arguments", ALL_MARKS)
    reader = ReplyReader(rules_of(marks))
    body = marks.written('<tool_call>{"name": "get_time", "arguments": {}}')
    assert [reader.feed(character) for character in body] == [Piece()] * len(body)
    (call,) = joined([reader.feed(marks.written("</tool_call>"))]).tool_calls
    assert call == ToolCallDelta(0, "call0", "get_time", "{}")


@pytest.mark.parametrize(
    "written",
    [
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>get_time</tool_call>",
        '<tool_call>{"name": "get_time", "arguments": {"a": }}</tool_call>',
        '<tool_call>{"name": "get_time", "arguments": {}</tool_call>',
        '<tool_call>{"name": "get_time", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "get_time", "arguments": {}, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "get_time", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "get_time", "arguments": {"a": 01}}</tool_call>',
        '<tool_call>{"name": "get_time", "arguments": {"a": "\n"}}</tool_call>',
        '<tool_call>{"name": "get_time", "arguments": {"a": "\\x"}}</tool_call>',
        '<tool_call>{"name": "get_time", "arguments": {"a": 1,}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "get_time", "arguments": {}} and</tool_call>',
        '<tool_call>{"name": "get_time", "arguments": ' + '{"a":' * 200 + "1" + "}" * 201,
        '<tool_call>[{"name": "get_time", "arguments": {}}, 1]</tool_call>',
        "<tool_call>[]</tool_call>",
        '</tool_call> <tool_call {"name": "get_time", "arguments": {}}',
    ],
)
@pytest.mark.parametrize("tokens", [(), ALL_MARKS], ids=["spelled", "tokens"])
def test_malformed_calls_stay_text(written: str, tokens: tuple[str, ...]) -> None:
    marks = marks_of("<tool_call> arguments", tokens)
    text = f"So:\n{written}\n\nWell "
    assert read(rules_of(marks), marks.written(text)) == Piece(text)
    good = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    both = read(rules_of(marks), marks.written(f"{written}\n{good}"))
    if "{" not in written or written.endswith("</tool_call>"):
        assert both == (written, "", (ToolCallDelta(0, "call0", "get_time", "{}"),))


def test_text_that_spells_a_mark_is_no_mark_where_that_is_a_token() -> None:
    marks = marks_of("<tool_call> arguments </think>", ALL_MARKS)
    text = '<think>\n</think>\n<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    assert read(rules_of(marks), text) == Piece(text)
    assert read(rules_of(marks), marks.written(text)).tool_calls


def test_where_no_call_counts_all_is_text() -> None:
    marks = marks_of("<tool_call> arguments", ALL_MARKS)
    text = marks.written('<tool_call>{"name": "get_time", "arguments": {}}</tool_call>')
    assert read(rules_of(marks, tools={}), text) == Piece(marks.spelled(text))


def test_text_that_cannot_be_a_call_is_not_held_back() -> None:
    for form in CALL_FORMATS:
        reader = ReplyReader(rules_of(marks_of(" ".join(form.signs), ALL_MARKS)))
        assert (
            "".join(reader.feed(character).text for character in "你好你好 [a] x")
            == "你好你好 [a] x"
        )


@pytest.mark.parametrize("form", CALL_FORMATS, ids=lambda form: form.name)
def test_after_the_only_call_the_reply_is_over(form: Any) -> None:
    replies = [
        reply
        for name, group in REPLIES.items()
        for reply in group
        if len(reply.calls) > 1 and marks_of(template_of(name)).calls == form
    ]
    assert replies
    for reply in replies:
        marks = marks_of(" ".join(form.signs), ALL_MARKS)
        reader = ReplyReader(rules_of(marks, parallel=False))
        pieces = []
        for character in marks.written(reply.written):
            assert not reader.over
            pieces.append(reader.feed(character))
            if reader.over:
                break
        assert reader.over
        (call,) = joined([*pieces, reader.finish()]).tool_calls
        assert (call.name, call.arguments) == reply.calls[0]


def test_a_begun_reply_goes_on() -> None:
    marks = marks_of(f"{SIGNS['glm-4']}</think>")
    text = "get_time\n{}"
    assert read(rules_of(marks, continued=True), text) == Piece(text)
    thinking = rules_of(marks, continued=True, thinking=True)
    assert read(thinking, " so</think> yes") == Piece("yes", " so")
    assert read(rules_of(marks, continued=True), "<think>") == Piece("<think>")


@settings(deadline=None)
@given(
    form=st.sampled_from(CALL_FORMATS),
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=30),
    cuts=st.lists(st.integers(0, 300), max_size=8),
    tokens=st.booleans(),
    thinking=st.booleans(),
    certain=st.booleans(),
)
def test_any_text_is_read(
    form: Any, fragments: list[str], cuts: list[int], tokens: bool, thinking: bool, certain: bool
) -> None:
    """Nothing crashes, cuts change nothing, and what is no call or reasoning is given back."""
    marks = marks_of(" ".join((*form.signs, "</think>")), ALL_MARKS if tokens else ())
    rules = rules_of(marks, thinking=thinking, certain=certain)
    spelled = "".join(fragments)
    written = marks.written(spelled) if tokens else spelled
    places = sorted({0, len(written), *(cut for cut in cuts if cut < len(written))})
    whole = read(rules, [written])
    assert read(rules, [written[a:b] for a, b in pairwise(places)]) == whole
    assert read(rules, written) == whole
    if not whole.tool_calls and not whole.reasoning and "<think>" not in spelled and not thinking:
        assert whole.text == spelled
    rest = iter(spelled)
    assert all(character in rest for character in whole.text), "nothing but the reply's own text"
    if not certain:
        for call in whole.tool_calls:
            assert isinstance(json.loads(call.arguments), dict)
            if form.body != "xml":
                assert call.arguments in spelled or call.arguments == "{}"


@pytest.mark.parametrize(
    ("value", "schema", "wanted"),
    [
        ("2", {"type": "integer"}, "2"),
        (" 2.5 ", {"type": "number"}, "2.5"),
        ("2", {"type": "string"}, '"2"'),
        ("2", {}, '"2"'),
        ("2", None, '"2"'),
        ("two", {"type": "integer"}, '"two"'),
        ("True", {"type": "boolean"}, "true"),
        ("None", {"type": ["string", "null"]}, "null"),
        ("2", {"type": ["string", "null"]}, '"2"'),
        ("2", {"anyOf": [{"type": "number"}, {"type": "string"}]}, "2"),
        ("[1, {}]", {"type": "array"}, "[1, {}]"),
        ("NaN", {"type": "number"}, '"NaN"'),
        ("2", {"enum": [1, 2]}, "2"),
        ("2", {"enum": ["1", "2"]}, '"2"'),
        ("2", {"const": 2}, "2"),
        ("2", {"type": 7, "anyOf": 3, "enum": "x"}, '"2"'),
    ],
)
def test_types_of_arguments_without_quotes(value: str, schema: Any, wanted: str) -> None:
    assert typed("a", value, {"properties": {"a": schema}}) == f'"a": {wanted}'
