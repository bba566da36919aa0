"""Where a call is forced, a grammar of the format and the tools decides what the reply may be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reply_cases import ALL_MARKS, BOTH, REPLIES, TIME_OBJECT, WEATHER_OBJECT, Reply
from specrs import Completion, ForcedTokens, Grammar, Llama, Sampling
from specrs.chat.formats import CALL_FORMATS, CallFormat
from template_cases import TIME, WEATHER
from vocabulary import CONTROL, USER_DEFINED, Vocabulary, bpe

#: Like others, but what it takes is short.
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string", "enum": ["cat", "mä/t", ""]},
                "count": {"type": "integer", "minimum": 0, "maximum": 9},
                "deep": {"$ref": "#/$defs/flags"},
            },
            "required": ["word", "count"],
            "$defs": {"flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
        },
    },
}
TOOLS = [TOOL, TIME]
NAMED: Any = {"type": "function", "function": {"name": "pick"}}
MESSAGES = [{"role": "user", "content": "the cat"}]
ENOUGH = 150  # tokens of a call of these tools

#: Replies that call tools, in the very form of the templates, by the name of the format.
WRITTEN = {
    "qwen3-coder": REPLIES["Qwen3-Coder"][:2],
    "hermes": REPLIES["Qwen-Qwen2.5-7B-Instruct"][:2],
    "mistral": REPLIES["Mistral-Small-3.2-24B-Instruct-2506"][:1],
    "mistral-json": [Reply(f"[TOOL_CALLS][{WEATHER_OBJECT}, {TIME_OBJECT}]", calls=BOTH)],
    "granite": REPLIES["ibm-granite-granite-3.3-2B-Instruct"][:1],
    "phi-4-mini": REPLIES["phi-4-mini"][:1],
    "llama": REPLIES["meta-llama-Llama-3.1-8B-Instruct"][:1],
    "glm-4": REPLIES["glm-4"][:1],
}

Load = Callable[..., Llama]


@pytest.fixture
def load(tiny: Callable[..., Path]) -> Load:
    """Return what loads a random model of a format; its marks are tokens of a type, or text."""

    def loaded(form: CallFormat, kind: int | None = CONTROL, *, end: str = "") -> Llama:
        vocabulary: Vocabulary = bpe()
        if kind is not None:
            vocabulary.tokens += ALL_MARKS
            vocabulary.types += [kind] * len(ALL_MARKS)
        template = f"{{# {' '.join(form.signs)} #}}{{{{ messages[0].content }}}}"
        template += f"{{{{ tools | length }}}}[assistant]{end}"
        path = tiny(tokenizer=vocabulary, chat_template=template, n_ctx=1024)
        return Llama(path, threads=1)

    return loaded


def check_call(name: str, arguments: str) -> None:
    """Check that a call is one of a tool of `TOOLS`, with what it takes."""
    found = json.loads(arguments)
    if name == "get_time":
        assert found == {}
        return
    assert name == "pick"
    assert {"word", "count"} <= {*found} <= {"word", "count", "deep"}
    assert found["word"] in {"cat", "mä/t", ""}
    assert found["count"] in range(10)
    assert isinstance(found.get("deep", []), list)


def drawn(seed: int, **settings: Any) -> Any:
    return {"sampling": Sampling(temperature=1.0, seed=seed, **settings), "max_tokens": ENOUGH}


@pytest.mark.parametrize("kind", [None, CONTROL, USER_DEFINED], ids=["text", "control", "user"])
@pytest.mark.parametrize("form", CALL_FORMATS, ids=lambda form: form.name)
def test_a_forced_reply_always_parses(load: Load, form: CallFormat, kind: int | None) -> None:
    """Alone, in streams and in batches, with drafts and without."""
    llm = load(form, kind, end="<think></think>")
    for seed in range(2):
        options = {"tools": TOOLS, "tool_choice": "required", **drawn(seed)}
        out = llm.chat(MESSAGES, **options)
        assert out.tool_calls
        for call in out.tool_calls[: None if out.finish_reason == "stop" else -1]:
            check_call(call.name, call.arguments)
        assert (out.text, out.reasoning) == ("", None)
        same_as(out, llm, **options)
        one = llm.chat(MESSAGES, **{**options, "tool_choice": NAMED})
        assert one.finish_reason == "stop"
        assert [call.name for call in one.tool_calls] == ["pick"]
        check_call("pick", one.tool_calls[0].arguments)


@pytest.mark.parametrize("kind", [None, CONTROL, USER_DEFINED], ids=["text", "control", "user"])
@pytest.mark.parametrize("form", CALL_FORMATS, ids=lambda form: form.name)
def test_what_models_write_is_allowed(load: Load, form: CallFormat, kind: int | None) -> None:
    llm = load(form, kind, end="<think></think>")
    options: Any = {"tools": [WEATHER, TIME], "tool_choice": "required"}
    grammar = llm.chat_tokens(MESSAGES, **options).grammar
    several = []
    for reply in WRITTEN[form.name]:
        constraint = llm._compiler.compile(grammar, llm.tokenizer.end_ids).begin()
        ids = llm.tokenizer.encode(reply.written, add_bos=False, parse_special=True)
        for token in ids:
            assert constraint.allows(token), (reply.written, llm.tokenizer.token(token))
            constraint.take(token)
        assert constraint.complete or constraint.allows(llm.tokenizer.end_ids[0])
        several.append(len(reply.calls))
    assert max(several) == (1 if form.bare else 2)


def same_as(out: Completion, llm: Llama, **options: Any) -> None:
    """Check that a reply is the same in a stream, with drafts, and in a batch."""
    chunks = list(llm.stream_chat(MESSAGES, **options, drafter=ForcedTokens()))
    assert [token for chunk in chunks for token in chunk.tokens] == out.tokens
    joined: dict[int, str] = {}
    for chunk in chunks:
        for delta in chunk.tool_calls:
            joined[delta.index] = joined.get(delta.index, "") + delta.arguments
    assert list(joined.values()) == [call.arguments for call in out.tool_calls]
    with llm.batch() as batch:
        requests = [batch.add_chat(MESSAGES, **options) for _ in range(2)]
    for request in requests:
        assert request.result().tool_calls == out.tool_calls
        assert request.result().tokens == out.tokens


def form_of(name: str) -> CallFormat:
    return next(form for form in CALL_FORMATS if form.name == name)


def test_arguments_come_as_they_are_written(load: Load) -> None:
    llm = load(form_of("hermes"), end="<think></think>")
    options = {"tools": [WEATHER], "tool_choice": "required", **drawn(1)}
    chunks = list(llm.stream_chat(MESSAGES, **options))
    with_arguments = [chunk for chunk in chunks if any(d.arguments for d in chunk.tool_calls)]
    assert len(with_arguments) > 5
    (first, *_) = [chunk.tool_calls for chunk in chunks if chunk.tool_calls]
    assert first[0].name == "get_weather"


def test_one_call_at_most_without_parallel_calls(load: Load) -> None:
    for name in ("hermes", "granite", "mistral"):
        llm = load(form_of(name), end="<think></think>")
        for seed in range(4):
            options = {"tools": TOOLS, "tool_choice": "required", **drawn(seed)}
            out = llm.chat(MESSAGES, **options, parallel_tool_calls=False)
            assert len(out.tool_calls) == 1
            assert out.finish_reason == "stop"


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED], ids=["control", "user"])
def test_it_may_think_first(load: Load, kind: int) -> None:
    """The model chooses, where the prompt does not say: it is made to choose here."""
    llm = load(form_of("hermes"), kind)
    begin, end = (llm.tokenizer.encode(mark, parse_special=True)[0] for mark in ALL_MARKS[8:10])
    options = {"tools": TOOLS, "tool_choice": NAMED}
    out = llm.chat(MESSAGES, **options, **drawn(1, logit_bias={begin: 5.0, end: 9.0}))
    assert out.reasoning
    assert [call.name for call in out.tool_calls] == ["pick"]
    out = llm.chat(MESSAGES, **options, **drawn(1, logit_bias={begin: -50.0}))
    assert out.reasoning is None
    assert [call.name for call in out.tool_calls] == ["pick"]
    opened = load(form_of("hermes"), kind, end="<think>")
    out = opened.chat(MESSAGES, **options, **drawn(1, logit_bias={end: 4.0}))
    assert out.reasoning
    assert [call.name for call in out.tool_calls] == ["pick"]


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "granite"])
def test_cut_off_calls_keep_what_they_have(load: Load, name: str) -> None:
    llm = load(form_of(name), end="<think></think>")
    options = {"tools": TOOLS, "tool_choice": NAMED, "sampling": Sampling(temperature=1, seed=1)}
    whole = llm.chat(MESSAGES, **options)
    (call,) = whole.tool_calls
    lengths = set()
    for length in range(1, len(whole.tokens)):
        out = llm.chat(MESSAGES, **options, max_tokens=length)
        if out.tool_calls:
            (cut,) = out.tool_calls
            assert call.arguments.startswith(cut.arguments)
            assert (cut.id, cut.name, out.text) == (call.id, call.name, "")
            lengths.add(len(cut.arguments))
    assert len(lengths) > 2


def test_mistakes_are_told(load: Load) -> None:
    llm = load(form_of("hermes"))
    forced: Any = {"tools": TOOLS, "tool_choice": "required"}
    with pytest.raises(ValueError, match="leave grammar= out"):
        llm.chat(MESSAGES, **forced, grammar=Grammar.json())
    with pytest.raises(ValueError, match="begun reply"):
        llm.chat(MESSAGES, **forced, continue_final_message=True)
    bad = {"name": "bad", "parameters": {"type": "object", "contains": {"type": "string"}}}
    with pytest.raises(ValueError, match="cannot force a call of these tools"):
        llm.chat(MESSAGES, tools=[bad], tool_choice="required")
    wrong: list[Any] = ["x", {"type": "string"}, {"properties": []}, {"required": 3}]
    for parameters in wrong:
        bad = {"name": "bad", "parameters": parameters}
        with pytest.raises(ValueError, match="'bad': its parameters must be a JSON schema"):
            llm.chat(MESSAGES, tools=[bad], tool_choice="required")
    odd = [{"name": "a tool"}]
    assert llm.chat_tokens(MESSAGES, tools=odd, tool_choice="required").grammar is not None
    with pytest.raises(ValueError, match="'a tool': as this model"):
        load(form_of("mistral")).chat(MESSAGES, tools=odd, tool_choice="required")
    angle = [{"name": "t", "parameters": {"type": "object", "properties": {"a>b": {}}}}]
    with pytest.raises(ValueError, match="names of parameters have no '>'"):
        load(form_of("qwen3-coder")).chat(MESSAGES, tools=angle, tool_choice="required")
    number: Any = 5
    with pytest.raises(TypeError, match="tool_choice must be"):
        llm.chat(MESSAGES, tool_choice=number)
    other = Llama(llm.path, threads=1)
    other._chat_format._marks.calls = None
    with pytest.raises(ValueError, match="not known of the chat template"):
        other.chat(MESSAGES, **forced)
