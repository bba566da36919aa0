"""The command line: results on stdout, the rest on stderr, mistakes in one line."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fake_engine
import specrs
from conftest import Run
from specrs.cli import display
from specrs.cli.demo import DEMO_PROMPT, DEMO_RECORDS
from specrs.models import MODELS


def test_generate_prints_the_text_alone_on_stdout(toy: Path, run: Run) -> None:
    expected = specrs.Llama(toy).generate("Hello", max_tokens=30)
    ran = run("generate", toy, "--prompt", "Hello", "--max-tokens", 30)
    assert (ran.code, ran.out) == (0, expected.text + "\n")
    assert f"{len(expected.tokens)} tokens, " in ran.err
    assert "tokens/s" in ran.err


def test_generate_reads_stdin_and_applies_the_template(
    toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = specrs.Llama(toy)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi there"))
    expected = llm.chat([{"role": "user", "content": "Hi there"}], max_tokens=9)
    assert run("generate", toy, "--chat", "--max-tokens", 9).out == expected.text + "\n"


@pytest.mark.parametrize(
    "flags",
    [
        ["--drafter", "prompt-lookup"],
        ["--drafter", "prompt-lookup", "--max-ngram-size", 2, "--min-ngram-size", 2],
        ["--drafter", "prompt-lookup", "--num-draft-tokens", 3, "--draft-length", 2],
        ["--drafter", "suffix-decoding", "--num-draft-tokens", 5],
        ["--draft-model", "TOY"],
        ["--draft-model", "TOY", "--p-min", 0.001, "--num-draft-tokens", 3],
        ["--top-k", 5, "--top-p", 0.9, "--min-p", 0.1, "--seed", 3],
    ],
)
def test_drafting_and_filters_do_not_change_greedy_text(
    toy: Path, run: Run, flags: list[object]
) -> None:
    flags = [toy if flag == "TOY" else flag for flag in flags]
    options = ["--prompt", "abcabcab", "--max-tokens", 50, "--ignore-eos"]
    plain = run("generate", toy, *options)
    drafted = run("generate", toy, *options, *flags)
    assert drafted.code == 0
    assert drafted.out == plain.out
    assert ("drafted accepted" in drafted.err) == any("draft" in str(flag) for flag in flags)


def test_bench_compares_and_counts(toy: Path, run: Run, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ["--max-tokens", 12, "--rounds", 1, "--limit", 2, "--draft-model", toy]
    ran = run("bench", toy, *options, "--json", figures)
    assert ran.code == 0
    table = [line for line in ran.out.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in table[1:]] == [
        "| PromptLookup",
        "| SuffixDecoding",
        "| DraftModel",
    ]
    assert all("| 0 of " in line for line in table[1:])
    assert json.loads(figures.read_text())["DraftModel"]["all"]["different"] == 0


def test_sampling_flags_arrive(toy: Path, run: Run) -> None:
    settings = {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 3}
    settings |= {"repetition_penalty": 1.2, "frequency_penalty": 0.1, "presence_penalty": 0.2}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    sampling = specrs.Sampling(**settings, logit_bias={5: 1.5, 6: float("-inf")})  # type: ignore[arg-type]
    expected = specrs.Llama(toy).generate("Hello", max_tokens=30, sampling=sampling)
    options = ["-p", "Hello", "--max-tokens", 30, "--logit-bias", "5=1.5", "--logit-bias", "6=-inf"]
    ran = run("generate", toy, *options, *flags)
    assert ran.out == expected.text + "\n"
    assert "seed 3, " in ran.err
    fresh = run("generate", toy, "-p", "Hello", "--temperature", 1, "--seed", "random")
    assert "seed " in fresh.err
    assert "seed 0, " not in fresh.err
    assert "seed" not in run("generate", toy, "-p", "Hello").err


def test_tools_and_template_variables_arrive(toy: Path, run: Run, tmp_path: Path) -> None:
    settings = json.loads(toy.read_text())
    settings["chat_template"] = (
        "{{ tools | tojson }}{{ mode }}{{ level + 1 }}{{ messages[0].content }}"
    )
    toy.write_text(json.dumps(settings))
    tools = [{"type": "function", "function": {"name": "look"}}]
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(tools))
    expected = specrs.Llama(toy).chat(
        [{"role": "user", "content": "Hi"}],
        tools=tools,
        template_variables={"mode": "fast", "level": 2},
        max_tokens=9,
    )
    flags = ["--tools", file, "--template-variable", "mode=fast", "--template-variable", "level=2"]
    ran = run("generate", toy, "--chat", "-p", "Hi", "--max-tokens", 9, *flags)
    assert (ran.code, ran.out) == (0, expected.text + "\n")
    wrong = run("generate", toy, "-p", "Hi", *flags)
    assert (wrong.code, "need --chat" in wrong.err) == (2, True)
    wrong = run("generate", toy, "--chat", "-p", "Hi", "--template-variable", "mode")
    assert (wrong.code, "NAME=VALUE, not 'mode'" in wrong.err) == (2, True)
    for text, words in (("{", "JSON list of tools ("), ("{}", "JSON list of tools, not dict")):
        file.write_text(text)
        wrong = run("generate", toy, "--chat", "-p", "Hi", "--tools", file)
        assert (wrong.code, words in wrong.err) == (2, True)


def test_special_tokens_are_shown_and_end_where_they_are_told_to(toy: Path, run: Run) -> None:
    llm = specrs.Llama(toy)
    plain = llm.generate("Hi", max_tokens=9, ignore_eos=True)
    stop = plain.tokens[3]
    flags = ["-p", "Hi", "--max-tokens", 9, "--ignore-eos"]
    ran = run("generate", toy, *flags, "--stop-token-id", stop)
    assert ran.out == llm.detokenize(plain.tokens[: plain.tokens.index(stop)]) + "\n"
    forced = [*flags, "--logit-bias", "0=1000"]
    assert run("generate", toy, *forced).out == "\n"
    assert run("generate", toy, *forced, "--special-tokens").out == "<end>" * 9 + "\n"
    assert run("generate", toy, *forced, "--special-tokens", "--stop", "<end>").out == "\n"


def test_stop_and_context_flags_arrive(toy: Path, run: Run) -> None:
    text = run("generate", toy, "-p", "Hello", "--ignore-eos", "--max-tokens", 50).out
    stop = text[20:22]
    ran = run("generate", toy, "-p", "Hello", "--ignore-eos", "--stop", stop, "--stop", "@@@@")
    assert ran.out == text[: text.index(stop)] + "\n"
    short = run("generate", toy, "-p", "Hello", "--ignore-eos", "--n-ctx", 25, "--threads", 1)
    assert short.out == text[:20] + "\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "missing.gguf", "-p", "x"], "missing.gguf: no such file"),
        (["generate", "gpt-9", "-p", "x"], "unknown model 'gpt-9'; known names are smollm2-135m"),
        (["generate", "TOY", "-p", ""], "the prompt is empty"),
        (["generate", "TOY", "-p", "x" * 5000], "5000 tokens, which leaves no room"),
        (["generate", "TOY", "-p", "x", "--temperature", "-1"], "temperature must be 0 or more"),
        (["generate", "TOY", "-p", "x", "--temperature", "nan"], "temperature must be 0 or more"),
        (["generate", "TOY", "-p", "x", "--seed", "lucky"], "--seed must be a number or random"),
        (["generate", "TOY", "-p", "x", "--seed", "-1"], "seed must be from 0 to 2**64 - 1"),
        (["generate", "TOY", "-p", "x", "--logit-bias", "3"], "--logit-bias must be ID=NUMBER"),
        (["generate", "TOY", "-p", "x", "--logit-bias", "999=1"], "token 999 is outside"),
        (["generate", "TOY", "-p", "x", "--top-p", "0"], "top_p must be above 0"),
        (["generate", "TOY", "-p", "x", "--max-tokens", "-3"], "--max-tokens must be 0 or more"),
        (["generate", "TOY", "-p", "x", "--max-tokens", "many"], "--max-tokens"),
        (
            ["generate", "TOY", "-p", "x", "--draft-length", "3"],
            "--draft-length needs --drafter or",
        ),
        (["generate", "TOY", "--drafter", "prompt-lookup", "--draft-length", "0"], "at least 1"),
        (["generate", "TOY", "-p", "x\udcff"], "prompt is no valid Unicode: character 1 is"),
        (["generate", "TOY", "-p", "x", "--p-min", "0.5"], "--p-min needs --draft-model"),
        (["generate", "TOY", "-p", "x", "--min-ngram-size", "2"], "need --drafter prompt-lookup"),
        (["generate", "TOY", "-p", "x", "--num-draft-tokens", "2"], "needs --drafter or"),
        (["generate", "TOY", "--drafter", "prompt-lookup", "--draft-model", "TOY"], "exclude"),
        (["generate", "TOY", "-p", "x", "--drafter", "magic"], "'prompt-lookup'"),
        (["generate", "TOY", "-p", "x", "--bogus"], "No such option: --bogus"),
        (["generate"], "Missing argument 'MODEL'"),
        (["inspect", "missing.gguf"], "missing.gguf"),
        (["pull", "gpt-9"], "unknown model"),
        (["pull", ""], "the name of the model is empty; known names are"),
        (["pull", "/"], "/ is no regular file"),
        (["dance"], "No such command 'dance'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    toy: Path, run: Run, arguments: list[str], words: str
) -> None:
    ran = run(*[toy if argument == "TOY" else argument for argument in arguments])
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert ran.err.startswith("specrs: ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "closed", "code", "out", "err"),
    [
        (["generate", "TOY"], "<&-", 2, "", "specrs: standard input is closed; give the prompt"),
        (["generate", "TOY", "-p", "abc"], ">&-", 2, "", "specrs: standard output is closed"),
        (["pull", "TOY"], "2>&-", 0, "TOY\n", ""),
        (["generate", "TOY", "-p", "abc", "--max-tokens", "0"], "2>&-", 0, "\n", ""),
        (["pull", "missing.gguf"], "2>&-", 2, "", ""),
    ],
)
def test_closed_streams(
    tmp_path: Path, arguments: list[str], closed: str, code: int, out: str, err: str
) -> None:
    toy = fake_engine.write_toy(tmp_path / "toy.gguf")
    given = [str(toy) if argument == "TOY" else argument for argument in arguments]
    ran = process(*given, shell=closed)
    got, errors = ran.communicate(timeout=60)
    assert (ran.returncode, got) == (code, out.replace("TOY", str(toy)))
    assert errors.startswith(err)
    assert errors.count("\n") == (1 if err else 0)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_text_that_the_terminal_cannot_show_fails_nothing(
    toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr("specrs.cli.files.shortened", lambda *_: "…\udcff")
    run("inspect", toy)
    out.flush()
    written = out.buffer.getvalue()
    shown = "…\udcff".encode("utf-8", "surrogateescape") if encoding == "utf-8" else b"??"
    assert b"  general.name = " + shown + b"\n" in written


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_standard_input_that_is_no_text(
    toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch, errors: str
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"ab\xff"), encoding="utf-8", errors=errors)
    monkeypatch.setattr(sys, "stdin", stdin)
    ran = run("generate", toy)
    assert (ran.code, ran.out) == (2, "")
    assert "standard input is not UTF-8 text ('utf-8' codec can't" in ran.err


def test_errors_of_the_system_carry_no_number(
    toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "there.gguf")

    monkeypatch.setattr(specrs, "pull", fail)
    assert run("pull", toy).err == "specrs: there.gguf: No such file or directory\n"


def test_a_model_too_large_for_memory_is_a_mistake_of_one_line(
    toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("there is no memory for the 8 bytes of the weights; close other programs")

    monkeypatch.setattr(specrs, "Llama", fail)
    ran = run("generate", toy, "-p", "x")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("specrs: there is no memory for the 8 bytes of the weights; close")


def test_a_fault_of_ours_is_not_called_a_mistake(
    toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specrs.text.TextWriter.ends", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("generate", toy, "-p", "x")


def test_inspect(toy: Path, run: Run) -> None:
    ran = run("inspect", toy)
    assert (ran.code, ran.err) == (0, "")
    for line in (
        "  general.name = 'toy'",
        "  Q4_1        2     2,560 B",
        "  F32         1       128 B",
        "  weights              1,000 B",
        "  KV cache, at most   32,000 B  (4,000 positions)",
        "Kernels: toy, 1 threads",
    ):
        assert line in ran.out.splitlines()
    assert "Notes" not in ran.out


def test_inspect_tells_what_cannot_be_followed(toy: Path, run: Run) -> None:
    noted = fake_engine.write_toy(toy.with_name("noted.gguf"), notes=["no token 7", "no token 8"])
    assert "\nNotes\n  no token 7\n  no token 8\n" in run("inspect", noted).out


def test_inspect_tells_the_licence_of_a_known_model(
    toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Licence" not in run("inspect", toy).out
    size = fake_engine.GgufFile(toy).size
    known = replace(MODELS["gemma3-270m"], filename=toy.name, size=size)
    monkeypatch.setitem(MODELS, "gemma3-270m", known)
    line = "Licence: Gemma Terms of Use, https://ai.google.dev/gemma/terms"
    assert run("inspect", toy).out.splitlines()[1] == line


def test_the_help_of_pull_tells_names_and_licences() -> None:
    out = " ".join(process("pull", "--help").communicate()[0].split())
    assert "smollm2-135m (licence: Apache-2.0); gemma3-270m (licence: Gemma Terms of Use" in out
    assert "hf:owner/repo:Q4_K_M" in out


def test_long_metadata_is_shortened() -> None:
    assert display.shortened(["a", "b", "c", "d", "e"]) == "['a', 'b', 'c', 'd', …] (5)"
    assert len(display.shortened("x" * 500)) == 70


def test_pull_prints_the_path(toy: Path, run: Run) -> None:
    assert run("pull", toy).out == f"{toy}\n"


def test_demo_shows_that_both_results_are_the_same(
    toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specrs, "pull", lambda name: {"smollm2-135m": toy}[name])
    ran = run("demo", "--max-tokens", 60)
    assert ran.code == 0
    text = specrs.Llama(toy).chat([{"role": "user", "content": DEMO_PROMPT}], max_tokens=60).text
    assert ran.out.count(text) == 2
    lines = ran.out.splitlines()
    assert any(line.startswith("identical: yes (") for line in lines)
    assert any(line.startswith("speed-up: ") and line.endswith("x") for line in lines)
    assert "drafted accepted" in ran.out


def test_demo_continues_text_with_a_model_that_does_not_chat(
    tmp_path: Path, toy: Path, run: Run
) -> None:
    settings = json.loads(toy.read_text())
    base = tmp_path / "base.gguf"
    base.write_text(json.dumps(settings | {"chat_template": None}))
    ran = run("demo", "--model", base, "--max-tokens", 60)
    assert ran.code == 0
    assert DEMO_RECORDS in ran.out
    assert ran.out.count(specrs.Llama(base).generate(DEMO_RECORDS, max_tokens=60).text) == 2
    assert "identical: yes (" in ran.out


def test_demo_fails_if_the_results_differ(
    toy: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specrs, "pull", lambda _: toy)
    # A verification that believes every draft.
    monkeypatch.setattr(
        "specrs.decoding.loop.verify", lambda picks, draft: [*draft, list(picks)[len(draft)]]
    )
    ran = run("demo", "--max-tokens", 60)
    assert ran.code == 1
    assert "identical: NO" in ran.out


# In a process of its own: toy models, and a word when the prompt is awaited.
COMMAND = """
import fake_engine, io, sys
fake_engine.pytest_configure()
import specrs.cli, specrs.llama
specrs.llama.Model, specrs.llama.Session = fake_engine.Model, fake_engine.Session

class Stdin(io.TextIOWrapper):
    def read(self, size=-1):
        print("reading", flush=True)
        return super().read(size)

if sys.stdin is not None:
    sys.stdin = Stdin(sys.stdin.buffer)
specrs.cli.main()
"""


def process(*arguments: object, shell: str = "", **options: object) -> subprocess.Popen[str]:
    """Run the command; `shell` redirects its streams."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        ["sh", "-c", f'exec "$@" {shell}', "sh", *command] if shell else command,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_help_and_version() -> None:
    out, err = process("--help").communicate()
    assert err == ""
    for command in ("demo", "generate", "inspect", "pull"):
        assert f"\n  {command} " in out
    nothing = process()
    out, err = nothing.communicate()
    assert (nothing.returncode, out) == (2, "")
    assert "Usage" in err


def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    """Ctrl-C while waiting for the prompt: exit code 130 and no traceback."""
    toy = fake_engine.write_toy(tmp_path / "toy.gguf")
    waiting = process("generate", toy, stdin=subprocess.PIPE)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "reading\n"
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=20)
    assert (waiting.returncode, out, err) == (130, "", "")
