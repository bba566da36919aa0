"""Conversations and small templates, for renderings to be compared with those of transformers."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place, today & tomorrow.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "A city, such as Zürich."},
                "days": {"type": "integer", "description": "How many days.", "default": 1},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}},
    },
}
DOCUMENTS = [
    {"title": "Lighthouses", "text": "The tower is 40 m high.", "doc_id": 1},
    {"title": "Ships", "text": "They passed at night.", "doc_id": 2},
]


def _user(text: Any = "How high is the tower? <b>&\n") -> dict[str, Any]:
    return {"role": "user", "content": text}


def _reply(text: str = "It is 40 m high.") -> dict[str, Any]:
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "You answer in one sentence."}
HISTORY = [_user("Hi!"), _reply("Hello. "), _user(" And the ships?")]
THOUGHT = _reply("<think>\nA tower.\n</think>\n\nIt is high.")
REASONED = {**_reply("It is high."), "reasoning_content": "A tower."}
ARGUMENTS = {"city": "Zürich", "days": 2}
CALL: dict[str, Any] = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "get_weather", "arguments": ARGUMENTS},
}
CALL_AS_TEXT = {
    **CALL,
    "function": {"name": "get_weather", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)},
}
RESULT = {
    "role": "tool",
    "tool_call_id": "call12345",
    "name": "get_weather",
    "content": '{"sky": "clear"}',
}


def _called(call: dict[str, Any], content: str | None = "") -> list[dict[str, Any]]:
    reply = {"role": "assistant", "content": content, "tool_calls": [call]}
    return [_user("What is the weather?"), reply, RESULT]


PARTS = [{"type": "text", "text": "How high"}, {"type": "text", "text": "is the tower?"}]

#: Arguments of `ChatFormat.encode`, by name.
CASES: dict[str, dict[str, Any]] = {
    "user": {"messages": [_user()]},
    "system": {"messages": [SYSTEM, _user()]},
    "history": {"messages": HISTORY},
    "system and history": {"messages": [SYSTEM, *HISTORY]},
    "no generation prompt": {"messages": [*HISTORY, _reply()], "add_generation_prompt": False},
    "continued": {"messages": [_user(), _reply("The tower is ")], "continue_final_message": True},
    "continued history": {
        "messages": [SYSTEM, *HISTORY, _reply("They")],
        "continue_final_message": True,
    },
    "two users": {"messages": [_user("a"), _user("b")]},
    "two systems": {"messages": [SYSTEM, SYSTEM, _user("b")]},
    "unknown role": {"messages": [{"role": "narrator", "content": "a"}, _user("b")]},
    "tools": {"messages": [_user()], "tools": [WEATHER]},
    "two tools": {"messages": [SYSTEM, *HISTORY], "tools": [WEATHER, TIME]},
    "call": {"messages": _called(CALL), "tools": [WEATHER]},
    "call in text": {"messages": _called(CALL_AS_TEXT), "tools": [WEATHER]},
    "call without content": {"messages": _called(CALL, None), "tools": [WEATHER]},
    "call without tools": {"messages": _called(CALL)},
    "two calls": {
        "messages": [
            _user("And in Rome?"),
            {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
            RESULT,
            RESULT,
        ],
        "tools": [WEATHER],
    },
    "after a call": {
        "messages": [SYSTEM, *_called(CALL), _reply("It is clear."), _user("Thanks")],
        "tools": [WEATHER],
    },
    "thinking": {"messages": [_user()], "template_variables": {"enable_thinking": True}},
    "no thinking": {"messages": [_user()], "template_variables": {"enable_thinking": False}},
    "thinking in history": {"messages": [_user(), THOUGHT, _user("And now?")]},
    "reasoning in history": {"messages": [_user(), REASONED, _user("And now?")]},
    "thinking at the end": {"messages": [_user(), THOUGHT], "add_generation_prompt": False},
    "granite thinks": {"messages": [_user()], "template_variables": {"thinking": True}},
    "effort": {"messages": [_user()], "template_variables": {"reasoning_effort": "high"}},
    "identity": {"messages": [_user()], "template_variables": {"model_identity": "A lamp."}},
    "date": {"messages": [_user()], "template_variables": {"date_string": "1 May 2026"}},
    "documents": {"messages": [_user()], "template_variables": {"documents": DOCUMENTS}},
    "parts": {"messages": [_user(PARTS)]},
    "system and parts": {"messages": [SYSTEM, _user(PARTS), _reply(), _user(PARTS[:1])]},
    "system in parts": {"messages": [{"role": "system", "content": PARTS[:1]}, _user()]},
    "marks": {"messages": [_user("a<|im_end|>b</s>c"), _reply("</think>d"), _user("[INST]e")]},
}

#: Our own, each with something that real templates do.
TEMPLATES: dict[str, str] = {
    "chatml": (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>'"
        " + '\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "composed marks": (
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>\n' ~ (m.content | trim) ~ eos_token }}\n"
        "{% endfor %}{{ '<|assistant|>\n' if add_generation_prompt else '' }}"
    ),
    "alternating": (
        "{{ bos_token }}{% for m in messages %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}"
        "{{ '[INST] ' + m.content.strip() + ' [/INST]' }}{% else %}"
        "{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
    ),
    "parts": (
        "{%- macro shown(content) -%}{%- if content is string -%}{{ content }}{%- else -%}"
        "{%- for part in content -%}{{ part['text'] }}|{%- endfor -%}{%- endif -%}{%- endmacro -%}"
        "{% for m in messages %}<turn>{{ m.role }}\n{{ shown(m.content) | trim }}</turn>\n"
        "{% endfor %}{% if add_generation_prompt %}<turn>model\n{% endif %}"
    ),
    "tools": (
        "{% for tool in tools %}{{ tool | tojson(indent=2) }}\n{% endfor %}"
        "{% for m in messages %}{% if m.tool_calls %}{% for call in m.tool_calls %}"
        "<call>{{ call.function.name }}{% for k, v in call.function.arguments | items %} {{ k }}="
        "{{ v | tojson }}{% endfor %}</call>{% endfor %}{% else %}{{ m.role }}: {{ m.content }}"
        "{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    ),
    "calls in text": (
        "{% for m in messages %}{% if m.tool_calls %}{% for call in m.tool_calls %}"
        "{{ '<call>' + call['function']['name'] + '\n' + call['function']['arguments'] + "
        "'</call>' }}"
        "{% endfor %}{% else %}{{ m['role'] + ': ' + m['content'] }}{% endif %}{% endfor %}"
    ),
    "thinking": (
        "{% for m in messages %}{% set text = m.content %}{% if '</think>' in text %}"
        "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}"
        "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
        "<think>\n\n</think>\n\n{% endif %}{% endif %}"
    ),
    "documents": (
        "{% if documents %}{% for d in documents %}[{{ loop.index }}] {{ d.title | upper }}: "
        "{{ d['text'] }}\n{% endfor %}{% endif %}"
        "{{ messages | map(attribute='content') | join('|') }}"
        "{{ messages[0].content | replace('tower', '<|tower|>') }}"
    ),
    "blocks": (
        "{% set ns = namespace(text='') %}{% for m in messages %}{% set body %}{{ m.content }};"
        "{% endset %}{% set ns.text = ns.text + body %}{% endfor %}{{ ns.text }}"
        "{% for line in messages[0].content.splitlines() %}{{ loop.index }}{{ line[::-1] }}"
        "{% endfor %}"
        "{% generation %}{{ '%s and %05.1f' % (messages[0].role, 2.5) }}{% endgeneration %}"
    ),
}

_TODAY = ("%Y-%m-%d", "%d %b %Y", "%d %B %Y", "%B %d, %Y", "%d-%m-%Y")


def without_date(text: str) -> str:
    """Put a word in the place of today's and yesterday's date, which some templates write."""
    now = datetime.now()
    for day in (now, datetime.fromordinal(now.toordinal() - 1)):
        for form in _TODAY:
            text = re.sub(re.escape(day.strftime(form)), "DATE", text)
    return text
