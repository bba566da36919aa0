"""Grammars on the command line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from conftest import Run

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "rules.lark").write_text('start: ("left" | "right") "!"')
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "pattern"),
    [
        (["--json-schema", "schema.json"], r'\{"ok":(true|false)\}'),
        (["--grammar", "rules.lark"], "(left|right)!"),
        (["--regex", "[0-9]{4}-[0-9]{2}"], "[0-9]{4}-[0-9]{2}"),
    ],
)
@pytest.mark.parametrize("drafter", ["forced-tokens", "prompt-lookup", None])
def test_the_text_obeys(
    toy: Path, run: Run, files: Path, flags: list[str], pattern: str, drafter: str | None
) -> None:
    given = [files / flag if "." in flag and flag[0] != "[" else flag for flag in flags]
    drafting = ["--drafter", drafter] if drafter else []
    ran = run("generate", toy, "--prompt", "abc", *given, *drafting)
    assert ran.code == 0, ran.err
    assert re.fullmatch(pattern + "\n", ran.out)
    assert ("drafted accepted" in ran.err) == (drafter is not None)


def test_many_lines_obey(toy: Path, run: Run, files: Path) -> None:
    source, target = files / "in.jsonl", files / "out.jsonl"
    source.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("a", "bc", "d")))
    flags = ["--input", source, "--output", target, "--json-schema", files / "schema.json"]
    assert run("generate", toy, *flags).code == 0
    results = [json.loads(line) for line in target.read_text().splitlines()]
    assert [sorted(json.loads(result["text"])) for result in results] == [["ok"]] * 3
    # Other results than those of this schema are not taken for its own.
    (files / "schema.json").write_text('{"type":"null"}')
    ran = run("generate", toy, *flags)
    assert (ran.code, "other options" in ran.err) == (2, True)


def test_without_the_library_it_says_how_to_get_it(
    toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    ran = run("generate", toy, "--prompt", "a", "--regex", "a")
    assert (ran.code, "pip install 'specrs[grammar]'" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--regex", "a", "--grammar", "rules.lark"], "exclude each other"),
        (["--regex", "(a"], "--regex: the regular expression cannot be compiled"),
        (["--json-schema", "rules.lark"], "rules.lark: the JSON schema is no JSON"),
        (["--grammar", "schema.json"], "schema.json: the Lark grammar cannot be compiled"),
        (["--json-schema", "none.json"], "none.json"),
        (["--drafter", "forced-tokens", "--num-draft-tokens", "2"], "--num-draft-tokens needs"),
    ],
)
def test_mistakes_are_named(toy: Path, run: Run, files: Path, flags: list[str], words: str) -> None:
    given = [files / flag if flag.endswith((".json", ".lark")) else flag for flag in flags]
    ran = run("generate", toy, "--prompt", "a", *given)
    assert ran.code == 2
    assert words in ran.err.replace("\n", " ")
    assert "Traceback" not in ran.err
