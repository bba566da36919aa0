"""Calls of tools, reasoning and schemas over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from fake_engine import toy_llama
from http_server import Running, running
from reply_cases import ALL_MARKS
from template_cases import TIME, WEATHER

pytestmark = pytest.mark.once

CHAT = "/v1/chat/completions"
MESSAGES: Any = [{"role": "user", "content": "weather <tool_call>"}]
LETTERS = [chr(code) for code in range(0x20, 0x7F)] + ["\n"]
VOCAB = ["<s>", "</s>", *ALL_MARKS, *LETTERS]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments }}</tool_call>"
    "{% endfor %}</s>{% endfor %}"
    "{% if tools %}{{ tools | length }}{% endif %}"
    "{% if add_generation_prompt %}assistant: {% endif %}{# <think> </think> #}"
)
CALLS = [("get_weather", '{"city": "Bern"}'), ("get_time", '{"zone": "CET"}')]
WRITTEN = "<think>\nHm.\n</think>\n\nI look.\n" + "\n".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    for name, arguments in CALLS
)
TOOLS: Any = [WEATHER, TIME]

Serve = Callable[..., Any]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serve:
    """Return what serves a toy that replies with a text, whose marks are tokens."""

    @contextmanager
    def served(reply: str, **options: Any) -> Iterator[Running]:
        settings: dict[str, Any] = {"vocab": VOCAB, "bos": 0, "eos": 1, "n_ctx": 900}
        settings["control"] = list(range(2 + len(ALL_MARKS)))
        settings["chat_template"] = TEMPLATE
        llm = toy_llama(monkeypatch, tmp_path / "first", **settings)
        begin = len(llm.chat_tokens(MESSAGES, **options))
        ids = llm.tokenizer.encode(reply, add_bos=False, parse_special=True)
        script = {begin + place: token for place, token in enumerate([*ids, 1, 1])}
        toy_llama(monkeypatch, tmp_path / "toy", script=script, **settings)
        with running(tmp_path / "toy") as server:
            yield server

    return served


def test_calls_and_reasoning(serve: Serve) -> None:
    with serve(WRITTEN, tools=TOOLS) as server:
        body = {"messages": MESSAGES, "temperature": 0, "tools": TOOLS}
        choice = server.chat(**body)["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        message = choice["message"]
        assert message["content"] == "I look."
        assert message["reasoning_content"] == "Hm."
        made = [(call["type"], *call["function"].values()) for call in message["tool_calls"]]
        assert made == [("function", name, arguments) for name, arguments in CALLS]
        assert len({call["id"] for call in message["tool_calls"]}) == 2
        deltas = [event["choices"][0] for event in server.events(CHAT, **body)]
        assert deltas[-1]["finish_reason"] == "tool_calls"
        parts = [delta["delta"] for delta in deltas]
        assert "".join(part.get("reasoning_content") or "" for part in parts) == "Hm."
        assert "".join(part.get("content") or "" for part in parts) == "I look."
        calls: list[dict[str, Any]] = []
        for part in parts:
            for call in part.get("tool_calls", ()):
                if call["index"] == len(calls):
                    assert call["type"] == "function"
                    assert call["function"]["arguments"] == ""
                    calls.append({"id": call["id"], **call["function"]})
                else:
                    assert call.keys() == {"index", "function"}
                    calls[call["index"]]["arguments"] += call["function"]["arguments"]
        assert calls == [{"id": c["id"], **c["function"]} for c in message["tool_calls"]]
        with (
            openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client,
            client.chat.completions.stream(
                model="tiny", messages=MESSAGES, tools=TOOLS, temperature=0
            ) as stream,
        ):
            found = stream.get_final_completion().choices[0].message
        assert found.tool_calls is not None
        assert [call.function.arguments for call in found.tool_calls] == [a for _, a in CALLS]


def test_one_call_or_none(serve: Serve) -> None:
    with serve(WRITTEN, tools=TOOLS) as server:
        body = {"messages": MESSAGES, "temperature": 0, "tools": TOOLS}
        message = server.chat(**body, parallel_tool_calls=False)["choices"][0]["message"]
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather"]
    with serve(WRITTEN) as server:
        choice = server.chat(**body, tool_choice="none")["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert "tool_calls" not in choice["message"]
        assert "get_weather" in choice["message"]["content"]


def test_log_probabilities_beside_calls(serve: Serve) -> None:
    with serve(WRITTEN, tools=TOOLS) as server:
        body = {"messages": MESSAGES, "temperature": 0, "tools": TOOLS, "logprobs": True}
        content = server.chat(**body)["choices"][0]["logprobs"]["content"]
        assert "".join(one["token"] for one in content) == WRITTEN + "</s>"
        streamed = [
            one
            for event in server.events(CHAT, **body)
            for one in (event["choices"][0]["logprobs"] or {"content": []})["content"]
        ]
        assert streamed == content


@pytest.mark.parametrize(
    ("choice", "names", "reason"),
    [
        ("required", {"get_weather", "get_time"}, "tool_calls"),
        ({"type": "function", "function": {"name": "get_time"}}, {"get_time"}, "stop"),
    ],
)
def test_a_call_can_be_forced(serve: Serve, choice: Any, names: set[str], reason: str) -> None:
    with serve("no") as server:
        whole = 0
        for seed in range(8):
            body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "seed": seed}
            reply = server.chat(**body, parallel_tool_calls=False)["choices"][0]
            if reply["finish_reason"] == "length":
                continue  # a toy may never end a text
            assert reply["finish_reason"] == reason
            (call,) = reply["message"]["tool_calls"]
            assert call["function"]["name"] in names
            json.loads(call["function"]["arguments"])
            whole += 1
        assert whole


@pytest.mark.parametrize(
    ("param", "more"),
    [
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": "sometimes"}),
        (
            "tool_choice",
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
        ),
        ("response_format", {"tools": TOOLS, "response_format": {"type": "json_object"}}),
        ("response_format", {"response_format": {"type": "json_object", "schema": 1}}),
        ("response_format", {"response_format": {"type": "json_schema"}}),
        (
            "response_format",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
        ),
        ("json_schema", {"json_schema": {"type": "hiccup"}}),
        ("json_schema", {"json_schema": {"enum": ["x" * 70_000]}}),
    ],
)
def test_what_cannot_be_obeyed_is_refused(serve: Serve, param: str, more: Any) -> None:
    with serve("no") as server:
        assert server.error(CHAT, {"messages": MESSAGES, **more}, 400)["param"] == param
        deep: Any = {}
        for _ in range(100):
            deep = {"properties": {"a": deep}}
        error = server.error(CHAT, {"messages": MESSAGES, "json_schema": deep}, 400)
        assert error["param"] == "json_schema"


SCHEMA: Any = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Basel"]},
        "warm": {"type": "boolean"},
        "days": {"type": "array", "items": {"type": "integer", "maximum": 9}, "maxItems": 3},
    },
    "required": ["city", "warm", "days"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("drafts", ["off", "auto"])
def test_replies_obey_a_schema(tiny: Callable[..., Path], drafts: str) -> None:
    with running(tiny()) as server:
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        for seed in range(4):
            body = {"messages": MESSAGES, "response_format": wanted, "seed": seed}
            choice = server.chat(**body, speculation=drafts)["choices"][0]
            assert choice["finish_reason"] == "stop"
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
            events = server.events(CHAT, **body, speculation="off")
            text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
            assert text == choice["message"]["content"]
        reply = server.text(prompt="x", response_format=wanted, max_tokens=200)
        jsonschema.validate(json.loads(reply["choices"][0]["text"]), SCHEMA)
        reply = server.chat(messages=MESSAGES, response_format={"type": "json_object"})
        assert reply["choices"][0]["message"]["content"].startswith("{")
