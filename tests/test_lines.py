"""`specrs generate --input`: many prompts from a file, and what happens when it is run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specrs
from conftest import Ran, Run

Go = Callable[..., Ran]

HI = [{"role": "user", "content": "Hi there"}]


@pytest.fixture
def go(run: Run, toy: Path, tmp_path: Path) -> Go:
    def go(*flags: object) -> Ran:
        files = ("--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
        return run("generate", toy, "--max-tokens", 9, *files, *flags)

    return go


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., None]:
    def write(*lines: Any) -> None:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (tmp_path / "in.jsonl").write_text("".join(text + "\n" for text in texts))

    return write


def results(tmp_path: Path) -> dict[Any, dict[str, Any]]:
    lines = (tmp_path / "out.jsonl").read_text().split("\n")
    assert lines.pop() == ""
    found = [json.loads(line) for line in lines]
    assert len({line["id"] for line in found}) == len(found)
    return {line["id"]: line for line in found}


def test_every_line_has_its_result(
    go: Go, write: Callable[..., None], toy: Path, tmp_path: Path
) -> None:
    write(
        {"id": "a", "prompt": "Hello"},
        "",
        {
            "id": 7,
            "messages": [{"role": "user", "content": "Hi\u2028there".replace("\u2028", " ")}],
        },
        {"prompt": [5, 6, 7], "max_tokens": 3},
        {"id": "s", "prompt": "abc", "temperature": 1.0, "seed": 5, "logit_bias": {"3": -1.5}},
        '{"id": "no break", "prompt": "a\u2028b"}',
    )
    ran = go()
    assert ran.code == 1
    assert "4 done, 0 were there already, 1 failed" in ran.err
    llm = specrs.Llama(toy)
    found = results(tmp_path)
    hello = llm.generate("Hello", max_tokens=9)
    assert found["a"]["text"] == hello.text
    assert found["a"]["finish_reason"] == hello.finish_reason
    assert found["a"]["usage"] == {"prompt_tokens": 5, "completion_tokens": len(hello.tokens)}
    assert (
        found[7]["text"] == llm.chat([{"role": "user", "content": "Hi there"}], max_tokens=9).text
    )
    assert found[4]["text"] == llm.generate([5, 6, 7], max_tokens=3).text
    sampling = specrs.Sampling(temperature=1.0, seed=5, logit_bias={3: -1.5})
    assert found["s"]["text"] == llm.generate("abc", max_tokens=9, sampling=sampling).text
    assert "toy vocabulary cannot spell" in found["no break"]["error"]  # one line, not two


def test_what_is_done_is_not_done_again(go: Go, write: Callable[..., None], tmp_path: Path) -> None:
    lines = [{"id": i, "prompt": "abc"[: 1 + i % 3]} for i in range(12)]
    write(*lines)
    go()
    out = tmp_path / "out.jsonl"
    complete, whole = results(tmp_path), out.read_bytes()
    kept = whole.split(b"\n")[:5]
    out.write_bytes(b"\n".join(kept) + b"\n" + whole.split(b"\n")[5][:9])
    ran = go("--drafter", "prompt-lookup", "--max-requests", 2)
    assert ran.code == 0
    assert "7 done, 5 were there already, 0 failed" in ran.err
    assert results(tmp_path) == complete
    assert out.read_bytes().split(b"\n")[:5] == kept
    assert "0 done, 12 were there already" in go().err


@pytest.mark.parametrize("flags", [["--temperature", 1], ["--ignore-eos"], ["--stop", "x"]])
def test_other_options_do_not_go_on(
    go: Go, write: Callable[..., None], flags: list[object]
) -> None:
    write({"id": "a", "prompt": "Hello"})
    go()
    ran = go(*flags)
    assert ran.code == 2
    assert "it is of other options" in ran.err


def test_nor_do_other_prompts(go: Go, write: Callable[..., None], tmp_path: Path) -> None:
    write({"id": "a", "prompt": "Hello"})
    go()
    write({"id": "a", "prompt": "Hallo"})
    assert "other options, or of another input" in go().err
    write({"id": "b", "prompt": "Hello"})
    assert "its id is not in the input" in go().err
    (tmp_path / "out.jsonl").write_text("my notes\n")
    assert "no result of this command" in go().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: no JSON"),
        ("3", "line 1: must be an object"),
        ({"id": [1], "prompt": "a"}, "id must be text or a number"),
    ],
)
def test_what_is_no_file_of_prompts(
    go: Go, write: Callable[..., None], line: Any, message: str
) -> None:
    write(line)
    ran = go()
    assert ran.code == 2
    assert message in ran.err


def test_an_id_belongs_to_one_line(go: Go, write: Callable[..., None]) -> None:
    write({"id": 1, "prompt": "a"}, {"id": "1", "prompt": "a"}, {"id": 1, "prompt": "b"})
    assert "line 3: the id 1 is that of line 1" in go().err


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ({}, 'one of "prompt" and "messages" is needed'),
        ({"prompt": "a", "messages": []}, 'one of "prompt" and "messages" is needed'),
        ({"prompt": "a", "temprature": 1}, "'temprature' is no option of a line"),
        ({"prompt": "a", "temperature": -1}, "temperature must be 0 or more"),
        ({"prompt": "a", "max_tokens": "many"}, "max_tokens must be an int"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": 5}, "prompt must be text or token ids"),
    ],
)
def test_a_bad_line_is_its_own_error(
    go: Go, write: Callable[..., None], tmp_path: Path, line: Any, error: str
) -> None:
    write({"id": "bad", **line}, {"id": "good", "prompt": "Hello"})
    assert go().code == 1
    found = results(tmp_path)
    assert error in found["bad"]["error"]
    assert "text" in found["good"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input", "x"], "--input and --output belong together"),
        (
            ["--input", "x", "--output", "y", "--prompt", "a"],
            "--input has the prompts; --prompt, --prompt-file,",
        ),
        (["--prompt", "a", "--max-requests", 3], "--max-requests needs --input"),
        (["--input", "nowhere", "--output", "y"], "nowhere: No such file"),
    ],
)
def test_flags_that_do_not_fit(run: Run, toy: Path, flags: list[object], message: str) -> None:
    ran = run("generate", toy, *flags)
    assert ran.code == 2
    assert message in ran.err
