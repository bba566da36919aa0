"""Files that are saved whole under any name, and lines of JSON."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from specrs import SuffixCorpus, SuffixDecoding, Trace
from specrs.cli.bench import read_prompts
from specrs.decoding.step import Step
from specrs.files import json_lines, replace_file

# As long as names may be on Linux and macOS, in bytes.
LONG = "é" * 120 + "0123456789"
SEPARATORS = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"


def saved_corpus(path: Path) -> None:
    corpus = SuffixCorpus()
    corpus.add([1, 2, 3])
    corpus.save(path)
    assert len(SuffixCorpus.load(path)) == 3


def saved_trace(path: Path) -> None:
    trace = Trace([1, 2], [Step(2, [3], None, 0, 0, 2, 0.0, 0.1, "length")])
    trace.save(path)
    assert Trace.load(path) == trace


@pytest.mark.parametrize("save", [saved_corpus, saved_trace])
def test_a_name_of_250_bytes_can_be_saved(tmp_path: Path, save: Callable[[Path], None]) -> None:
    assert len(os.fsencode(LONG)) == 250
    save(tmp_path / LONG)
    save(tmp_path / LONG)  # and written over
    assert [path.name for path in tmp_path.iterdir()] == [LONG]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def parts() -> object:
        yield b"new"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        replace_file(path, parts())  # type: ignore[arg-type]
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError) as missing:
        replace_file(tmp_path / "nowhere" / "file", [b"new"])
    assert missing.value.filename == str(tmp_path / "nowhere" / "file")


def test_only_line_feeds_separate_lines_of_json(tmp_path: Path) -> None:
    texts = [SEPARATORS, "", "second"]
    lines = [json.dumps({"task": "a", "prompt": text}, ensure_ascii=False) for text in texts]
    data = b"\xef\xbb\xbf" + "\n\r\n".join(lines).encode() + b"\n\n"
    assert [(n, json.loads(line)["prompt"]) for n, line in json_lines(data)] == [
        (1, SEPARATORS),
        (3, ""),
        (5, "second"),
    ]


def test_bench_reads_prompts_with_any_separator(tmp_path: Path) -> None:
    class Spelling:
        class tokenizer:  # noqa: N801 - as the attribute is called
            chat_template = None

        def tokenize(self, text: str) -> list[int]:
            return list(text.encode())

    file = tmp_path / "prompts.jsonl"
    row = json.dumps({"task": "a", "prompt": SEPARATORS}, ensure_ascii=False)
    file.write_bytes(b"\xef\xbb\xbf" + row.encode() + b"\n\n")
    (prompt,) = read_prompts(Spelling(), file, None)  # type: ignore[arg-type]
    assert bytes(prompt.tokens).decode() == SEPARATORS


def test_an_index_takes_a_long_history_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So Ctrl-C is heard in between, and the next call goes on."""
    drafter, history = SuffixDecoding(), [i % 97 for i in range(50_000)]
    expected = drafter.propose(history, 8)
    assert len(expected) == 8
    drafter = SuffixDecoding()
    taken: list[int] = []

    class Interrupted:
        def __init__(self, index: object) -> None:
            self.index = index

        def __getattr__(self, name: str) -> object:
            return getattr(self.index, name)

        def __len__(self) -> int:
            return len(self.index)  # type: ignore[arg-type]

        def extend(self, ids: list[int]) -> None:
            taken.append(len(ids))
            if len(taken) == 2:
                raise KeyboardInterrupt
            self.index.extend(ids)  # type: ignore[attr-defined]

    drafter._index = Interrupted(drafter._index)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        drafter.propose(history, 8)
    assert drafter.propose(history, 8) == expected
    assert max(taken) < 20_000
    assert taken[0] + sum(taken[2:]) == len(history)
