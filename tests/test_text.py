"""Text of a stream: stop strings never leak, characters are never torn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_engine import Scripted, TextStream, as_bytes, toy_llama
from specrs import Drafter, FixedLength
from specrs.decoding.step import Step
from specrs.text import TextWriter

SMILE = "😀".encode()


class Says:
    """A toy model that answers one prompt token with a fixed sequence of vocabulary entries."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pieces: list[str], **settings: Any
    ) -> None:
        vocab = ["<end>", "?", *dict.fromkeys(pieces)]
        self.ids = [vocab.index(piece) for piece in pieces]
        self.llm = toy_llama(
            monkeypatch,
            tmp_path / "toy",
            vocab=vocab,
            eos=0,
            script={str(i + 1): token for i, token in enumerate([*self.ids, 0])},
            **{"control": [0], **settings},
        )

    def drafter(self, block: int) -> Drafter | None:
        return Scripted([1, *self.ids, 0]) if block else None

    def stream(self, block: int, **options: Any) -> tuple[list[str], list[int], Any]:
        session = self.llm.session()
        drafter = self.drafter(block)
        if drafter is not None:
            options["draft_length"] = FixedLength(block)
        stream = self.llm.stream([1], session=session, drafter=drafter, **options)
        chunks = list(stream)
        tokens = [token for chunk in chunks for token in chunk.tokens]
        assert session.tokens == [1, *tokens][:-1]
        assert stream.stats.tokens_generated == len(tokens)
        whole = self.llm.generate([1], drafter=drafter, **options)
        assert whole.text == "".join(chunk.text for chunk in chunks)
        assert (whole.tokens, whole.finish_reason) == (tokens, stream.finish_reason)
        return [chunk.text for chunk in chunks], tokens, stream


@pytest.mark.parametrize("block", [0, 1, 2, 3, 7, 16])
@pytest.mark.parametrize(
    ("pieces", "stop", "text", "kept"),
    [
        (["ab", "c", "D", "EF", "G", "h"], "DEFG", "abc", 5),
        (["ab", "cD", "EF", "Gh", "i"], "DEFG", "abc", 4),
        (["D", "EF", "x", "D", "EF", "G"], "DEFG", "DEFx", 6),
        (["D", "D", "EF", "G", "h"], "DEFG", "D", 4),
        (["D", "EF"], "DEFG", "DEF", 3),
        (["ab", "cab", "cab", "d"], "abcabd", "abc", 4),
        (["xDEFGy", "z"], ["EF", "DEFG"], "x", 1),
        (["ab", "cd"], ["q", "bc"], "a", 2),
        (["ab", "cd"], ["zz"], "abcd", 3),
        (["a", "\n", "\n", "b"], "\n\n", "a", 3),
    ],
)
def test_stop_strings(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    block: int,
    pieces: list[str],
    stop: str | list[str],
    text: str,
    kept: int,
) -> None:
    says = Says(monkeypatch, tmp_path, pieces)
    texts, tokens, stream = says.stream(block, stop=stop)
    assert "".join(texts) == text
    assert tokens == [*says.ids, 0][:kept]
    assert stream.finish_reason == "stop"


@pytest.mark.parametrize("block", [0, 1, 3])
def test_stop_token_ids_end_a_generation_as_end_tokens_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, block: int
) -> None:
    says = Says(monkeypatch, tmp_path, ["ab", "c", "d", "e"])
    for ids in ([says.ids[2]], {says.ids[2], says.ids[3]}, (says.ids[2], 1)):
        texts, tokens, stream = says.stream(block, stop_token_ids=ids)
        assert ("".join(texts), tokens) == ("abc", says.ids[:3])
        assert stream.finish_reason == "stop"
    texts, _, _ = says.stream(block, stop_token_ids=[says.ids[1]], ignore_eos=True)
    assert "".join(texts) == "ab"


