"""Chats with tools and reasoning: alone, in streams, and in batches."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import Run
from fake_engine import toy_llama
from reply_cases import ALL_MARKS
from specrs import Completion, Llama
from specrs.completion import ToolCall
from template_cases import TIME, WEATHER

LETTERS = [chr(code) for code in range(0x20, 0x7F)] + ["\n", "hex:c3", "hex:bc"]
VOCAB = ["<s>", "</s>", *ALL_MARKS, *LETTERS, "<|observation|>"]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments }}</tool_call>"
    "{% endfor %}</s>{% endfor %}"
    "{% if tools %}{{ tools | length }}{% endif %}"
    "{% if add_generation_prompt %}[assistant]{% if thinks %}<think>{% endif %}{% endif %}"
    "{# </think> #}"
)
MESSAGES = [{"role": "user", "content": "weather <tool_call>"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Z\u00fcrich"}}\n</tool_call>'
WRITTEN = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n"

Load = Callable[..., Llama]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Load:
    """Return what loads a toy that replies with a text, whose marks are tokens."""
    counter = itertools.count()

    def loaded(reply: str, prompt: Sequence[Any] = MESSAGES, **options: Any) -> Llama:
        usual = {"vocab": VOCAB, "bos": 0, "eos": 1, "chat_template": TEMPLATE, "n_ctx": 600}
        usual["control"] = [0, 1, *range(2, 2 + len(ALL_MARKS)), len(VOCAB) - 1]
        usual.update(options.pop("settings", {}))
        first = toy_llama(monkeypatch, tmp_path / f"toy{next(counter)}", **usual)
        before = first.chat_tokens(prompt, **options)
        ids = first.tokenizer.encode(reply, add_bos=False, parse_special=True)
        script = {len(before) + place: token for place, token in enumerate([*ids, *[1] * 10])}
        path = tmp_path / f"toy{next(counter)}"
        return toy_llama(monkeypatch, path, script=script, **usual)

    return loaded


def said(out: Completion) -> tuple[Any, ...]:
    return out.text, out.reasoning, [(call.name, call.arguments) for call in out.tool_calls]


def test_text_reasoning_and_calls(load: Load) -> None:
    tools = [WEATHER, TIME]
    llm = load(WRITTEN, tools=tools)
    out = llm.chat(MESSAGES, tools=tools)
    assert said(out) == ("I look.", "Hm.", [("get_weather", '{"city": "Zürich"}')])
    (call,) = out.tool_calls
    assert len(call.id) == 9
    assert call.id.isalnum()
    assert out.finish_reason == "stop"
    assert llm.detokenize(out.tokens[:-1], skip_special_tokens=False) == WRITTEN
    (message,) = [call.as_dict() for call in out.tool_calls]
    assert message["function"] == {"name": "get_weather", "arguments": '{"city": "Zürich"}'}
    values = json.loads(json.dumps(out.as_dict()))
    assert (values["reasoning"], values["tool_calls"]) == ("Hm.", [message])
    assert repr(out).startswith("<Completion 'I look.', ")
    assert "1 tool call" in repr(out)


@pytest.mark.parametrize("draft", [False, True])
def test_streams_and_batches_say_the_same(load: Load, draft: bool) -> None:
    from fake_engine import Scripted

    tools = [WEATHER]
    llm = load(WRITTEN, tools=tools)
    script = [*llm.chat_tokens(MESSAGES, tools=tools)]
    alone = llm.chat(MESSAGES, tools=tools)
    drafter = Scripted([*script, *alone.tokens]) if draft else None
    options: Any = {"tools": tools, "drafter": drafter}
    chunks = list(llm.stream_chat(MESSAGES, **options))
    assert "".join(chunk.text for chunk in chunks) == alone.text
    assert "".join(chunk.reasoning for chunk in chunks) == alone.reasoning
    deltas = [delta for chunk in chunks for delta in chunk.tool_calls]
    assert {(delta.index, delta.id, delta.name) for delta in deltas} == {
        (0, alone.tool_calls[0].id, "get_weather")
    }
    assert "".join(delta.arguments for delta in deltas) == alone.tool_calls[0].arguments
    for chunk in chunks:
        assert "<tool_call>" not in chunk.text
    with llm.batch() as batch:
        requests = [batch.add_chat(MESSAGES, **options) for _ in range(3)]
        for request in requests:
            assert (request.result().tool_calls, said(request.result())) == (
                alone.tool_calls,
                said(alone),
            )
            assert [delta for chunk in request for delta in chunk.tool_calls]
    (many,) = llm.chat_many([MESSAGES], **options)
    assert said(many) == said(alone)


def test_without_tools_calls_stay_text(load: Load) -> None:
    out = load(WRITTEN).chat(MESSAGES)
    assert said(out)[1:] == ("Hm.", [])
    assert '"name": "get_weather"' in out.text
    none = load(WRITTEN, tools=[WEATHER], tool_choice="none")
    assert none.chat(MESSAGES, tools=[WEATHER], tool_choice="none").text == out.text
    assert none.chat_tokens(MESSAGES, tools=[WEATHER], tool_choice="none") == none.chat_tokens(
        MESSAGES
    )


def test_all_that_was_written_can_be_had(load: Load) -> None:
    llm = load(WRITTEN, tools=[WEATHER])
    out = llm.chat(MESSAGES, tools=[WEATHER], skip_special_tokens=False)
    assert (out.text, out.reasoning, out.tool_calls) == (WRITTEN, None, ())


def test_after_one_call_it_may_be_over(load: Load) -> None:
    tools = [WEATHER, TIME]
    llm = load(CALL + CALL + "more", tools=tools)
    both = llm.chat(MESSAGES, tools=tools)
    assert len(both.tool_calls) == 2
    assert both.tool_calls[0].id != both.tool_calls[1].id
    one = llm.chat(MESSAGES, tools=tools, parallel_tool_calls=False)
    assert one.tool_calls == both.tool_calls[:1]
    assert one.finish_reason == "stop"
    assert one.tokens == both.tokens[: len(one.tokens)]
    assert VOCAB[one.tokens[-1]] == "</tool_call>"
    assert one.text == ""


def test_the_prompt_may_open_reasoning(load: Load) -> None:
    options: Any = {"template_variables": {"thinks": True}}
    out = load("Hm.</think>Yes.", **options).chat(MESSAGES, **options)
    assert said(out) == ("Yes.", "Hm.", [])
    begun = [*MESSAGES, {"role": "assistant", "content": "<think>I"}]
    options = {"continue_final_message": True}
    out = load(" see</think> Yes.", begun, **options).chat(begun, **options)
    # What a message spells is never a mark, but what the reply was begun with tells where it is.
    assert said(out) == ("Yes.", " see", [])
    user = [{"role": "user", "content": "<think>"}]
    out = load("Hm.</think>", user).chat(user)
    assert said(out) == ("Hm.</think>", None, [])


def test_what_is_cut_off_stays_text(load: Load) -> None:
    tools = [WEATHER]
    llm = load(WRITTEN, tools=tools)
    whole = llm.chat(MESSAGES, tools=tools)
    for length in range(len(whole.tokens)):
        out = llm.chat(MESSAGES, tools=tools, max_tokens=length)
        written = llm.detokenize(out.tokens, skip_special_tokens=False)
        if "</think>" in written and "</tool" not in written and not out.tool_calls:
            assert out.text == written.partition("</think>")[2].lstrip("\n")
        chunks = list(llm.stream_chat(MESSAGES, tools=tools, max_tokens=length))
        assert "".join(chunk.text for chunk in chunks) == out.text


def test_stops_see_marks(load: Load) -> None:
    tools = [WEATHER]
    settings = {"control": [0, 1]}  # marks that are tokens and text
    llm = load(WRITTEN, tools=tools, settings=settings)
    assert llm.chat(MESSAGES, tools=tools, stop=["</think>"]).reasoning == "Hm.\n"
    out = llm.chat(MESSAGES, tools=tools, stop="\n<tool_call>")
    assert said(out) == ("I look.", "Hm.", [])
    assert out.matched_stop == "\n<tool_call>"  # not as marks stand in the text of a reply
    out = llm.chat(MESSAGES, tools=tools, stop="</tool_call>")
    assert said(out)[2] == [("get_weather", '{"city": "Zürich"}')]


def test_text_is_held_back_for_a_stop_as_before(load: Load) -> None:
    llm = load(WRITTEN, tools=[WEATHER])
    out = llm.chat(MESSAGES, tools=[WEATHER], stop="look")
    assert said(out) == ("I ", "Hm.", [])


def test_a_cancelled_request_gives_what_it_held(load: Load) -> None:
    llm = load("<think>Hm" + "m" * 200)
    with llm.batch() as batch:
        request = batch.add_chat(MESSAGES, max_tokens=100)
        next(iter(request))
        request.cancel()
        out = request.result()
    assert out.text == ""
    assert out.reasoning is None or set(out.reasoning) <= {"H", "m"}


def test_ids_of_calls_are_of_the_prompt_and_the_place(load: Load) -> None:
    tools = [WEATHER]
    llm = load(CALL, tools=tools)
    out = llm.chat(MESSAGES, tools=tools)
    assert llm.chat(MESSAGES, tools=tools).tool_calls == out.tool_calls
    history: list[dict[str, Any]] = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [out.tool_calls[0].as_dict()]},
        {"role": "tool", "content": "warm", "tool_call_id": out.tool_calls[0].id},
    ]
    later = load(CALL, history, tools=tools).chat(history, tools=tools)
    assert later.tool_calls[0].id != out.tool_calls[0].id
    assert isinstance(later.tool_calls[0], ToolCall)


def test_glm_ends_where_it_wants_results(load: Load) -> None:
    template = "[gMASK]{# <|observation|> #}{{ tools | length }}{{ messages[0].content }}"
    settings = {"chat_template": template}
    tools = [TIME]
    llm = load("get_time\n{}<|observation|>sunny", tools=tools, settings=settings)
    assert said(llm.chat(MESSAGES, tools=tools)) == ("", None, [("get_time", "{}")])
    assert "sunny" in load("a<|observation|>sunny", settings=settings).chat(MESSAGES).text


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"tool_choice": "maybe"}, ValueError, "tool_choice must be .*not 'maybe'"),
        ({"tool_choice": 3}, TypeError, "tool_choice must be"),
        ({"tool_choice": {"type": "function"}}, TypeError, "tool_choice must be"),
        ({"tool_choice": {"function": {"name": "x"}}}, ValueError, "among the tools: get_weather"),
        ({"tool_choice": "required", "tools": []}, ValueError, "has no tool"),
        ({"parallel_tool_calls": 1}, TypeError, "parallel_tool_calls"),
        ({"parse_special": True}, TypeError, "unexpected keyword argument 'parse_special'"),
    ],
)
def test_mistakes_are_told(load: Load, options: Any, error: type[Exception], words: str) -> None:
    llm = load("a")
    with pytest.raises(error, match=words):
        llm.chat(MESSAGES, **{"tools": [WEATHER], **options})


def test_marks_of_a_prompt_count_only_on_demand(load: Load) -> None:
    llm = load("a")
    text = "a</s><think>"
    assert llm.generate(text, max_tokens=0).stats.prompt_tokens == len(text)
    assert llm.generate(text, max_tokens=0, parse_special=True).stats.prompt_tokens == 3
    with llm.batch() as batch:
        assert batch.add(text, max_tokens=0, parse_special=True).stats.prompt_tokens == 3
    (out,) = llm.generate_many([text], max_tokens=0, parse_special=True)
    assert out.stats.prompt_tokens == 3


def test_the_command_shows_calls_and_reasoning(toy: Path, run: Run, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([TIME]))
    settings = json.loads(toy.read_text())
    settings["chat_template"] = (
        "{# <tool_call> arguments </think> #}{{ tools | length }}[assistant]"
    )
    reply = '<think>Hm.</think>Yes.\n<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    start = len("1[assistant]")
    script = [settings["vocab"].index(character) for character in reply]
    settings["script"] = {start + place: token for place, token in enumerate([*script, 0])}
    toy.write_text(json.dumps(settings))
    ran = run("generate", toy, "--chat", "-p", "Hi", "--tools", tools)
    text, call = ran.out.splitlines()
    assert (ran.code, text) == (0, "Yes.")
    assert json.loads(call)["function"] == {"name": "get_time", "arguments": "{}"}
    assert ran.err.startswith("Hm.\n")
    ran = run("generate", toy, "--chat", "-p", "Hi", "--tools", tools, "--json")
    result = json.loads(ran.out)
    assert (result["reasoning"], result["tool_calls"]) == ("Hm.", [json.loads(call)])
    several = ("-n", 2, "--temperature", 0.001, "--seed", 1)
    ran = run("generate", toy, "--chat", "-p", "Hi", "--tools", tools, *several)
    assert ran.out.splitlines() == [text, call] * 2
    assert ran.err.count("Hm.\n") == 2


def test_code_of_the_page_runs() -> None:
    """A model that calls the tool once and then answers."""
    page = (Path(__file__).parent.parent / "docs" / "tools.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {}
    exec(block, names)
    seen = []

    def chat(messages: list[Any], **options: Any) -> Any:
        seen.append([message["role"] for message in messages])
        calls = (ToolCall("id", "get_weather", '{"city": "Paris"}'),) if len(seen) == 1 else ()
        return SimpleNamespace(text=messages[-1]["content"], tool_calls=calls)

    assert names["answer"](SimpleNamespace(chat=chat), "?") == "It is warm in Paris."
    assert seen == [["user"], ["user", "assistant", "tool"]]
