"""Templates render as they do in transformers, for conversations of every kind."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hf_templates import FILE, REFUSED, digest
from specrs.chat.messages import checked_messages, checked_tools, checked_variables
from specrs.chat.template import TemplateError, render
from template_cases import CASES, TEMPLATES, without_date

EXPECTED: dict[str, Any] = json.loads(FILE.read_text())

MARK = re.compile(r"<\|[^|>]+\|>|\[/?(?:INST|TOOL_CALLS)\]|<(?:start|end)_of_turn>|<｜[^｜]+｜>")

#: Templates of released models, which are not ours to ship.
FOLDER = Path(os.environ.get("SPECRS_TEMPLATES", Path(__file__).parent / "templates"))


def rendered(template: str, case: dict[str, Any]) -> str:
    """Render a case as a chat does, or tell how it is refused."""
    continued = case.get("continue_final_message", False)
    try:
        pieces = render(
            template,
            checked_messages(case["messages"]),
            bos_token="<s>",
            eos_token="</s>",
            tools=checked_tools(case.get("tools")),
            variables=checked_variables(case.get("template_variables")),
            add_generation_prompt=case.get("add_generation_prompt", not continued),
            continue_final_message=continued,
        )
    except TemplateError as error:
        failed = str(error).startswith("the chat template failed")
        return "failed: " if failed else REFUSED + str(error)
    except ValueError as error:
        return "unused" if "does not use" in str(error) else f"failed: {error}"
    text = "".join(piece for piece, _ in pieces)
    if case is not CASES["marks"]:  # in all others every mark is the template's, and counts
        assert MARK.findall(text) == [
            mark for piece, own in pieces if own for mark in MARK.findall(piece)
        ]
    return text


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_own_templates_render_as_in_transformers(name: str, case: str) -> None:
    expected = EXPECTED["own"][name][case]
    text = rendered(TEMPLATES[name], CASES[case])
    if text == "unused":  # transformers says nothing of what a template does not read
        text = rendered(TEMPLATES[name], {"messages": CASES[case]["messages"]})
        assert {"tools", "template_variables"} & set(CASES[case])
    if expected.startswith("failed: "):
        assert text.startswith("failed: ")
    else:
        assert text == expected


@pytest.mark.parametrize("name", EXPECTED["released"])
def test_templates_of_released_models_render_as_in_transformers(name: str) -> None:
    file = FOLDER / f"{name}.jinja"
    if not file.exists():
        pytest.skip(f"{file} is not there; SPECRS_TEMPLATES names a folder of templates")
    template = file.read_text()
    assert digest(template) == EXPECTED["released"][name]["template"], "another template"
    differing = []
    for case, expected in EXPECTED["released"][name]["cases"].items():
        text = rendered(template, CASES[case])
        if text == "unused":
            continue
        found = "failed" if text.startswith("failed: ") else digest(without_date(text))
        if found != expected:
            differing.append((case, text))
    assert not differing
