"""Options of `generate` and `pull`: prompts, JSON, several results, help, completion, the cache."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import specrs
from conftest import Run
from specrs.cli.options import complete_model, unescaped
from specrs.models import MODELS
from test_cli import COMMAND, process

MESSAGE = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(
    ("given", "prompt"),
    [("Hello\n", "Hello"), ("Hello", "Hello"), ("Hello\n\n", "Hello\n"), ("\nHello ", "\nHello ")],
)
def test_one_line_break_at_the_end_of_standard_input_is_taken_off(
    toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch, given: str, prompt: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert run("generate", toy).out == run("generate", toy, "-p", prompt).out


def test_a_prompt_file_is_read_as_standard_input_is(toy: Path, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Hello\n")
    assert (
        run("generate", toy, "--prompt-file", file).out == run("generate", toy, "-p", "Hello").out
    )
    ran = run("generate", toy, "--prompt-file", file, "-p", "x")
    assert (ran.code, "exclude each other" in ran.err) == (2, True)


def test_a_system_message_stands_first(toy: Path, run: Run) -> None:
    messages = [{"role": "system", "content": "Be kind. "}, MESSAGE]
    expected = specrs.Llama(toy).chat(messages, max_tokens=9)
    flags = ["-p", "Hello", "--max-tokens", 9, "--system", "Be kind. "]
    assert run("generate", toy, "--chat", *flags).out == expected.text + "\n"
    ran = run("generate", toy, *flags)
    assert (ran.code, "need --chat" in ran.err) == (2, True)


def test_a_result_is_an_object_of_json(toy: Path, run: Run) -> None:
    flags = ["-p", "Hello", "--max-tokens", 9, "--stop", "\\n"]
    ran = run("generate", toy, *flags, "--json", "--logprobs", 2)
    expected = specrs.Llama(toy).generate("Hello", max_tokens=9, stop="\n", logprobs=2)
    (line,) = ran.out.splitlines()
    found, wanted = json.loads(line), json.loads(json.dumps(expected.as_dict()))
    assert found.pop("stats").keys() == wanted.pop("stats").keys()
    assert found == wanted
    assert len(found["logprobs"][0]["top"]) == 2
    assert ran.err == ""
    ran = run("generate", toy, *flags, "--logprobs", 2)
    assert (ran.code, "--logprobs needs --json" in ran.err) == (2, True)


def test_several_results_have_seeds_that_follow_one_another(toy: Path, run: Run) -> None:
    llm = specrs.Llama(toy)
    wanted = [
        llm.generate("Hello", max_tokens=9, sampling=specrs.Sampling(temperature=1, seed=seed))
        for seed in (7, 8, 9)
    ]
    assert len({out.text for out in wanted}) == 3
    flags = ["-p", "Hello", "--max-tokens", 9, "--temperature", 1, "--seed", 7, "-n", 3]
    ran = run("generate", toy, *flags)
    assert ran.out == "".join(f"{out.text}\n" for out in wanted)
    assert [f"seed {seed}, " in ran.err for seed in (7, 8, 9)] == [True] * 3
    ran = run("generate", toy, *flags, "--json")
    assert [json.loads(line)["text"] for line in ran.out.split("\n") if line] == [
        out.text for out in wanted
    ]
    ran = run("generate", toy, "-p", "Hello", "-n", 3)
    assert (ran.code, "-n needs --temperature" in ran.err) == (2, True)
    assert run("generate", toy, "-p", "Hello", "-n", 0).code == 2


def test_control_tokens_of_a_prompt_count_on_demand_only(
    toy: Path, run: Run, tmp_path: Path
) -> None:
    flags = ["-p", "a<end>", "--max-tokens", 0]
    assert "prompt 6 at" in run("generate", toy, *flags).err
    assert "prompt 2 at" in run("generate", toy, *flags, "--parse-special").err
    ran = run("generate", toy, *flags, "--parse-special", "--chat")
    assert (ran.code, "--parse-special and --chat exclude each other" in ran.err) == (2, True)
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    messages = [{"role": "user", "content": "a<end>"}]
    lines = [{"prompt": "a<end>"}, {"messages": messages}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ("--input", source, "--output", target)
    assert run("generate", toy, "--max-tokens", 1, "--parse-special", *files).code == 0
    results = [json.loads(line) for line in target.read_text().splitlines()]
    counts = {result["id"]: result["usage"]["prompt_tokens"] for result in results}
    assert counts == {1: 2, 2: 6}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (r"\n\t\r", "\n\t\r"),
        (r"\\n", r"\n"),
        (r"\u00e9\u2028", "é\u2028"),
        ("é\n", "é\n"),
        (r"end\\", "end\\"),
    ],
)
def test_escapes_of_stops(text: str, meant: str) -> None:
    assert unescaped("--stop", text) == meant


@pytest.mark.parametrize("text", ["\\", r"a\d", r"\u12"])
def test_escapes_that_mean_nothing_are_refused(toy: Path, run: Run, text: str) -> None:
    ran = run("generate", toy, "-p", "x", "--stop", text)
    assert (ran.code, "which means nothing" in ran.err) == (2, True)


def test_settings_without_effect_are_told_in_a_line(toy: Path, run: Run) -> None:
    ran = run("generate", toy, "-p", "Hello", "--top-k", 5, "--seed", 3)
    assert ran.code == 0
    first = ran.err.splitlines()[0]
    assert first.startswith("specrs: nothing is drawn at temperature 0, so top_k and seed will do")
    assert "UserWarning" not in ran.err
    assert "nothing is drawn" not in run("generate", toy, "-p", "Hello").err


def test_help_tells_the_defaults() -> None:
    shown = " ".join(process("generate", "--help").communicate()[0].split())
    for words in (
        "Most tokens to generate. [default: (128)]",
        "The prompt. [default: (standard input)]",
        "CPU threads. [default: (one for each physical core)]",
        "[default: (0.0)]",
        "[default: (3)]",
        "[default: (16; of a draft model 8)]",
    ):
        assert words in shown
    assert "default: None" not in shown
    shown = " ".join(process("chat", "--help").communicate()[0].split())
    assert "Longest reply in tokens. [default: 1024]" in shown


def completions(words: str) -> list[str]:
    """Ask what a shell would be told after `words`."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "_SPECRS_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'specrs'" + COMMAND]
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout.split()


