"""Chat templates and the formats of replies: which belongs to which, and there and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reply_cases import ALL_MARKS, REPLIES, SIGNS, Reply, marks_of, read
from specrs.chat.format import _thinks
from specrs.chat.messages import checked_messages, checked_tools
from specrs.chat.template import TemplateError, render
from specrs.completion import ToolCall
from template_cases import TIME, WEATHER
from test_replies import rules_for, template_of

#: Formats of calls and the mark that opens reasoning, by template.
FORMATS = {
    "HuggingFaceTB-SmolLM3-3B": (None, "<think>"),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", None),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", "<think>"),
    "Qwen3-Coder": ("qwen3-coder", None),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (None, "<think>"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (None, "<think>"),
    "google-gemma-2-2b-it": (None, None),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", "<think>"),
    "ibm-granite-granite-4.0": ("hermes", None),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama", None),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama", None),
    "microsoft-Phi-3.5-mini-instruct": (None, None),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "[THINK]"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral-json", None),
    "phi-4-mini": ("phi-4-mini", None),
    "glm-4": ("glm-4", None),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_recognised(name: str) -> None:
    marks = marks_of(template_of(name))
    calls = None if marks.calls is None else marks.calls.name
    reasoning = None if marks.reasoning is None else marks.reasoning.open
    assert (calls, reasoning) == FORMATS[name]
    assert name in REPLIES
    assert not marks.call_tokens
    assert not marks.reasoning_tokens


def test_marks_of_reasoning_may_be_of_the_vocabulary_alone() -> None:
    marks = marks_of("plain", ALL_MARKS)
    assert marks.reasoning is not None
    assert marks.reasoning.open == "<think>"
    assert len(marks.reasoning_tokens) == 2


#: Replies that their template writes in full.
RENDERED = [
    (name, reply)
    for name, replies in REPLIES.items()
    for reply in replies
    if reply.renders and name not in SIGNS
]


@pytest.mark.parametrize(("name", "reply"), RENDERED)
def test_a_reply_put_back_is_what_the_model_wrote(name: str, reply: Reply) -> None:
    """As a message with its calls, and its reasoning, the template writes the same again."""
    template = template_of(name)
    marks = marks_of(template, ALL_MARKS)
    found = read(rules_for(marks, reply), [marks.written(reply.written)])
    message: dict[str, object] = {"role": "assistant", "content": found.text}
    if found.tool_calls:
        message["tool_calls"] = [
            ToolCall(of.id, of.name, of.arguments).as_dict() for of in found.tool_calls
        ]
    if found.reasoning:
        message["reasoning_content"] = found.reasoning
    tools = [WEATHER, TIME] if marks.calls is not None else None
    messages = [{"role": "user", "content": "What is the weather?"}, message]
    try:
        pieces = render(
            template,
            checked_messages(messages),
            bos_token="<s>",
            eos_token="</s>",
            tools=checked_tools(tools),
            add_generation_prompt=False,
        )
    except TemplateError as error:
        assert "only supports single tool-calls" in str(error)  # noqa: PT017
        return
    assert reply.written.strip() in "".join(text for text, _ in pieces)


@pytest.mark.parametrize(
    ("name", "variables", "begun", "wanted"),
    [
        ("Qwen-Qwen3-0.6B", {}, None, None),
        ("Qwen-Qwen3-0.6B", {"enable_thinking": False}, None, False),
        ("HuggingFaceTB-SmolLM3-3B", {}, None, None),
        ("HuggingFaceTB-SmolLM3-3B", {}, "<think>\nHm", True),
        ("HuggingFaceTB-SmolLM3-3B", {}, "<think>\nHm.</think>So", False),
        ("HuggingFaceTB-SmolLM3-3B", {"enable_thinking": False}, None, False),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", {}, None, True),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", {}, None, False),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", {"enable_thinking": True}, None, True),
        ("mistralai-Ministral-3-14B-Reasoning-2512", {}, None, None),
        ("google-gemma-2-2b-it", {}, None, None),
    ],
)
def test_prompts_tell_whether_the_reply_is_reasoning_already(
    name: str, variables: dict[str, Any], begun: str | None, wanted: bool | None
) -> None:
    template = template_of(name)
    messages = [{"role": "user", "content": "Is <think> a mark?"}]
    if begun is not None:
        messages.append({"role": "assistant", "content": begun})
    pieces = render(
        template,
        checked_messages(messages),
        bos_token="<s>",
        eos_token="</s>",
        variables=variables,
        add_generation_prompt=begun is None,
        continue_final_message=begun is not None,
    )
    assert _thinks(marks_of(template).reasoning, pieces, begun is not None) is wanted


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be brief."}]])
def test_tools_stand_in_a_message_where_the_template_reads_them_there(
    system: list[dict[str, str]],
) -> None:
    """As Phi-4-mini's does, which has no variable of that name."""
    template = (
        "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
        "{% if message['tools'] %}<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}{% endfor %}"
    )
    pieces = render(
        template,
        checked_messages([*system, {"role": "user", "content": "Hi"}]),
        bos_token="<s>",
        eos_token="</s>",
        tools=checked_tools([TIME]),
    )
    text = "".join(text for text, _ in pieces)
    brief = "Be brief." if system else ""
    tools = json.dumps([TIME["function"]])
    assert text == f"<|system|>{brief}<|tool|>{tools}<|/tool|><|user|>Hi"
    assert not any(own for text, own in pieces if "get_time" in text)
