"""`specrs chat`: over pipes, and as somebody sees it who types."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import specrs
from conftest import Ran, Run
from specrs.cli.chat import Terminal
from test_cli import COMMAND

Talk = Callable[..., Ran]
Message = dict[str, str]

CLEAR = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"


@pytest.fixture
def model(toy: Path) -> Path:
    """Return a toy whose replies depend on the whole conversation."""
    return changed(toy, order=4000, end_ids=[], chat_template=CLEAR)


def changed(toy: Path, **settings: Any) -> Path:
    """Change settings of a toy."""
    toy.write_text(json.dumps(json.loads(toy.read_text()) | settings))
    return toy


@pytest.fixture
def talk(model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Send lines over a pipe."""

    def talk(lines: list[str], *flags: object) -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return run("chat", model, "--max-tokens", 9, *flags)

    return talk


@pytest.fixture
def sit(model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Type messages at a terminal that shows colours."""

    def sit(messages: list[str], *flags: object) -> Ran:
        monkeypatch.setattr(Terminal, "messages", lambda _: iter(messages))
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "200")):
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("NO_COLOR", raising=False)
        return run("chat", model, *flags)

    return sit


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def replies(model: Path, history: list[Message], texts: list[str], **options: Any) -> list[str]:
    """Return what the model says to one text after the other."""
    llm, history = specrs.Llama(model), list(history)
    for text in texts:
        history.append(user(text))
        said = llm.chat(history, **{"max_tokens": 9, **options}).text
        history.append({"role": "assistant", "content": said})
    return [message["content"] for message in history if message["role"] == "assistant"]


def test_each_line_of_a_pipe_is_a_turn_of_one_conversation(talk: Talk, model: Path) -> None:
    asked = ["Hello", "a\\", "//etc", "what?"]
    ran = talk([asked[0], asked[1], "", asked[2], asked[3]])
    wanted = replies(model, [], ["Hello", "a\\", "/etc", "what?"])
    assert (ran.code, ran.out) == (0, "".join(f"{reply}\n" for reply in wanted))
    assert "\x1b" not in ran.out


def test_flags_of_the_chat_arrive(talk: Talk, model: Path) -> None:
    system = {"role": "system", "content": "Be kind"}
    sampling = specrs.Sampling(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, seed=3)
    flags = ["--temperature", 0.9, "--top-k", 20, "--top-p", 0.9, "--min-p", 0.01, "--seed", 3]
    for drafter in (["--drafter", "none"], ["--draft-model", model], []):
        ran = talk(["Hello"], "--system", "Be kind", *flags, *drafter)
        assert ran.out == replies(model, [system], ["Hello"], sampling=sampling)[0] + "\n"


def test_commands_change_the_conversation(talk: Talk, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "saved.jsonl"
    ran = talk(["a", "/system Be brief", "b", "/save " + str(file), "/clear", "c", "/stats"])
    system = {"role": "system", "content": "Be brief"}
    (first,) = replies(model, [], ["a"])
    history = [system, user("a"), {"role": "assistant", "content": first}]
    second = replies(model, history, ["b"])[-1]
    third = replies(model, [system], ["c"])[-1]
    assert (ran.code, ran.out) == (0, f"{first}\n{second}\n{third}\n")
    assert "tokens/s" in ran.err
    assert " of 4,000 tokens of context used" in ran.err
    lines = [json.loads(line) for line in file.read_text().split("\n") if line]
    assert lines == [*history, user("b"), {"role": "assistant", "content": second}]
    # What was saved is gone on with.
    ran = talk([f"/load {file}", "d"])
    assert ran.out == replies(model, lines, ["d"])[-1] + "\n"


def test_regenerating_draws_with_another_seed(talk: Talk, model: Path) -> None:
    ran = talk(["a", "/regenerate", "b"], "--temperature", 1, "--seed", 5)
    first = replies(model, [], ["a"], sampling=specrs.Sampling(temperature=1, seed=5))[0]
    again = replies(model, [], ["a"], sampling=specrs.Sampling(temperature=1, seed=6))[0]
    assert first != again
    history = [user("a"), {"role": "assistant", "content": again}]
    second = replies(model, history, ["b"], sampling=specrs.Sampling(temperature=1, seed=5))[-1]
    assert ran.out == f"{first}\n{again}\n{second}\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/dance", "there is no command /dance; /help lists them"),
        ("/regenerate", "there is no reply yet"),
        ("/load", "give the name of a file"),
        ("/load nowhere.jsonl", "No such file"),
        ("é", "cannot spell"),
        ("x" * 5000, "which leaves no room"),
    ],
)
def test_what_goes_wrong_is_said_and_the_talk_goes_on(
    talk: Talk, model: Path, line: str, words: str
) -> None:
    ran = talk([line, "a"])
    assert (ran.code, ran.out) == (1, replies(model, [], ["a"])[0] + "\n")
    assert words in ran.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1: must be an object"),
        ('\n{"role": "robot", "content": "a"}', "line 2: must be an object"),
        ('{"role": "user", "content": ["a"]}', '"content", a text'),
        ('{"role": "user", "content": "a"}', "ends with a message of the user"),
    ],
)
def test_a_file_that_is_no_conversation_changes_nothing(
    talk: Talk, model: Path, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "file").write_text(text)
    ran = talk(["a", f"/load {tmp_path / 'file'}", "b"])
    assert ran.out == "".join(f"{reply}\n" for reply in replies(model, [], ["a", "b"]))
    assert words in ran.err


def test_where_the_context_is_full_the_oldest_turns_go_and_it_is_said(
    talk: Talk, model: Path
) -> None:
    system, texts = {"role": "system", "content": "S" * 10}, [letter * 30 for letter in "abcdef"]
    ran = talk(texts, "--system", system["content"], "--n-ctx", 160)
    assert ran.code == 0
    # A turn has 30 + 9 letters and six of the template, so three leave no room for a fourth.
    assert ran.err.count("the context is full: the oldest 2 turns are forgotten") == 2
    llm = specrs.Llama(model, n_ctx=160)
    history, said = [system], []
    for text in texts:
        history.append(user(text))
        if 160 - len(llm.chat_tokens(history)) < 9:
            while 160 - len(llm.chat_tokens(history)) < 40:
                del history[1:3]
        said.append(llm.chat(history, max_tokens=9).text)
        history.append({"role": "assistant", "content": said[-1]})
    assert ran.out == "".join(f"{text}\n" for text in said)


def test_only_new_messages_are_evaluated(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    cached: list[int] = []
    record = specrs.Stats.record

    def recorded(self: specrs.Stats, step: Any) -> None:
        record(self, step)
        if self.forward_calls == 1:
            cached.append(self.cached_tokens)

    monkeypatch.setattr(specrs.Stats, "record", recorded)
    talk(["Hello", "again"])
    assert cached[0] == 0
    assert cached[1] >= len("u:Hello;")


def test_a_reply_that_was_cut_says_why(talk: Talk) -> None:
    assert "the reply was cut at --max-tokens" in talk(["Hello"]).err
    ran = talk(["a" * 100], "--n-ctx", 106)
    assert "the context is full" in ran.err


def test_accepted_drafts_are_green_and_nothing_else_is_obeyed(sit: Talk, model: Path) -> None:
    changed(model, order=1)
    (text,) = replies(model, [], ["Hello"], max_tokens=300)
    assert len(text) > 250, "the toy is to repeat itself"
    ran = sit(["Hello"], "--max-tokens", 300)
    assert ran.code == 0
    assert "\x1b[32m" in ran.out
    plain = ran.out.replace("\x1b[32m", "").replace("\x1b[0m", "")
    for char in "\r\x0b\x0c":
        text = text.replace(char, ascii(char)[1:-1])
    assert plain == text + "\n"
    assert "\x1b[32m" not in sit(["Hello"], "--drafter", "none").out


def test_thoughts_are_dim_and_stand_apart(talk: Talk, sit: Talk, model: Path) -> None:
    settings = json.loads(model.read_text())
    reply = [settings["vocab"].index(character) for character in "<think>Hm.</think>Yes"]
    script = dict(enumerate([*reply, 0], len("u:Hello;")))
    changed(model, script=script, eos=0, end_ids=[0], chat_template=f"{{# </think> #}}{CLEAR}")
    ran = sit(["Hello"], "--drafter", "none")
    assert ran.out.replace("\x1b[0m\x1b[2m", "") == "\x1b[2mHm.\n\x1b[0mYes\n"
    ran = talk(["Hello"], "--max-tokens", 50)
    assert (ran.out, ran.err) == ("Yes\n", "Hm.\n")


def test_ctrl_c_stops_the_reply_only(
    sit: Talk, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chunks = specrs.text.TextWriter.chunks
    calls: list[int] = []

    def interrupted(self: Any, step: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            signal.raise_signal(signal.SIGINT)
        return chunks(self, step)

    monkeypatch.setattr("specrs.text.TextWriter.chunks", interrupted)
    file = tmp_path / "saved"
    ran = sit(["Hello", f"/save {file}", "and?"], "--drafter", "none", "--max-tokens", 9)
    assert ran.code == 0
    assert "specrs: stopped\n" in ran.err
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert kept[0] == user("Hello")
    (whole,) = replies(model, [], ["Hello"])
    assert 0 < len(kept[1]["content"]) < len(whole)
    assert whole.startswith(kept[1]["content"])
    assert ran.out.endswith(replies(model, kept, ["and?"])[-1] + "\n")


def test_models_that_cannot_chat_are_named(talk: Talk, model: Path) -> None:
    changed(model, chat_template=None)
    ran = talk(["Hello"])
    assert (ran.code, ran.out) == (2, "")
    assert "has no chat template" in ran.err
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    changed(model, chat_template=refusing)
    ran = talk(["Hello"], "--system", "Be kind")
    assert (ran.code, "no system" in ran.err) == (2, True)


class Typist:
    """Somebody at a real terminal."""

    def __init__(self, toy: Path) -> None:
        self._ours, theirs = pty.openpty()
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        quiet = {"TERM": "dumb", "INPUTRC": os.devnull, "PYTHONPATH": path}
        command = [sys.executable, "-c", COMMAND, "chat", str(toy), "--max-tokens", "5"]
        self.child = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **quiet}
        )
        os.close(theirs)

    def until(self, end: str) -> str:
        """Return what is shown up to `end`, or up to where the program ends."""
        shown = b""
        while not shown.endswith(end.encode()):
            try:
                shown += os.read(self._ours, 1)
            except OSError:  # the other side is closed
                break
        return shown.decode()

    def types(self, keys: str, end: str) -> str:
        """Press keys; return what is shown up to `end`."""
        os.write(self._ours, keys.encode())
        return self.until(end)

    def interrupts(self) -> None:
        """Press Ctrl-C until it is noticed: readline misses it while it shows its prompt."""
        ready: list[Any] = []
        while not ready:
            self.child.send_signal(signal.SIGINT)
            ready, _, _ = select.select([self._ours], [], [], 0.3)

    def leave(self) -> None:
        """Free what is left."""
        self.child.wait(20)
        os.close(self._ours)


@pytest.fixture
def typist(model: Path) -> Iterator[Typist]:
    typist = Typist(model)
    yield typist
    typist.child.kill()
    typist.leave()


def test_lines_are_typed_continued_and_ended_at_a_terminal(typist: Typist) -> None:
    assert "/help lists the commands" in typist.until("\n> ")
    assert typist.types("Hel\\\n", "\n  ").count("Hel") == 1
    typist.types("lo\n", "\n> ")
    assert " of 4,000 tokens of context used" in typist.types("/stats\n", "\n> ")
    # u:Hel, a line break, lo; and the reply.
    assert "specrs: 14 of" in typist.types("/stats\n", "\n> ")
    typist.interrupts()
    assert "specrs: Ctrl-D or /exit ends" in typist.until("\n> ")
    typist.types("\x04", "never shown")
    assert typist.child.wait(20) == 0
