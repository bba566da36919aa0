"""Suffix decoding: by frequency, as long as it is sure, with a corpus and without."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_engine import toy_llama
from specrs import SuffixCorpus, SuffixDecoding

IDS = st.lists(st.integers(0, 3), max_size=40)


def test_the_most_frequent_continuation_wins_and_among_equals_the_latest() -> None:
    assert SuffixDecoding().propose([1, 2, 1, 2, 1, 3, 1], 1) == [2]
    assert SuffixDecoding().propose([1, 2, 9, 1, 3, 9, 8, 1], 1) == [3]


def test_drafts_are_as_long_as_the_past_allows() -> None:
    passage = list(range(100, 120))
    repeated = SuffixDecoding().propose([*passage, 7, *passage[:6]], 16)
    assert repeated == passage[6:] + [7, 100][:2]
    assert repeated.matched == 6
    # After a single known token the guess soon becomes unlikely: 1/2 * 2/3 * 3/4 * …
    after_one = SuffixDecoding(min_probability=0.3).propose([*passage, 7, 105], 16)
    assert after_one == passage[6:8]
    assert after_one.matched == 1
    assert SuffixDecoding().propose([*passage, 7], 16) == []


def test_certainty_can_be_demanded() -> None:
    history = [1, 2, 1, 3, 1]
    assert SuffixDecoding(min_probability=0.2).propose(history, 4) == [3, 1]
    assert SuffixDecoding(min_probability=0.3).propose(history, 4) == [3]
    assert SuffixDecoding(min_probability=0.4).propose(history, 4) == []
    assert SuffixDecoding(min_probability=1.0).propose([5] * 30, 4) == []


@given(st.data())
def test_proposals_depend_on_history_and_corpus_alone(data: st.DataObject) -> None:
    corpus = SuffixCorpus(data.draw(st.integers(2, 12)))
    used = SuffixDecoding(8, max_depth=9, min_probability=0.05, corpus=corpus)
    tokens: list[int] = []
    for _ in range(data.draw(st.integers(1, 10))):
        tokens = tokens[: data.draw(st.integers(0, len(tokens)))] + data.draw(IDS)
        if data.draw(st.booleans()):
            corpus.add(data.draw(IDS))
        fresh = SuffixDecoding(8, max_depth=9, min_probability=0.05, corpus=corpus)
        k = data.draw(st.integers(0, 10))
        proposed = used.propose(tokens, k)
        assert proposed == fresh.propose(tokens, k)
        assert len(proposed) <= min(k, 8)


def test_nothing_leaks_without_a_corpus() -> None:
    drafter = SuffixDecoding()
    assert drafter.propose([1, 2, 3, 4, 1, 2], 2) == [3, 4]
    assert drafter.propose([2, 3], 2) == []
    assert drafter.propose([5, 1, 2], 2) == []


def test_a_corpus_is_shared_and_only_read() -> None:
    corpus = SuffixCorpus()
    corpus.add([1, 2, 3, 4, 5])
    corpus.add([9, 4, 5, 7])
    one, two = SuffixDecoding(corpus=corpus), SuffixDecoding(corpus=corpus)
    assert one.propose([8, 2, 3], 8) == [4, 5]
    assert two.propose([3, 9, 4], 8) == [5, 7]
    assert one.propose([6, 6, 6, 6, 1, 2, 6], 1) == [6]  # its own history counts too
    assert len(corpus) == 9
    # Texts do not run into each other, and what is added is found at once.
    assert one.propose([8, 4, 5], 8) == [7]
    corpus.add([2, 3, 30])
    corpus.add([2, 3, 30])
    assert one.propose([8, 2, 3], 1) == [30]
    assert repr(corpus) == "<SuffixCorpus of 4 texts, 15 tokens>"


def test_a_corpus_survives_a_file(tmp_path: Path) -> None:
    corpus = SuffixCorpus(max_depth=10)
    for text in ([1, 2, 3, 4], [], [70_000, 2, 3, 5], [2, 3, 5]):
        corpus.add(text)
    path = tmp_path / "corpus"
    corpus.save(path)
    loaded = SuffixCorpus.load(path)
    assert (loaded.max_depth, loaded.max_token, len(loaded)) == (10, 70_000, 11)
    for history in ([1, 2], [8, 2, 3], [70_000]):
        ours = SuffixDecoding(corpus=corpus).propose(history, 4)
        assert SuffixDecoding(corpus=loaded).propose(history, 4) == ours != []
    assert list(tmp_path.iterdir()) == [path]
    # What a saved copy learns stays in it.
    loaded.add([1, 2, 9])
    assert len(SuffixCorpus.load(path)) == 11


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda _: b"", "no corpus"),
        (lambda _: b"[1, 2]\n", "no corpus"),
        (lambda data: data.replace(b"corpus 1", b"corpus 9"), "another version"),
        (lambda data: data[:-1], "damaged"),
        (lambda data: data[:-3] + b"xyz", "damaged"),
        (lambda data: data.replace(b"[3, 2]", b"[3, 1]"), "damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Any, words: str) -> None:
    corpus = SuffixCorpus()
    corpus.add([1, 2, 3])
    corpus.add([4, 5])
    path = tmp_path / "corpus"
    corpus.save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=words):
        SuffixCorpus.load(path)
    with pytest.raises(FileNotFoundError):
        SuffixCorpus.load(tmp_path / "none")


def test_a_corpus_of_another_vocabulary_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    llm = toy_llama(monkeypatch, tmp_path / "toy")
    corpus = SuffixCorpus()
    corpus.add([3, 30])
    with pytest.raises(ValueError, match="SuffixDecoding: the corpus holds token 30, outside"):
        llm.generate([5, 6], drafter=SuffixDecoding(corpus=corpus))


def test_threads_share_a_corpus_that_grows() -> None:
    corpus = SuffixCorpus()
    corpus.add([1, 2, 3, 4])
    wrong: list[object] = []

    def look_up() -> None:
        drafter = SuffixDecoding(corpus=corpus)
        for i in range(300):
            if drafter.propose([i + 100, 1, 2], 2) != [3, 4]:
                wrong.append(i)

    threads = [threading.Thread(target=look_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(300):
        corpus.add([1000 + i, 1001 + i])
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"num_draft_tokens": 0}, ValueError, "num_draft_tokens must be at least 1, not 0"),
        ({"min_probability": 1.5}, ValueError, "min_probability must be from 0 to 1, not 1.5"),
        ({"min_probability": float("nan")}, ValueError, "min_probability must be from 0 to 1"),
        ({"max_depth": 1}, ValueError, "max_depth must be at least 2, not 1"),
        ({"corpus": [1, 2]}, TypeError, "corpus must be a specrs.SuffixCorpus, not"),
    ],
)
def test_settings_out_of_range(
    settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=f"SuffixDecoding: {words}"):
        SuffixDecoding(**settings)


def test_what_a_corpus_refuses() -> None:
    with pytest.raises(ValueError, match="SuffixCorpus: max_depth must be at least 2"):
        SuffixCorpus(1)
    corpus = SuffixCorpus()
    for wrong in ([1.5], ["a"], 5):
        with pytest.raises(TypeError):
            corpus.add(wrong)  # type: ignore[arg-type]
    for token in (-1, 2**32):
        with pytest.raises(ValueError, match="SuffixCorpus: token ids are from 0 to 4294967295"):
            corpus.add([3, token])
    assert len(corpus) == 0
