"""Length policies of the user's own: what they answer wrongly is told by their name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fake_engine import toy_llama
from specrs import FixedLength, Llama

PROMPT = [5, 6, 7, 8]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_llama(monkeypatch, tmp_path / "toy", n_ctx=64, order=1)


class Guesser:
    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int]:
        return [3] * k


class Policy:
    """Answers, or raises, what it is told to."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"next": 2, "keep": 2, "update": None, **answers}

    def answer(self, method: str) -> Any:
        answer = self.answers[method]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def next(self, drafter: str) -> int:
        return self.answer("next")  # type: ignore[no-any-return]

    def keep(self, draft: Sequence[int]) -> int:
        return self.answer("keep")  # type: ignore[no-any-return]

    def update(self, outcome: object) -> None:
        self.answer("update")


@pytest.mark.parametrize("method", ["next", "keep"])
@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (-1, ValueError, "returns must be 0 or more, not -1"),
        (True, TypeError, "returns must be an int, not True"),
        (1.5, TypeError, "returns must be an int, not 1.5"),
        (None, TypeError, "returns must be an int, not None"),
        (KeyError("lost"), RuntimeError, "failed: KeyError"),
    ],
)
def test_a_faulty_policy_is_named(
    llm: Llama, method: str, answer: Any, error: type[Exception], words: str
) -> None:
    session = llm.session()
    policy = Policy(**{method: answer})
    with pytest.raises(error, match=rf"draft_length: .*Policy\.{method}\(\) {words}"):
        llm.generate(PROMPT, drafter=Guesser(), draft_length=policy, session=session)
    plain = llm.generate(PROMPT, max_tokens=20)
    assert llm.generate(PROMPT, max_tokens=20, session=session).tokens == plain.tokens


def test_a_policy_that_cannot_learn_is_named_and_the_session_stays_right(llm: Llama) -> None:
    session = llm.session()
    policy = Policy(update=KeyError("lost"))
    with pytest.raises(RuntimeError, match=r"draft_length: Policy\.update\(\) failed: KeyError"):
        llm.generate(PROMPT, drafter=Guesser(), draft_length=policy, session=session)
    plain = llm.generate(PROMPT, max_tokens=20)
    assert session.tokens == [*PROMPT, *plain.tokens][: len(session)]
    assert llm.generate(PROMPT, max_tokens=20, session=session).tokens == plain.tokens


def test_a_policy_that_answers_well_changes_nothing(llm: Llama) -> None:
    plain = llm.generate(PROMPT, max_tokens=20)
    for policy in (Policy(), Policy(next=0), Policy(keep=0), Policy(keep=1), FixedLength(3)):
        drafted = llm.generate(PROMPT, max_tokens=20, drafter=Guesser(), draft_length=policy)
        assert drafted.tokens == plain.tokens


@pytest.mark.parametrize(
    ("k", "error", "words"),
    [
        ("x", TypeError, "an int, not 'x'"),
        (1.5, TypeError, "an int, not 1.5"),
        (True, TypeError, "an int, not True"),
        (0, ValueError, "at least 1, not 0"),
    ],
)
def test_fixed_length_of_no_number(k: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"FixedLength: k must be {words}"):
        FixedLength(k)
