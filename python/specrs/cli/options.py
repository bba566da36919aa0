"""What the options and inputs of the command line say; mistakes name the option."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..structured.grammar import Grammar

# Options that reach the library under their own names; None leaves the choice to it.
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name or path of a model.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens to generate.")]
NCtx = Annotated[int | None, typer.Option(help="Positions of the context.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.")]
Device = Annotated[str | None, typer.Option(help="cpu, candle-cpu, metal or cuda.")]


def check_max_tokens(max_tokens: int | None) -> None:
    """Raise ValueError for a negative --max-tokens."""
    if max_tokens is not None and max_tokens < 0:
        raise ValueError(f"--max-tokens must be 0 or more, not {max_tokens}")


def stdin_text() -> str:
    """Read the prompt from standard input."""
    if sys.stdin is None:
        raise ValueError("standard input is closed; give the prompt with --prompt")
    try:
        text = sys.stdin.read()
        text.encode()  # some locales let any byte pass, as a surrogate
    except UnicodeError as error:
        raise ValueError(
            f"standard input is not UTF-8 text ({error}); convert it, or set PYTHONIOENCODING to "
            f"its encoding"
        ) from None
    if not text:
        raise ValueError("standard input is empty; give the prompt there or with --prompt")
    return text


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
    except ValueError as error:
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
