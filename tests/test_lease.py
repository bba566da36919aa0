"""Leases: one user at a time changes a session, and everybody may read it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_engine
from specrs._specrs import Model

TOKENS = [5, 6, 7, 8, 9]
IN_USE = "in use by another generation"


@pytest.fixture(params=["native", "toy"])
def model(
    request: pytest.FixtureRequest, tiny: Callable[..., Path], tmp_path: Path, threads: int
) -> Any:
    """Load a model of either engine: the toy stands in for the native one and must behave alike."""
    if request.param == "toy":
        return fake_engine.Model(fake_engine.write_toy(tmp_path / "toy"))
    return Model(tiny(), threads=threads)


@pytest.fixture
def session(model: Any) -> Any:
    session = model.session()
    session.forward(TOKENS)
    return session


CHANGES: dict[str, Callable[[Any], object]] = {
    "forward": lambda session: session.forward([1]),
    "forward_all_positions": lambda session: session.forward_all_positions([1]),
    "forward_last": lambda session: session.forward_last([1], 1),
    "choose_last": lambda session: session.choose_last([1], 1),
    "prefill": lambda session: session.prefill([1]),
    "truncate": lambda session: session.truncate(3),
    "reset": lambda session: session.reset(),
    "restore": lambda session: session.restore(session.snapshot()),
    "lease": lambda session: session.lease(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_only_the_lease_changes_a_leased_session(
    session: Any, change: Callable[[Any], object]
) -> None:
    with session.lease() as lease:
        with pytest.raises(RuntimeError, match=IN_USE):
            change(session)
        assert session.tokens == TOKENS
        lease.truncate(4)
    change(session)


def test_a_leased_session_can_be_read(session: Any, model: Any, tmp_path: Path) -> None:
    with session.lease() as lease:
        assert len(session) == 5
        assert session.tokens == TOKENS
        assert session.sparse_spans == []
        assert len(session.snapshot()) == 5
        session.save(tmp_path / "saved")
        fork = session.fork()
        fork.forward([1])
        with fork.lease():
            lease.forward_last([2], 1)
    assert fork.tokens == [*TOKENS, 1]
    assert session.tokens == [*TOKENS, 2]
    assert model.load_session(tmp_path / "saved").tokens == TOKENS


def test_a_lease_computes_what_the_session_would(session: Any) -> None:
    other = session.fork()
    with session.lease() as lease:
        seen: list[tuple[int, int]] = []
        lease.prefill([3, 4], progress=lambda *told: seen.append(told), prompt_length=7)
        other.prefill([3, 4])
        assert seen == [(2, 2)]
        np.testing.assert_array_equal(lease.forward_last([5, 6], 2), other.forward_last([5, 6], 2))
        assert lease.choose_last([7, 8], 2) == other.choose_last([7, 8], 2)
        lease.truncate(6)
    assert session.tokens == [*TOKENS, 3]


USES: dict[str, Callable[[Any], object]] = {
    "forward_last": lambda lease: lease.forward_last([1], 1),
    "choose_last": lambda lease: lease.choose_last([1], 1),
    "prefill": lambda lease: lease.prefill([1]),
    "truncate": lambda lease: lease.truncate(5),
}


@pytest.mark.parametrize("leased_again", [False, True])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_released_lease_changes_nothing(
    session: Any, use: Callable[[Any], object], leased_again: bool
) -> None:
    lease = session.lease()
    use(lease)
    lease.release()
    session.truncate(5)
    new = session.lease() if leased_again else None
    with pytest.raises(RuntimeError, match="lease was released"):
        use(lease)
    lease.release()
    if new is not None:
        with pytest.raises(RuntimeError, match=IN_USE):
            session.truncate(5)
        use(new)


def test_a_lease_that_is_forgotten_or_left_by_an_exception_is_released(session: Any) -> None:
    lease = session.lease()
    del lease
    session.truncate(4)

    def fail() -> None:
        with session.lease():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    session.truncate(3)


def test_a_lease_outlives_the_name_of_its_session(model: Any) -> None:
    with model.session().lease() as lease:
        assert len(lease.forward_last([1, 2], 2)) == 2


class Pausing:
    """A `progress` that waits in the middle of a prefill until it may go on."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()

    def __call__(self, done: int, total: int) -> None:
        self.inside.set()
        self.go_on.wait()


def test_whoever_may_not_change_a_session_is_told_at_once(
    tiny: Callable[..., Path], threads: int
) -> None:
    """Not after the call of the lease that computes just now: here it would never end."""
    session, progress = Model(tiny(), threads=threads).session(), Pausing()
    with session.lease() as lease:
        call = threading.Thread(target=lambda: lease.prefill(TOKENS, progress=progress))
        call.start()
        progress.inside.wait()
        for change in CHANGES.values():
            if change is not CHANGES["restore"]:  # whose snapshot is a reading call
                with pytest.raises(RuntimeError, match=IN_USE):
                    change(session)
        progress.go_on.set()
        call.join()
    assert session.tokens == TOKENS


def test_a_lease_begins_when_the_calls_of_others_are_done(
    tiny: Callable[..., Path], threads: int
) -> None:
    session, progress = Model(tiny(), threads=threads).session(), Pausing()
    lengths: list[int] = []

    def lease() -> None:
        with session.lease() as lease:
            lengths.append(len(session))
            lease.truncate(0)

    calls = [
        threading.Thread(target=lambda: session.prefill(TOKENS, progress=progress)),
        threading.Thread(target=lease),
    ]
    calls[0].start()
    progress.inside.wait()
    calls[1].start()
    progress.go_on.set()
    for call in calls:
        call.join()
    assert lengths == [5]
    assert len(session) == 0
