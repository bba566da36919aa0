"""Sessions in files: every bit comes back, and nothing damaged or foreign is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bits import assert_same_bits, random_ids
from specrs._specrs import Model

N_CTX = 160  # two and a half cache blocks of 64 positions


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path], threads: int) -> Model:
    return Model(tiny(quant="Q4_0", n_ctx=N_CTX), threads=threads)


@pytest.fixture(scope="module")
def other_model(tiny: Callable[..., Path], threads: int) -> Model:
    """A model of the same shape with other weights."""
    return Model(tiny(quant="Q4_0", n_ctx=N_CTX, seed=9), threads=threads)


@pytest.fixture
def saved(model: Model, tmp_path: Path) -> Iterator[Path]:
    session = model.session()
    session.forward(random_ids(model, 70))
    path = tmp_path / "a.session"
    session.save(path)
    yield path
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.session"], (
        "saving left something behind"
    )


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, N_CTX])
def test_saving_keeps_every_bit(model: Model, tmp_path: Path, length: int) -> None:
    tokens = random_ids(model, N_CTX + 1)
    session = model.session()
    if length:
        session.forward(tokens[:length])
    session.save(str(tmp_path / "a.session"))
    loaded = model.load_session(tmp_path / "a.session")
    assert loaded.tokens == tokens[:length]
    if length < N_CTX:
        assert_same_bits(
            loaded.forward(tokens[length:N_CTX]), session.forward(tokens[length:N_CTX])
        )


def test_rejected_positions_are_not_saved(model: Model, tmp_path: Path) -> None:
    tokens = random_ids(model, 90)
    files = []
    for draft in ([], random_ids(model, 20, seed=3)):
        session = model.session()
        session.forward(tokens)
        if draft:
            session.forward(draft)
            session.truncate(len(tokens))
        session.save(tmp_path / "a.session")
        files.append((tmp_path / "a.session").read_bytes())
    assert files[0] == files[1]


def test_a_session_of_another_configuration_is_refused(
    saved: Path, tiny: Callable[..., Path]
) -> None:
    """The same weights under another rotation are another model."""
    other = Model(tiny(quant="Q4_0", n_ctx=N_CTX, rope_base=20000.0))
    with pytest.raises(ValueError, match=r"another model.*evaluate its tokens again"):
        other.load_session(saved)


def test_a_name_may_be_as_long_as_the_system_allows(model: Model, tmp_path: Path) -> None:
    session = model.session()
    session.forward(random_ids(model, 3))
    path = tmp_path / ("n" * 255)
    session.save(path)
    assert model.load_session(path).tokens == session.tokens
    assert list(tmp_path.iterdir()) == [path]


def test_saving_replaces_a_file(model: Model, saved: Path) -> None:
    session = model.session()
    session.forward([5])
    session.save(saved)
    assert model.load_session(saved).tokens == [5]


@pytest.mark.usefixtures("two_cpus")
def test_a_session_is_loaded_with_any_number_of_threads(
    model: Model, saved: Path, tiny: Callable[..., Path]
) -> None:
    other = Model(tiny(quant="Q4_0", n_ctx=N_CTX), threads=1 if model.threads > 1 else 2)
    more = random_ids(model, 20, seed=5)
    both = [which.load_session(saved).forward(more) for which in (model, other)]
    assert_same_bits(both[0], both[1])


def test_a_session_of_another_model_is_refused(
    saved: Path, other_model: Model, tiny: Callable[..., Path]
) -> None:
    with pytest.raises(ValueError, match="model"):
        other_model.load_session(saved)
    with pytest.raises(ValueError, match="model"):
        Model(tiny(quant="Q4_0", n_ctx=N_CTX, n_layer=1)).load_session(saved)


def test_a_session_longer_than_the_context_is_refused(
    saved: Path, tiny: Callable[..., Path]
) -> None:
    small = Model(tiny(quant="Q4_0", n_ctx=N_CTX), n_ctx=32)
    with pytest.raises(ValueError, match=r"70|32"):
        small.load_session(saved)


def test_a_truncated_session_is_refused(model: Model, saved: Path) -> None:
    whole = saved.read_bytes()
    lengths = {0, 1, 3, 4, 7, 8, 15, 16, len(whole) - 1}
    lengths |= {len(whole) * percent // 100 for percent in range(5, 100, 5)}
    for length in lengths:
        saved.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"\S"):
            model.load_session(saved)


def test_a_session_with_a_flipped_bit_is_refused(model: Model, saved: Path) -> None:
    whole = bytearray(saved.read_bytes())
    places = {*range(64), *range(64, len(whole), len(whole) // 50), len(whole) - 1}
    for place in sorted(places):
        damaged = whole.copy()
        damaged[place] ^= 0x10
        saved.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"\S"):
            model.load_session(saved)


def test_other_files_are_no_sessions(
    model: Model, saved: Path, tiny: Callable[..., Path], tmp_path: Path
) -> None:
    longer = saved.read_bytes() + b"\0"
    saved.write_bytes(longer)
    for path in (saved, tiny(quant="Q4_0", n_ctx=N_CTX)):
        with pytest.raises(ValueError, match=r"\S"):
            model.load_session(path)
    with pytest.raises(OSError, match=r"none\.session"):
        model.load_session(tmp_path / "none.session")
    with pytest.raises(OSError, match="none"):
        model.session().save(tmp_path / "none" / "a.session")
