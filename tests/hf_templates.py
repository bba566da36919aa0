"""Renderings of chat templates by Hugging Face's transformers, for ours to be compared with.

`python tests/hf_templates.py FOLDER` writes `data/hf_templates.json` anew, in an environment with
`transformers` (4.57 made it) and a folder of templates of released models: of those only hashes of
the renderings are kept, of our own small ones the texts. `test_template_grid.py` compares, without
transformers.

transformers gives a template whatever the caller has. Where that fails, or prints a list of parts
as Python writes it, the reference is its rendering of the same conversation in another form: parts
joined by line breaks, arguments of calls as JSON text or as an object, no tools as an empty list,
no content as an empty text.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from template_cases import CASES, TEMPLATES, without_date

FILE = Path(__file__).parent / "data" / "hf_templates.json"
#: What stands for the word that a template raises.
REFUSED = "refused: "


def digest(text: str) -> str:
    """Hash a rendering, or a template."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _forms(case: dict[str, Any]) -> Iterator[tuple[list[dict[str, Any]], Any]]:
    """Give messages and tools in the forms described above."""
    tools = case.get("tools")
    without_tools: tuple[list[Any] | None, ...] = (None, [])
    for no_tools, joined, no_content, as_text in itertools.product(
        without_tools, (False, True), (None, ""), (False, True)
    ):
        messages = deepcopy(case["messages"])
        for message in messages:
            if joined and isinstance(message["content"], list):
                message["content"] = "\n".join(part["text"] for part in message["content"])
            message["content"] = no_content if message["content"] is None else message["content"]
            for call in message.get("tool_calls", ()):
                arguments = call["function"]["arguments"]
                value = json.loads(arguments) if isinstance(arguments, str) else arguments
                call["function"]["arguments"] = (
                    json.dumps(value, ensure_ascii=False) if as_text else value
                )
        yield messages, no_tools if tools is None else tools


def rendered(template: str, case: dict[str, Any]) -> str:
    """Render a case, or tell how the template refuses it."""
    from jinja2.exceptions import TemplateError, TemplateRuntimeError, UndefinedError
    from transformers.utils.chat_template_utils import render_jinja_template

    continued = case.get("continue_final_message", False)
    parts = [
        part["text"]
        for message in case["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    failure = ""
    for messages, tools in _forms(case):
        try:
            (text,), _ = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=template,
                continue_final_message=continued,
                add_generation_prompt=case.get("add_generation_prompt", not continued),
                bos_token="<s>",
                eos_token="</s>",
                **case.get("template_variables", {}),
            )
        except Exception as error:
            if isinstance(error, TemplateError) and not isinstance(
                error, (TemplateRuntimeError, UndefinedError)
            ):
                return REFUSED + str(error)
            failure = failure or f"{type(error).__name__}: {error}"
            continue
        if not any(part not in text or "{'type'" in text for part in parts):
            return str(text)
    return f"failed: {failure}"


def main() -> None:
    """Write the file."""
    import transformers

    released = {path.stem: path.read_text() for path in sorted(Path(sys.argv[1]).glob("*.jinja"))}
    of_released: dict[str, Any] = {}
    for name, template in released.items():
        results = {case: without_date(rendered(template, CASES[case])) for case in CASES}
        failed = {case: text for case, text in results.items() if text.startswith("failed: ")}
        print(name, f"{len(results) - len(failed)} rendered or refused;", failed)
        of_released[name] = {
            "template": digest(template),
            "cases": {
                case: "failed" if case in failed else digest(text) for case, text in results.items()
            },
        }
    own = {
        name: {case: rendered(template, CASES[case]) for case in CASES}
        for name, template in TEMPLATES.items()
    }
    by = f"transformers {transformers.__version__}"
    FILE.write_text(
        json.dumps({"by": by, "own": own, "released": of_released}, indent=1, ensure_ascii=False)
        + "\n"
    )


if __name__ == "__main__":
    main()
