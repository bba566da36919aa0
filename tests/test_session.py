"""Sessions: rollback in every order against recomputing, snapshots, bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from bits import assert_same_bits, cold, random_ids
from specrs._specrs import ContextOverflow, Model, Session, Snapshot
from specrs.decoding.loop import room

N_CTX = 160  # two and a half cache blocks of 64 positions


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path], threads: int) -> Model:
    return Model(tiny(quant="Q4_0", n_ctx=N_CTX), threads=threads)


@pytest.fixture(scope="module")
def other_model(tiny: Callable[..., Path], threads: int) -> Model:
    """A model of the same shape with other weights."""
    return Model(tiny(quant="Q4_0", n_ctx=N_CTX, seed=9), threads=threads)


class SessionMachine(RuleBasedStateMachine):
    """Any order of operations on sessions that share blocks equals recomputing from nothing."""

    model: Model
    folder: Path

    sessions = Bundle("sessions")
    snapshots = Bundle("snapshots")

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, tuple[Session, list[int]]] = {}
        self.frozen: dict[int, tuple[Snapshot, list[int]]] = {}
        self.saves = 0

    def hold(self, session: Session, tokens: list[int]) -> int:
        self.held[len(self.held)] = (session, tokens)
        return len(self.held) - 1

    @initialize(target=sessions)
    def start(self) -> int:
        return self.hold(self.model.session(), [])

    @rule(name=sessions, length=st.integers(1, 70), seed=st.integers(0, 3))
    def forward(self, name: int, length: int, seed: int) -> None:
        session, tokens = self.held[name]
        more = random_ids(self.model, length, seed)
        if len(tokens) + length > N_CTX:
            with pytest.raises(ContextOverflow):
                session.forward(more)
            return
        got = session.forward_all_positions(more)
        tokens += more
        assert_same_bits(got, cold(self.model, tokens)[-length:])

    @rule(name=sessions, data=st.data())
    def truncate(self, name: int, data: st.DataObject) -> None:
        session, tokens = self.held[name]
        length = data.draw(st.integers(0, len(tokens)), "length")
        session.truncate(length)
        del tokens[length:]

    @rule(name=sessions)
    def reset(self, name: int) -> None:
        session, tokens = self.held[name]
        session.reset()
        tokens.clear()

    @rule(target=snapshots, name=sessions)
    def snapshot(self, name: int) -> int:
        session, tokens = self.held[name]
        self.frozen[len(self.frozen)] = (session.snapshot(), tokens.copy())
        return len(self.frozen) - 1

    @rule(name=sessions, snapshot=snapshots)
    def restore(self, name: int, snapshot: int) -> None:
        session, tokens = self.held[name]
        frozen, frozen_tokens = self.frozen[snapshot]
        assert len(frozen) == len(frozen_tokens)
        session.restore(frozen)
        tokens[:] = frozen_tokens

    @rule(target=sessions, name=sessions)
    def fork(self, name: int) -> Any:
        if len(self.held) > 4:
            return multiple()
        session, tokens = self.held[name]
        return self.hold(session.fork(), tokens.copy())

    @rule(target=sessions, name=sessions)
    def save_and_load(self, name: int) -> Any:
        if len(self.held) > 4:
            return multiple()
        session, tokens = self.held[name]
        self.saves += 1
        path = self.folder / f"{self.saves}.session"
        session.save(path)
        return self.hold(self.model.load_session(path), tokens.copy())

    @rule(name=sessions, bad=st.sampled_from([[], [-1], [1, 2**40], [1.5], None, "text"]))
    def refuse(self, name: int, bad: Any) -> None:
        with pytest.raises((ValueError, TypeError)):
            self.held[name][0].forward(bad)

    @invariant()
    def every_session_holds_its_tokens(self) -> None:
        for session, tokens in self.held.values():
            assert session.tokens == tokens
            assert len(session) == len(tokens)


def test_any_order_of_operations(model: Model, tmp_path: Path) -> None:
    class Machine(SessionMachine):
        pass

    Machine.model, Machine.folder = model, tmp_path
    run_state_machine_as_test(
        Machine,
        settings=settings(stateful_step_count=25, max_examples=settings().max_examples // 2),
    )


# What a forward must refuse, and with what.
BAD_TOKENS: dict[str, tuple[Any, type[Exception]]] = {
    "empty": ([], ValueError),
    "empty array": (np.array([], np.int64), ValueError),
    "negative": ([-1], ValueError),
    "negative array": (np.array([3, -1]), ValueError),
    "n_vocab": ([3, 312], ValueError),
    "2**31": ([2**31], ValueError),
    "2**32": ([2**32], ValueError),
    "2**64": ([2**64], ValueError),
    "float": ([1.0], TypeError),
    "float array": (np.array([1.0, 2.0]), TypeError),
    "None": (None, TypeError),
    "list of None": ([None], TypeError),
    "str": ("hello", TypeError),
    "list of str": (["1"], TypeError),
    "int": (7, TypeError),
    "nested": ([[1, 2]], TypeError),
    "two dimensions": (np.array([[1, 2]]), TypeError),
}


@pytest.mark.parametrize("name", BAD_TOKENS)
@pytest.mark.parametrize("method", ["forward", "forward_all_positions", "forward_last"])
def test_bad_tokens_change_nothing(model: Model, name: str, method: str) -> None:
    bad, error = BAD_TOKENS[name]
    tokens = random_ids(model, 20)
    session = model.session()
    session.forward(tokens[:10])
    with pytest.raises(error) as raised:
        getattr(session, method)(*(bad, 1) if method == "forward_last" else (bad,))
    assert str(raised.value)
    assert session.tokens == tokens[:10]
    assert_same_bits(session.forward(tokens[10:]), cold(model, tokens)[-1])


def test_an_id_out_of_range_is_named(model: Model) -> None:
    with pytest.raises(ValueError, match=r"1000.*312"):
        model.session().forward([1, 1000])


@pytest.mark.parametrize("past", [0, 1, N_CTX - 1, N_CTX])
def test_overflow_is_refused_before_any_work(model: Model, past: int) -> None:
    session = model.session()
    tokens = random_ids(model, N_CTX + 1)
    if past:
        session.forward(tokens[:past])
    with pytest.raises(ContextOverflow) as raised:
        session.forward(tokens[past:])
    assert (raised.value.needed, raised.value.n_ctx) == (N_CTX + 1, N_CTX)
    assert str(N_CTX + 1) in str(raised.value)
    assert str(N_CTX) in str(raised.value)
    assert session.tokens == tokens[:past]
    if past < N_CTX:  # the context can be filled to the last position
        assert_same_bits(session.forward(tokens[past:N_CTX]), cold(model, tokens[:N_CTX])[-1])


@pytest.mark.parametrize("length", [-1, 11, 2**31, 2**64])
def test_truncate_to_what_is_not_there(model: Model, length: int) -> None:
    session = model.session()
    session.forward(random_ids(model, 10))
    with pytest.raises(ValueError, match=r"\S"):
        session.truncate(length)
    assert len(session) == 10


@pytest.mark.parametrize("length", [None, 1.5, "3"])
def test_truncate_to_what_is_no_number(model: Model, length: Any) -> None:
    session = model.session()
    session.forward([5])
    with pytest.raises(TypeError):
        session.truncate(length)
    assert len(session) == 1


def test_tokens_is_a_copy(model: Model) -> None:
    session = model.session()
    session.forward([5, 6])
    session.tokens.append(7)
    assert session.tokens == [5, 6]


def test_logits_belong_to_the_caller(model: Model) -> None:
    session = model.session()
    first = session.forward([5])
    kept = first.copy()
    session.forward([6])
    assert_same_bits(first, kept)
    assert first.flags.writeable


def test_logits_are_never_those_of_a_longer_prompt(model: Model) -> None:
    session = model.session()
    session.forward([1, 2, 3, 9, 9, 9])
    session.truncate(2)
    assert_same_bits(session.forward([3]), cold(model, [1, 2, 3])[-1])
    session.truncate(0)
    assert_same_bits(session.forward([1, 2]), cold(model, [1, 2])[-1])


def greedy(session: Session, logits: npt.NDArray[np.float32], count: int) -> list[int]:
    ids = []
    for _ in range(count):
        ids.append(int(logits.argmax()))
        logits = session.forward(ids[-1:])
    return ids


def test_snapshots_taken_in_turn(model: Model) -> None:
    prompts = [random_ids(model, 30, seed=1), random_ids(model, 75, seed=2)]
    wanted = []
    for prompt in prompts:
        session = model.session()
        wanted.append(greedy(session, session.forward(prompt), 5))

    session = model.session()
    untouched = session.snapshot()  # before the first forward
    logits, snapshots = [], []
    for prompt in prompts:
        session.reset()
        logits.append(session.forward(prompt))
        snapshots.append(session.snapshot())
    for which in (0, 1, 0, 0, 1):
        session.restore(snapshots[which])
        assert session.tokens == prompts[which]
        assert greedy(session, logits[which], 5) == wanted[which]
        session.truncate(3)  # leaves the snapshots alone
    session.restore(untouched)
    assert len(session) == 0
    assert greedy(session, session.forward(prompts[0]), 5) == wanted[0]
    assert [len(snapshot) for snapshot in (untouched, *snapshots)] == [0, 30, 75]


def test_a_snapshot_outlives_its_session_and_serves_others(model: Model) -> None:
    tokens = random_ids(model, 80)
    session = model.session()
    session.forward(tokens[:70])
    snapshot = session.snapshot()
    del session
    for _ in range(2):
        second = model.session()
        second.forward([1, 2, 3])
        second.restore(snapshot)
        assert_same_bits(second.forward_all_positions(tokens[70:]), cold(model, tokens)[70:])


def test_a_snapshot_of_another_model_is_refused(model: Model, other_model: Model) -> None:
    foreign = other_model.session()
    foreign.forward([1, 2])
    session = model.session()
    session.forward([5])
    with pytest.raises(ValueError, match="model"):
        session.restore(foreign.snapshot())
    with pytest.raises(TypeError):
        session.restore(session)  # type: ignore[arg-type]
    assert session.tokens == [5]


def test_native_objects_are_made_only_where_they_belong() -> None:
    for native in (Session, Snapshot):
        with pytest.raises(TypeError):
            native()


def test_a_larger_context_is_advised_only_where_there_is_one(tiny: Callable[..., Path]) -> None:
    for n_ctx, advised in ((None, False), (100, True)):
        model = Model(tiny(quant="Q4_0"), n_ctx=n_ctx)
        with pytest.raises(ContextOverflow) as caught:
            model.session().forward(random_ids(model, model.n_ctx + 1))
        assert ("larger n_ctx" in str(caught.value)) == advised
        with pytest.raises(ContextOverflow) as caught:
            room(model.n_ctx, model.n_ctx, None, model.n_ctx_train)
        assert ("larger n_ctx" in str(caught.value)) == advised