def test_a_shell_completes_commands_options_and_models(tmp_path: Path) -> None:
    assert {"generate", "chat", "pull"} <= set(completions("specrs "))
    assert "--prompt-file" in completions("specrs generate --pro")
    assert completions("specrs generate smol") == ["smollm2-135m"]
    assert completions("specrs pull gem") == ["gemma3-270m"]


def test_models_complete_to_names_files_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("small.gguf", "smaller.txt", "sm[1].gguf"):
        (tmp_path / name).touch()
    (tmp_path / "smith").mkdir()
    assert complete_model("sm") == ["smollm2-135m", "sm[1].gguf", "small.gguf", "smith/"]
    assert complete_model("sm[") == ["sm[1].gguf"]
    assert complete_model(f"{tmp_path}/smal") == [f"{tmp_path}/small.gguf"]


def test_the_cache_is_listed_and_models_removed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECRS_CACHE", str(tmp_path))
    toy = replace(MODELS["gemma3-270m"], filename="toy.gguf", size=5)
    monkeypatch.setitem(MODELS, "gemma3-270m", toy)
    lines = run("pull", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(MODELS)
    assert all("not here" in line for line in lines)
    for name in ("toy.gguf", "toy.gguf.verified", "toy.gguf.GEMMA_TERMS.html", "other.gguf"):
        (tmp_path / name).write_text("hello")
    lines = run("pull", "--list").out.splitlines()
    assert [f"{tmp_path}/toy.gguf" in line for line in lines] == [False, True]
    assert "Gemma Terms of Use" in lines[1]
    ran = run("pull", "--remove", "gemma3-270m")
    assert (ran.code, ran.out) == (0, "")
    assert f"removed {tmp_path}/toy.gguf" in ran.err
    assert {path.name for path in tmp_path.iterdir()} == {"other.gguf", "pull.lock"}
    assert "gemma3-270m was not here" in run("pull", "--remove", "gemma3-270m").err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "give the name of a model, or --list"),
        (["--remove"], "give the name of a model, or --list"),
        (["--list", "smollm2-135m"], "--list takes no name"),
        (["--remove", "gpt-9"], "no name that specrs keeps models of"),
        (["--remove", "hf:owner/repo:Q4_0"], "cache of huggingface_hub"),
    ],
)
def test_what_pull_cannot_do_is_a_mistake(run: Run, flags: list[str], words: str) -> None:
    ran = run("pull", *flags)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
