"""What the options and inputs of the command line say; mistakes name the option."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ..llama import Llama
from ..models import MODELS
from ..structured.grammar import Grammar


def default_of(function: Callable[..., Any], name: str) -> str:
    """Return the default of a library's argument, for --help."""
    return str(inspect.signature(function).parameters[name].default)


def complete_model(incomplete: str) -> list[str]:
    """Complete a model in a shell: known names, folders, and model files."""
    found = [name for name in MODELS if name.startswith(incomplete)]
    begun = incomplete.rpartition("/")[2]
    folder = incomplete.removesuffix(begun)
    with suppress(OSError):
        for path in sorted(Path(folder or ".").iterdir()):
            if path.name.startswith(begun) and (path.is_dir() or path.suffix == ".gguf"):
                found.append(f"{folder}{path.name}{'/' if path.is_dir() else ''}")
    return found


# Options that reach the library under their own names; None leaves the choice to it.
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Name or path of a model; `specrs pull --list` has names.",
        autocompletion=complete_model,
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(help="Name or path of a model.", autocompletion=complete_model),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        help="Most tokens to generate.", show_default=default_of(Llama.stream, "max_tokens")
    ),
]
NCtx = Annotated[
    int | None,
    typer.Option(
        help="Size of the context in tokens, prompt and result together.",
        show_default="what the model file says",
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="CPU threads.", show_default="one for each physical core")
]
Device = Annotated[
    str | None,
    typer.Option(help="Where to run: cpu, candle-cpu, metal or cuda.", show_default="cpu"),
]
System = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="System message: what the model is told before all else."),
]
Tools = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="JSON list that describes tools the model may call."),
]
TemplateVariable = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="Set a variable of the chat template, to JSON or else to text."
    ),
]


def check_max_tokens(max_tokens: int | None) -> None:
    """Raise ValueError for a negative --max-tokens."""
    if max_tokens is not None and max_tokens < 0:
        raise ValueError(f"--max-tokens must be 0 or more, not {max_tokens}")


def stdin_text() -> str:
    """Read the prompt from standard input, without the line break at its end, if there is one."""
    if sys.stdin is None:
        raise ValueError("standard input is closed; give the prompt with --prompt")
    try:
        text = sys.stdin.read()
        text.encode()  # some locales let any byte pass, as a surrogate
    except UnicodeError as error:
        raise not_utf8(error) from None
    if not text:
        raise ValueError("standard input is empty; give the prompt there or with --prompt")
    return text.removesuffix("\n")


def not_utf8(error: UnicodeError) -> ValueError:
    """Return the error for standard input that is no text."""
    return ValueError(
        f"standard input is not UTF-8 text ({error}); convert it, or set PYTHONIOENCODING to "
        f"its encoding"
    )


def seed_of(text: str) -> int | None:
    """Read --seed; None for a fresh one."""
    if text == "random":
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--seed must be a number or random, not {text!r}") from None


def biases_of(texts: list[str] | None) -> dict[int, float] | None:
    """Read the ID=NUMBER of every --logit-bias."""
    biases: dict[int, float] = {}
    for text in texts or ():
        token, _, bias = text.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            raise ValueError(f"--logit-bias must be ID=NUMBER, not {text!r}") from None
    return biases or None


ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}


def unescaped(option: str, text: str) -> str:
    r"""Read the escapes \n, \r, \t, \\ and \uXXXX in the value of an option."""

    def character(match: re.Match[str]) -> str:
        if match[1] in ESCAPES:
            return ESCAPES[match[1]]
        if len(match[1]) == 5:
            return chr(int(match[1][1:], 16))
        raise ValueError(
            rf"{option} has {match[0]}, which means nothing: there are \n, \r, \t, \uXXXX, and "
            rf"\\ for a backslash"
        )

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.|\Z)", character, text, flags=re.DOTALL)


def variables_of(texts: list[str] | None) -> dict[str, Any] | None:
    """Read the NAME=VALUE of every --template-variable."""
    variables: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"--template-variable must be NAME=VALUE, not {text!r}")
        try:
            variables[name] = json.loads(value)
        except ValueError:
            variables[name] = value
    return variables or None


def tools_of(file: Path) -> list[Any]:
    """Read the file of --tools."""
    try:
        tools = json.loads(text_of(file))
    except ValueError as error:
        raise ValueError(f"{file} must be a JSON list of tools ({error})") from None
    if not isinstance(tools, list):
        raise ValueError(f"{file} must be a JSON list of tools, not {type(tools).__name__}")
    return tools


def grammar_of(schema: Path | None, rules: Path | None, pattern: str | None) -> Grammar | None:
    """Read --json-schema, --grammar and --regex, of which there may be one."""
    if sum(value is not None for value in (schema, rules, pattern)) > 1:
        raise ValueError("--json-schema, --grammar and --regex exclude each other")
    try:
        if schema is not None:
            return Grammar.json_schema(text_of(schema))
        if rules is not None:
            return Grammar.lark(text_of(rules))
        return None if pattern is None else Grammar.regex(pattern)
    except (ModuleNotFoundError, ValueError) as error:
        where = "--regex" if pattern is not None else str(schema or rules)
        raise ValueError(f"{where}: {error}") from None


def text_of(file: Path) -> str:
    """Read a file of text, which may not be empty."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error})") from None
    if not text:
        raise ValueError(f"{file} is empty; give a file of text")
    return text


def given(**options: Any) -> dict[str, Any]:
    """Keep the options the user gave; the library knows the defaults of the others."""
    return {name: value for name, value in options.items() if value is not None}
