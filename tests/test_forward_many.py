"""Several sessions in one call: equal to calls of their own, and all or nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import specrs
from bits import assert_same_bits, cold, random_ids
from specrs._specrs import ContextOverflow, Model, Session
from tensors import OUTPUT

N_CTX = 300
# The second has an output projection of floats, the third one that is the embedding.
MODELS: list[dict[str, Any]] = [
    {"quant": "Q4_0"},
    {"quant": "Q8_0", "types": {OUTPUT: "F16"}},
    {"quant": "Q4_K", "tied": True},
]


@pytest.fixture(scope="module")
def models(tiny: Callable[..., Path], threads: int) -> list[Model]:
    return [Model(tiny(n_ctx=N_CTX, **options), threads=threads) for options in MODELS]


@pytest.fixture(scope="module")
def model(models: list[Model]) -> Model:
    return models[0]


def filled(model: Model, lengths: Sequence[int]) -> list[Session]:
    """Make sessions that hold so many ids."""
    sessions = [model.session() for _ in lengths]
    for seed, (session, length) in enumerate(zip(sessions, lengths, strict=True)):
        if length:
            session.forward(random_ids(model, length, seed))
    return sessions


@st.composite
def inputs(draw: st.DrawFn) -> tuple[int, int, int, bool]:
    """Draw cached ids, new ones, wanted positions and whether these are choices."""
    cached = draw(st.sampled_from([0, 1, 63, 64, 130]))
    length = draw(st.one_of(st.integers(1, 3), st.integers(1, N_CTX - cached)))
    positions = draw(st.sampled_from([0, 1, length, length // 2]))
    return cached, length, positions, draw(st.booleans())


@given(which=st.integers(0, len(MODELS) - 1), group=st.lists(inputs(), max_size=6), all_=st.data())
@settings(max_examples=max(1, settings().max_examples // 2))
def test_any_group_equals_single_calls(
    models: list[Model],
    which: int,
    group: list[tuple[int, int, int, bool]],
    all_: st.DataObject,
) -> None:
    model = models[which]
    together = filled(model, [cached for cached, *_ in group])
    alone = [session.fork() for session in together]
    tokens = [random_ids(model, length, 50 + i) for i, (_, length, *_) in enumerate(group)]
    wanted = [positions for *_, positions, _ in group]
    each = [choose for *_, choose in group]
    choose: bool | list[bool] = each
    if all_.draw(st.booleans(), "one value for all"):
        choose = bool(each and each[0])
        each = [choose] * len(group)

    results = model.forward_many(list(zip(together, tokens, wanted, strict=True)), choose=choose)
    assert len(results) == len(group)
    for i, result in enumerate(results):
        rows = alone[i].forward_all_positions(tokens[i])[len(tokens[i]) - wanted[i] :]
        if each[i]:
            assert result == rows.argmax(axis=1).tolist()
        else:
            assert isinstance(result, np.ndarray)
            assert_same_bits(result, rows)
        assert together[i].tokens == alone[i].tokens
        if len(together[i]) < N_CTX:
            assert_same_bits(together[i].forward([5]), alone[i].forward([5]))


def test_nothing_may_be_wanted(model: Model) -> None:
    (session,) = filled(model, [0])
    (logits,) = model.forward_many([(session, [1, 2], 0)])
    assert logits.shape == (0, model.n_vocab)
    assert logits.dtype == np.float32
    assert model.forward_many([(session, [3], 0)], choose=True) == [[]]
    assert session.tokens == [1, 2, 3]
    assert model.forward_many([]) == model.forward_many([], choose=[]) == []
    assert_same_bits(session.forward([4]), cold(model, [1, 2, 3, 4])[-1])


def test_the_context_can_be_filled(model: Model) -> None:
    sessions = filled(model, [N_CTX - 1, 0])
    tokens = [[7], random_ids(model, N_CTX)]
    wanted = [cold(model, [*sessions[0].tokens, 7])[-1:], cold(model, tokens[1])]
    results = model.forward_many([(sessions[0], tokens[0], 1), (sessions[1], tokens[1], N_CTX)])
    for got, rows in zip(results, wanted, strict=True):
        assert_same_bits(got, rows)
    with pytest.raises(ContextOverflow, match=rf"inputs\[1\]: {N_CTX + 1} positions") as caught:
        model.forward_many([(model.session(), [1], 1), (sessions[1], [1], 1)])
    assert (caught.value.needed, caught.value.n_ctx) == (N_CTX + 1, N_CTX)


# What is refused: the second input, the exception, and what it says.
REFUSED: dict[str, tuple[Callable[[Session], Any], type[Exception], str]] = {
    "no tokens": (lambda session: (session, [], 0), ValueError, "no tokens"),
    "an id": (lambda session: (session, [1, 5000], 1), ValueError, "token id 5000 at index 1"),
    "too many": (lambda session: (session, [1, 2], 3), ValueError, "last 3 positions .* 0 to 2"),
    "negative": (lambda session: (session, [1], -1), ValueError, "positions is out of range: -1"),
    "a bool": (lambda session: (session, [1], True), TypeError, "positions must be an integer"),
    "text": (lambda session: (session, "text", 1), TypeError, "token ids must be .* tokenize"),
    "no session": (lambda session: (None, [1], 1), TypeError, "session or a lease .* not None"),
    "a pair": (lambda session: (session, [1]), TypeError, r"\(session, token ids, positions\)"),
    "a session": (lambda session: session, TypeError, r"\(session, token ids, positions\)"),
    "overflow": (lambda session: (session, [1] * N_CTX, 1), ContextOverflow, "positions are"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("choose", [False, True])
def test_what_is_refused_changes_nothing(model: Model, name: str, choose: bool) -> None:
    sessions = filled(model, [3, 5])
    tokens = [session.tokens for session in sessions]
    second, error, message = REFUSED[name]
    with pytest.raises(error, match=rf"^inputs\[1\]: .*{message}"):
        model.forward_many([(sessions[0], [1], 1), second(sessions[1])], choose=choose)
    assert [session.tokens for session in sessions] == tokens
    for session in sessions:
        assert_same_bits(session.forward([9]), cold(model, session.tokens)[-1])


def test_what_the_ids_of_a_caller_raise_stays_as_it_is(model: Model) -> None:
    class MyError(Exception):
        def __init__(self, first: int, second: int) -> None:
            super().__init__(first, second)

    class Ids:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            raise MyError(1, 2)

    with pytest.raises(MyError) as caught:
        model.forward_many([(model.session(), Ids(), 1)])  # type: ignore[list-item]
    assert caught.value.args == (1, 2)


def test_sessions_are_different_ones_of_this_model(model: Model, models: list[Model]) -> None:
    sessions = filled(model, [0, 2, 4])
    with pytest.raises(ValueError, match=r"inputs\[1\] and inputs\[3\] are the same session.*fork"):
        model.forward_many([(sessions[i], [1], 1) for i in (0, 1, 2, 1)])
    foreign = filled(models[1], [1])
    with pytest.raises(ValueError, match=r"inputs\[2\]: the session is of another model"):
        model.forward_many([(session, [1], 1) for session in (*sessions[:2], *foreign)])
    assert [len(session) for session in (*sessions, *foreign)] == [0, 2, 4, 1]


@pytest.mark.parametrize(
    ("choose", "error", "message"),
    [
        ([True], ValueError, "1 values for 2 inputs"),
        ([True, 1], TypeError, r"choose\[1\] must be True or False, not 1"),
        (1, TypeError, "must be True or False, not 1"),
        (None, TypeError, "must be True or False, not None"),
    ],
)
def test_choose_is_a_bool_or_one_for_each(
    model: Model, choose: Any, error: type[Exception], message: str
) -> None:
    sessions = filled(model, [0, 2])
    with pytest.raises(error, match=message):
        model.forward_many([(session, [1], 1) for session in sessions], choose=choose)
    assert [len(session) for session in sessions] == [0, 2]


def test_too_many_logits_are_refused_before_any_work(tiny: Callable[..., Path]) -> None:
    """Two rows of a vocabulary fit; what a whole context needs in all inputs does not."""
    resource = pytest.importorskip("resource")
    n_ctx = 1 << 14
    model = Model(tiny(n_vocab=1 << 17, n_ctx=n_ctx, n_embd=32, n_layer=1), threads=1)
    sessions = filled(model, [1, 1])
    old = resource.getrlimit(resource.RLIMIT_AS)
    used = 4096 * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), old[1]))
    try:
        with pytest.raises(MemoryError, match=r"bytes of the logits; ask for fewer"):
            model.forward_many([(sessions[0], [1], 1), (sessions[1], [1] * (n_ctx - 1), n_ctx - 1)])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)
    assert [len(session) for session in sessions] == [1, 1]


def test_threads_with_crossed_lists_do_not_wait_for_each_other(model: Model) -> None:
    """In the order of their lists each call would hold what the other one waits for."""
    sessions = filled(model, [0, 0, 0])
    begun, end = threading.Event(), threading.Event()

    def progress(done: int, total: int) -> None:
        begun.set()
        end.wait()

    def work(*order: int) -> None:
        model.forward_many([(sessions[i], [1 + i], 1) for i in order], choose=True)

    def start(call: Callable[..., object], *arguments: int) -> threading.Thread:
        thread = threading.Thread(target=call, args=arguments, daemon=True)
        thread.start()
        return thread

    middle = start(lambda: sessions[1].prefill([9], progress=progress))
    begun.wait()
    calls = [middle, start(work, 0, 1, 2), start(work, 2, 1, 0)]
    time.sleep(0.1)  # for both to hold what comes before the middle
    end.set()
    for call in calls:
        call.join(timeout=60)
    assert not any(call.is_alive() for call in calls)
    for i, session in enumerate(sessions):
        assert session.tokens == [9] * (i == 1) + [1 + i] * 2
        assert_same_bits(session.forward([5]), cold(model, session.tokens)[-1])


def test_a_session_in_use_is_waited_for(model: Model) -> None:
    session, other = filled(model, [0, 0])
    begun, end = threading.Event(), threading.Event()

    def progress(done: int, total: int) -> None:
        begun.set()
        end.wait()

    with ThreadPoolExecutor(2) as pool:
        prompt = pool.submit(session.prefill, [1, 2, 3], progress=progress)
        begun.wait()
        many = pool.submit(model.forward_many, [(other, [8], 1), (session, [4], 1)])
        assert not many.done()
        end.set()
        prompt.result()
        got = many.result()
    assert_same_bits(got[1], cold(model, [1, 2, 3, 4])[-1:])
    assert other.tokens == [8]


def test_candle_takes_one_after_the_other(tiny: Callable[..., Path]) -> None:
    """Calls with the same rows in the same order: candle promises no bits for others."""
    model = Model(tiny(quant="F32", n_ctx=N_CTX), device="candle-cpu")
    tokens = [random_ids(model, length, seed) for seed, length in enumerate([1, 20, 7])]
    sessions, alone = filled(model, [5, 0, 0]), filled(model, [5, 0, 0])
    positions = [1, 4, 0]
    results = model.forward_many(
        list(zip(sessions, tokens, positions, strict=True)), choose=[True, False, False]
    )
    assert results[0] == alone[0].choose_last(tokens[0], 1)
    assert isinstance(results[1], np.ndarray)
    assert_same_bits(results[1], alone[1].forward_last(tokens[1], 4))
    assert isinstance(results[2], np.ndarray)
    assert results[2].shape == (0, model.n_vocab)
    assert [session.tokens[-1] for session in sessions] == [ids[-1] for ids in tokens]
    with pytest.raises(ValueError, match=r"inputs\[1\]: token id"):
        model.forward_many([(sessions[0], [1], 1), (sessions[1], [5000], 1)])
    assert [len(session) for session in sessions] == [6, 20, 7]


def test_rows_are_counted_by_expert(tiny: Callable[..., Path], threads: int) -> None:
    llm = specrs.Llama(tiny(experts=5, experts_used=2), threads=threads)
    session, other = llm.session(), llm.session()

    def counted() -> Any:
        rows = llm.expert_rows
        assert rows is not None
        return rows

    def added(*rows: tuple[Session, int]) -> Any:
        before = counted()
        llm.forward_many([(session, range(count), 1) for session, count in rows])
        return counted() - before

    assert not counted().any()
    together = added((session, 300), (other, 20))  # in two passes
    assert together.shape == (2, 5)
    assert together.sum(axis=1).tolist() == [2 * 320] * 2
    session.truncate(0)
    other.truncate(0)
    assert np.array_equal(added((session, 300)) + added((other, 20)), together)
    assert specrs.Llama(tiny(), threads=threads).expert_rows is None


def test_a_llama_passes_it_on(tiny: Callable[..., Path], threads: int) -> None:
    llm = specrs.Llama(tiny(quant="Q4_0", n_ctx=N_CTX), threads=threads)
    sessions = [llm.session(), llm.session()]
    rows, chosen = llm.forward_many(
        [(sessions[0], [1, 2], 2), (sessions[1], [3], 1)], choose=[False, True]
    )
    assert isinstance(rows, np.ndarray)
    assert_same_bits(rows, llm.session().forward_all_positions([1, 2]))
    assert chosen == llm.session().choose_last([3], 1)
    with pytest.raises(TypeError, match="must be True or False"):
        llm.forward_many([], choose=None)  # type: ignore[call-overload]