@pytest.mark.parametrize("block", [0, 1, 3])
@pytest.mark.parametrize("skip", [True, False])
def test_a_stop_text_that_is_a_control_token_ends_at_that_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, block: int, skip: bool
) -> None:
    says = Says(monkeypatch, tmp_path, ["ab", "<|stop|>", "c"], control=[0, 3])
    options: Any = {"skip_special_tokens": skip, "ignore_eos": True, "max_tokens": 4}
    texts, tokens, stream = says.stream(block, stop=["zz", "<|stop|>"], **options)
    assert ("".join(texts), tokens) == ("ab", says.ids[:2])
    assert stream.finish_reason == "stop"
    texts, _, _ = says.stream(block, **options)
    assert "".join(texts) == ("abc" if skip else "ab<|stop|>c<end>")
    # An end token is not a part of the text, whether others are shown or not.
    texts, _, _ = says.stream(block, skip_special_tokens=skip)
    assert "".join(texts) == ("abc" if skip else "ab<|stop|>c")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"stop_token_ids": [5]}, ValueError, r"stop_token_ids\[0\] is 5, outside .* of 5"),
        ({"stop_token_ids": [1, -1]}, ValueError, r"stop_token_ids\[1\] is -1"),
        ({"stop_token_ids": ["ab"]}, TypeError, r"stop_token_ids\[0\] must be a token id"),
        ({"stop_token_ids": 3}, TypeError, "must be token ids, not 3"),
        ({"stop_token_ids": "ab"}, TypeError, "must be token ids, not 'ab'"),
        ({"skip_special_tokens": 0}, TypeError, "skip_special_tokens must be True or False"),
    ],
)
def test_wrong_stops_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: Any,
    error: type[Exception],
    words: str,
) -> None:
    says = Says(monkeypatch, tmp_path, ["ab", "c", "d"])
    with pytest.raises(error, match=words):
        says.llm.generate([1], **options)


def test_text_is_held_only_as_long_as_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    says = Says(monkeypatch, tmp_path, ["ab", "D", "E", "x", "D"])
    texts, _, _ = says.stream(0, stop="DEFG")
    assert texts == ["ab", "", "", "DEx", "", "D"]


def test_max_tokens_releases_what_was_held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    says = Says(monkeypatch, tmp_path, ["ab", "D", "EF", "G"])
    texts, _, stream = says.stream(0, stop="DEFG", max_tokens=3)
    assert "".join(texts) == "abDEF"
    assert stream.finish_reason == "length"


@pytest.mark.parametrize("block", [0, 1, 2, 3, 16])
@pytest.mark.parametrize(
    "cuts",
    [[4], [1, 2, 3, 4], [3, 4], [2, 4], [1, 4], [3], [1, 2], [0, 1]],
)
def test_an_emoji_over_several_tokens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, block: int, cuts: list[int]
) -> None:
    starts = [0, *cuts[:-1]]
    pieces = [f"hex:{SMILE[a:b].hex()}" for a, b in zip(starts, cuts, strict=True) if a < b]
    says = Says(monkeypatch, tmp_path, ["hi ", *pieces, "!"])
    texts, tokens, _ = says.stream(block)
    expected = (b"hi " + SMILE[: cuts[-1]] + b"!").decode(errors="replace")
    assert "".join(texts) == expected == says.llm.detokenize(tokens)
    if cuts[-1] == 4:
        assert "\ufffd" not in "".join(texts)


@pytest.mark.parametrize("pieces", [["a", "hex:ff", "b"], ["a", "hex:20f0"], ["hex:f09f98"]])
def test_stray_and_unfinished_bytes_become_one_mark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pieces: list[str]
) -> None:
    says = Says(monkeypatch, tmp_path, pieces)
    texts, _, _ = says.stream(0)
    assert "".join(texts) == b"".join(map(as_bytes, pieces)).decode(errors="replace")
    assert "".join(texts).count("\ufffd") == 1


def test_chunks_tell_what_was_drafted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    says = Says(monkeypatch, tmp_path, ["a", "b", "c", "d", "e"])
    drafter = Scripted([1, *says.ids[:2], 1, *says.ids[3:], 0])
    stream = says.llm.stream([1], drafter=drafter, draft_length=FixedLength(8))
    shown = [(chunk.text, len(chunk.tokens), chunk.from_draft) for chunk in stream]
    # The first draft is wrong at its third id, the second right to the end.
    assert shown == [("ab", 2, True), ("c", 1, False), ("de", 3, True)]


@given(
    st.lists(st.text("ab", max_size=3), max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_any_cutting_into_tokens_ends_at_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    writer = TextWriter(
        TextStream([piece.encode() for piece in pieces]),
        stops,
    )
    given_out, taken = "", ""
    for i, piece in enumerate(pieces):
        taken += piece
        ended = writer.ends(i)
        reason = "stop" if ended else "length" if i == len(pieces) - 1 else None
        step = Step(i, [i], None, 0, 0, 1, 0.0, 0.0, reason)  # type: ignore[arg-type]
        given_out += "".join(chunk.text for chunk in writer.chunks(step))
        found = [taken.find(stop) for stop in stops if stop in taken]
        assert ended == bool(found)
        if ended:
            assert given_out == taken[: min(found)]
            return
        held = len(taken) - len(given_out)
        assert taken.startswith(given_out)
        if held:
            assert any(stop.startswith(taken[-held:]) for stop in stops)
    assert given_out == taken
