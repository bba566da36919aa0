"""Replies as models write them, by template, with what they say; and readers for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from specrs.chat.formats import Marks
from specrs.chat.reading import ReplyReader, ReplyRules
from specrs.chat.tools import schemas_of
from specrs.text import Piece, joined
from template_cases import TIME, WEATHER

SCHEMAS = schemas_of([WEATHER, TIME])

ZURICH = '{"city": "Zürich", "days": 2}'
PARIS = '{"city": "Paris"}'

Call = tuple[str, str]
"""The name of the tool and its arguments."""


@dataclass(frozen=True)
class Reply:
    """A reply.

    Attributes:
        written: What the model wrote.
        text: What of it is text.
        calls: What it calls.
        reasoning: What it thought.
        prompt: The end of the prompt, if it matters.
        ids: Ids of the calls, where the model writes them.
        renders: Whether the template writes the same of a message made of it.
    """

    written: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    prompt: str = ""
    ids: tuple[str, ...] = ()
    renders: bool = True


def hermes(*objects: str) -> str:
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)


WEATHER_OBJECT = '{"name": "get_weather", "arguments": ' + ZURICH + "}"
TIME_OBJECT = '{"name": "get_time", "arguments": {}}'
BOTH = (("get_weather", ZURICH), ("get_time", "{}"))

HERMES = (
    Reply(hermes(WEATHER_OBJECT), calls=BOTH[:1]),
    Reply(hermes(WEATHER_OBJECT, TIME_OBJECT), calls=BOTH),
    Reply("It is <b>warm</b>.\n", text="It is <b>warm</b>.\n"),
    Reply(
        '<tool_call>{"arguments":{"city":"a}\\"<tool_call>"},"name":"get_weather"}</tool_call>\n',
        calls=(("get_weather", '{"city":"a}\\"<tool_call>"}'),),
        renders=False,
    ),
    Reply('<tool_call>{"name": "get_time"}', calls=(("get_time", "{}"),), renders=False),
)
WITH_TEXT = Reply(f"Let me look.\n{hermes(WEATHER_OBJECT)}", text="Let me look.", calls=BOTH[:1])
THOUGHT = Reply(
    f"<think>\nThe weather?\n\nYes.\n</think>\n\n{hermes(WEATHER_OBJECT)}",
    reasoning="The weather?\n\nYes.",
    calls=BOTH[:1],
)
ANSWERED = Reply("<think>\nHm.\n</think>\n\nHello!", reasoning="Hm.", text="Hello!")
OPENED = replace(ANSWERED, written="Hm.\n</think>\n\nHello!", prompt="<think>\n", renders=False)


def xml(name: str, **parameters: str) -> str:
    each = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(each)}</function>\n</tool_call>"


#: Replies by the template that their model has, or by the format where there is no file.
REPLIES: dict[str, tuple[Reply, ...]] = {
    "Qwen-Qwen2.5-7B-Instruct": (*HERMES, WITH_TEXT),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": HERMES,
    "ibm-granite-granite-4.0": (*HERMES, WITH_TEXT),
    "Qwen-Qwen3-0.6B": (
        *(replace(reply, renders=False) for reply in HERMES),  # it writes an empty thought
        THOUGHT,
        ANSWERED,
        Reply("<think>\n\n</think>\n\nHello!", text="Hello!"),
        Reply("<think>\nI wonder", reasoning="I wonder", renders=False),
        Reply("I think </think> is a tag.", text="I think </think> is a tag.", renders=False),
        Reply("Hello <think>", text="Hello <think>", renders=False),
    ),
    "Qwen3-Coder": (
        Reply(xml("get_weather", city="Zürich", days="2"), calls=BOTH[:1]),
        Reply(xml("get_weather", city="Zürich", days="2") + "\n" + xml("get_time"), calls=BOTH),
        Reply(
            "I look.\n\n" + xml("get_weather", city="2", unit='"a"\nb'),
            text="I look.",
            calls=(("get_weather", '{"city": "2", "unit": "\\"a\\"\\nb"}'),),
        ),
    ),
    "HuggingFaceTB-SmolLM3-3B": (replace(ANSWERED, renders=False),),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (
        OPENED,
        Reply("Hm. So", reasoning="Hm. So", prompt="<think>\n", renders=False),
    ),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (
        OPENED,
        Reply("Hello!", text="Hello!", prompt="<think>\n</think>"),
    ),
    "Mistral-Small-3.2-24B-Instruct-2506": (
        Reply(
            f"[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{ZURICH}"
            "[TOOL_CALLS]get_time[CALL_ID]f1b2c3d4e[ARGS]{}",
            calls=BOTH,
            ids=("a1b2c3d4e", "f1b2c3d4e"),
        ),
        Reply("See [1].", text="See [1]."),
        Reply("[TOOL_CALLS]a/b:c.d[ARGS]{}", calls=(("a/b:c.d", "{}"),), renders=False),
    ),
    "mistralai-Ministral-3-14B-Reasoning-2512": (
        Reply(
            f"[THINK]Weather.[/THINK]I look.[TOOL_CALLS]get_weather[ARGS]{ZURICH}"
            "[TOOL_CALLS]get_time[ARGS]{}",
            reasoning="Weather.",
            text="I look.",
            calls=BOTH,
            renders=False,  # it takes reasoning as a part of the content
        ),
        Reply(f"I look.[TOOL_CALLS]get_weather[ARGS]{ZURICH}", text="I look.", calls=BOTH[:1]),
    ),
    "mistralai-Mistral-Nemo-Instruct-2407": (
        Reply(
            f'[TOOL_CALLS][{WEATHER_OBJECT[:-1]}, "id": "a1b2c3d4e"}}, '
            f'{TIME_OBJECT[:-1]}, "id": "f1b2c3d4e"}}]',
            calls=BOTH,
            ids=("a1b2c3d4e", "f1b2c3d4e"),
        ),
        Reply(f"[TOOL_CALLS] [{TIME_OBJECT}]", calls=BOTH[1:], renders=False),
    ),
    "ibm-granite-granite-3.3-2B-Instruct": (
        Reply(f"<|tool_call|>[{WEATHER_OBJECT}, {TIME_OBJECT}]", calls=BOTH, renders=False),
        Reply(f"<|tool_call|> {WEATHER_OBJECT}", calls=BOTH[:1], renders=False),
    ),
    "granite-thinking": (
        Reply(
            "<think>Hm.</think>\n<response>\nHello </b>\n</response>\n",
            reasoning="Hm.",
            text="Hello </b>",
        ),
        Reply("<think>Hm.</think>Hello</response>", reasoning="Hm.", text="Hello</response>"),
        Reply("<think>Hm.</think><response>Hi ", reasoning="Hm.", text="Hi "),
    ),
    "meta-llama-Llama-3.1-8B-Instruct": (
        Reply(
            '{"name": "get_weather", "parameters": ' + ZURICH + "}",
            calls=BOTH[:1],
        ),
        Reply(
            '<|python_tag|>{"name": "get_time", "parameters": {}}; '
            '{"name": "get_weather", "parameters": ' + PARIS + "}",
            calls=(("get_time", "{}"), ("get_weather", PARIS)),
            renders=False,
        ),
        Reply('{"name": "Zoe", "parameters": {}}', text='{"name": "Zoe", "parameters": {}}'),
        Reply('{"name": "get_time"} is it.', text='{"name": "get_time"} is it.'),
        Reply("<|python_tag|>print(1)", text="<|python_tag|>print(1)", renders=False),
    ),
    "meta-llama-Llama-3.2-3B-Instruct": (
        Reply(
            '{"name": "get_weather", "parameters": ' + ZURICH + "}",
            calls=BOTH[:1],
        ),
        Reply('[1, {"name": 2}]', text='[1, {"name": 2}]'),
    ),
    "phi-4-mini": (
        Reply(f"<|tool_call|>[{WEATHER_OBJECT}, {TIME_OBJECT}]<|/tool_call|>", calls=BOTH),
        Reply(f"<|tool_call|>{TIME_OBJECT}<|/tool_call|>", calls=BOTH[1:]),
    ),
    "glm-4": (
        Reply("get_weather\n" + ZURICH, calls=BOTH[:1]),
        Reply("get_time\n{}\nget_weather\n" + PARIS, calls=(BOTH[1], ("get_weather", PARIS))),
        Reply("\nHello\n{}", text="\nHello\n{}"),
        Reply("get_weather is a tool.", text="get_weather is a tool."),
    ),
    "google-gemma-2-2b-it": (Reply(f"<tool_call>{TIME_OBJECT}", f"<tool_call>{TIME_OBJECT}"),),
    "microsoft-Phi-3.5-mini-instruct": (Reply(" Hello\n", text=" Hello\n"),),
}

#: Small templates with the signs of formats that there is no file of.
SIGNS = {
    "granite-thinking": "<think></think><response></response>",
    "phi-4-mini": "{{ tools }}<|tool|><|/tool|><|tool_call|>",
    "glm-4": "[gMASK]<sop>{{ tools }}<|observation|>",
}

#: Every mark of every format.
ALL_MARKS = (
    *("<tool_call>", "</tool_call>", "<|tool_call|>", "<|/tool_call|>", "<|python_tag|>"),
    *("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<think>", "</think>", "[THINK]", "[/THINK]"),
)


class Vocabulary:
    """The part of a tokenizer that tells which marks are tokens."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = list(tokens)

    def encode_pieces(self, pieces: list[tuple[str, bool]]) -> list[int]:
        ((text, _),) = pieces
        return [self._tokens.index(text)] if text in self._tokens else [-1] * len(text)

    def token(self, id_: int) -> str:
        return self._tokens[id_]


def marks_of(template: str, tokens: Iterable[str] = ()) -> Marks:
    """Return the marks of a template where these are tokens."""
    tokenizer: Any = Vocabulary(tokens)
    return Marks(template, tokenizer)


def rules_of(marks: Marks, **changes: Any) -> ReplyRules:
    """Return rules for the tools of all cases."""
    usual: dict[str, Any] = {"tools": SCHEMAS, "call_id": lambda index: f"call{index}"}
    return ReplyRules(marks=marks, **{**usual, **changes})


def read(rules: ReplyRules, pieces: Iterable[str]) -> Piece:
    """Return what a reply that comes in these pieces says; deltas of a call are joined."""
    reader = ReplyReader(rules)
    return joined([*map(reader.feed, pieces), reader.finish()])
