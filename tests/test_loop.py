"""The loop without a session: what it wants evaluated, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from fake_engine import Model, Scripted, Session, write_toy
from specrs import Draft, FixedLength, PromptLookup, Sampling
from specrs.decoding.generate import cached, evaluate, steps
from specrs.decoding.loop import Generation
from specrs.decoding.step import Evaluation, Proposal, Step

PROMPT = [5, 6, 7, 8]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(write_toy(tmp_path / "toy", n_ctx=64, order=2))


def generation(prompt: list[int] = PROMPT, **options: Any) -> Generation:
    settings: dict[str, Any] = {
        "n_ctx": 64,
        "n_vocab": 30,
        "max_tokens": 20,
        "sampling": Sampling(),
        "drafter": None,
        "length": FixedLength(3),
        "ends": lambda _: False,
    }
    return Generation(prompt=prompt, **settings | options)


def alone(model: Model, task: Generation) -> list[int]:
    return [token for step in steps(model.session(), task) for token in step.tokens]  # type: ignore[arg-type]


def test_the_loop_takes_and_gives_plain_data() -> None:
    task = generation(max_tokens=5, drafter=Scripted([*PROMPT, 9, 10, 11]))
    loop = task.run(1)
    assert next(loop) == Proposal(task.drafter, task.length, PROMPT, room=4, n_vocab=30)  # type: ignore[arg-type]
    assert loop.send(Draft([9, 10, 11])) == Evaluation(1, [6, 7, 8, 9, 10, 11], positions=4)
    step = loop.send([9, 10, 3, 12])
    assert isinstance(step, Step)
    assert (step.position, step.tokens, step.drafted, step.accepted) == (4, [9, 10, 3], 3, 2)
    assert step.settled == 6
    assert isinstance(next(loop), Proposal)
    assert loop.send(Draft()) == Evaluation(6, [3], positions=1)
    step = loop.send([4])
    assert isinstance(step, Step)
    assert (step.tokens, step.finish_reason) == ([4], None)
    assert next(loop) == Evaluation(7, [4], positions=1)
    step = loop.send([8])
    assert isinstance(step, Step)
    assert (step.tokens, step.finish_reason) == ([8], "length")
    with pytest.raises(StopIteration):
        next(loop)


def test_a_prompt_with_progress_is_evaluated_before_its_last_token() -> None:
    def progress(done: int, total: int) -> None: ...

    loop = generation(progress=progress).run(0)
    assert next(loop) == Evaluation(0, [5, 6, 7], 0, progress=progress, prompt_length=4)
    assert next(loop) == Evaluation(3, [8], 1)


def test_what_a_choice_takes_is_what_is_asked_for() -> None:
    for options in ({"sampling": Sampling(temperature=1.0)}, {"logprobs": 0}):
        wanted = next(generation(**options).run(0))
        assert isinstance(wanted, Evaluation)
        assert wanted.logits


TASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "drafting": {"drafter": PromptLookup(), "prompt": [5, 6] * 6},
    "sampled": {"sampling": Sampling(temperature=1.0, seed=3), "max_tokens": 9},
    "short": {"max_tokens": 2, "prompt": [9]},
}


@pytest.mark.parametrize("first", TASKS)
@pytest.mark.parametrize("second", TASKS)
def test_two_generations_in_lockstep_are_each_as_alone(
    model: Model, first: str, second: str
) -> None:
    """One evaluation of each at a time, as a scheduler batches them; one session is used before."""
    tasks = [generation(**TASKS[name]) for name in (first, second)]
    sessions = [model.session() for _ in tasks]
    sessions[1].forward([9, 5])
    made: list[list[int]] = [[], []]
    leases = [session.lease() for session in sessions]
    loops = [
        task.run(cached(session.tokens, [], task.prompt, None))
        for task, session in zip(tasks, sessions, strict=True)
    ]
    answers: dict[int, Any] = {0: None, 1: None}
    while answers:
        wanted: dict[int, Evaluation] = {}
        for i, answer in answers.items():
            for event in sent(loops[i], answer):
                if isinstance(event, Step):
                    made[i] += event.tokens
                else:
                    wanted[i] = event
        for i, evaluation in wanted.items():
            leases[i].truncate(evaluation.start)
        answers = {i: evaluate(leases[i], one) for i, one in wanted.items()}  # type: ignore[arg-type]
    for task, tokens in zip(tasks, made, strict=True):
        assert len(tokens) == task.max_tokens
        assert tokens == alone(model, task)


def sent(
    loop: Generator[Proposal | Evaluation | Step, Any], answer: Any
) -> Generator[Evaluation | Step]:
    """Send an answer; give what the loop yields up to the evaluation that it wants next."""
    try:
        while not isinstance(event := loop.send(answer), Evaluation):
            answer = event.ask() if isinstance(event, Proposal) else None
            if isinstance(event, Step):
                yield event
        yield event
    except StopIteration:
        pass


@pytest.mark.parametrize("right", range(4))
def test_between_steps_the_session_holds_all_but_the_last_token(model: Model, right: int) -> None:
    truth = [*PROMPT, *alone(model, generation())]

    class Erring:
        def propose(self, tokens: list[int], k: int) -> list[int]:
            wrong = [(token + 1) % 30 for token in truth[len(tokens) :]]
            return [*truth[len(tokens) :][:right], *wrong[right:]][:k]

    session, tokens = model.session(), list(PROMPT)
    for step in steps(session, generation(drafter=Erring())):  # type: ignore[arg-type]
        tokens += step.tokens
        assert session.tokens == tokens[:-1]
    assert tokens == truth


@pytest.mark.parametrize("calls", range(5))
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_an_evaluation_that_fails_ends_the_generation_and_leaves_the_session_right(
    model: Model, monkeypatch: pytest.MonkeyPatch, calls: int, error: type[BaseException]
) -> None:
    truth = alone(model, generation())
    session = model.session()
    task = generation(drafter=Scripted([*PROMPT, *truth[:6], 1, 1, 1]), progress=lambda *_: None)
    tokens = list(PROMPT)
    forward, left = Session.forward_last, iter(range(calls))

    def failing(self: Session, *arguments: Any, **options: Any) -> Any:
        if next(left, None) is None:
            raise error
        return forward(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "forward_last", failing)
        events = steps(session, task)  # type: ignore[arg-type]
        with pytest.raises(error):
            tokens.extend(token for step in events for token in step.tokens)
    assert session.tokens == (tokens[:-1] if calls else [])
    assert tokens == [*PROMPT, *truth][: len(tokens)]
    assert [t for step in steps(session, task) for t in step.tokens] == truth  # type: ignore[arg-type]


def test_an_exception_thrown_in_place_of_an_answer_comes_out_again(model: Model) -> None:
    session = model.session()
    loop = generation().run(0)
    wanted = next(loop)
    assert isinstance(wanted, Evaluation)
    evaluate(session.lease(), wanted)  # type: ignore[arg-type]
    error = MemoryError("no room")
    with pytest.raises(MemoryError) as raised:
        loop.throw(error)
    assert raised.value is error
    session.truncate(wanted.settled)
    assert session.tokens == PROMPT[:-1]
    with pytest.raises(StopIteration):
        next(loop)
