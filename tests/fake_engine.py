"""A stand-in for the native module: a toy next-token function behind the same interface.

Tests of the generation level run on it because it is exact, quick and can be told what to say. Its
model files are JSON, written by `write_toy`; `toy_llama` loads one. Where the native module is not
built, the tests that need no real model can still run: ``PYTHONPATH=python:tests pytest -p
fake_engine``.
"""

from __future__ import annotations

import codecs
import json
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sampling_reference import Sampler as Sampler

if TYPE_CHECKING:
    import pytest

    from specrs import Llama

LETTERS = ["<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz", " ", "\n"]


def pytest_configure() -> None:
    """Stand in for the native module if it is not built."""
    try:
        import specrs  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "specrs._specrs":
            raise
        sys.modules["specrs._specrs"] = sys.modules[__name__]


def pytest_report_header() -> str | None:
    """Tell when the stand-in is in use."""
    if sys.modules.get("specrs._specrs") is sys.modules[__name__]:
        return "specrs: the native module is not built; TOY ENGINE in its place"
    return None


def write_toy(path: Path, **settings: Any) -> Path:
    """Write a toy model; `Model` lists the settings."""
    path.write_text(json.dumps(settings))
    return path


def toy_llama(monkeypatch: pytest.MonkeyPatch, path: Path, **settings: Any) -> Llama:
    """Write a toy model to `path` and load it as a `Llama`."""
    import specrs.llama

    monkeypatch.setattr("specrs.llama.Model", Model)
    monkeypatch.setattr("specrs.llama.Session", Session)
    return specrs.llama.Llama(write_toy(path, **settings))


class Scripted:
    """A drafter that proposes from `script`, which is indexed by position."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = list(script)

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        return self.script[len(tokens) : len(tokens) + k]


class GgufError(ValueError):
    pass


class ContextOverflow(ValueError):
    needed: int
    n_ctx: int


class GgufFile:
    def __init__(self, path: str | PathLike[str]) -> None:
        json.loads(Path(path).read_text())
        self.path = path
        self.version = 3
        self.size = Path(path).stat().st_size
        self.metadata = {
            "general.architecture": "llama",
            "general.name": "toy",
            "llama.block_count": 2,
        }
        self.tensors = [
            ("token_embd.weight", "Q4_1", (64, 32), 1280),
            ("blk.0.ffn_up.weight", "Q4_1", (64, 32), 1280),
            ("output_norm.weight", "F32", (32,), 128),
        ]

    def ignored_tensors(self) -> list[str]:
        return []

    def plan(self, *, n_ctx: int | None = None, threads: int | None = None) -> Model:
        return Model(self.path, n_ctx=n_ctx, threads=threads)


class Model:
    """A model whose logits depend on its seed and the last `order` ids alone.

    Settings of the file: `vocab`, a list of token strings ("hex:f09f" is a token of raw bytes, None
    is padding); `n_vocab`, rows of logits, if more; `n_ctx`; `order`; `seed`; `script`, ids to say
    one after the other whatever came before, by their place in the sequence; `bos`, `eos`,
    `end_ids`, `add_bos`, `control`, `chat_template`, `notes`.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        n_ctx: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
    ) -> None:
        settings = json.loads(Path(path).read_text())
        self.vocab: list[str | None] = settings.get("vocab", LETTERS)
        self.n_vocab: int = settings.get("n_vocab", len(self.vocab))
        self.n_ctx: int = n_ctx or settings.get("n_ctx", 256)
        self.order: int = settings.get("order", 2)
        self.seed: int = settings.get("seed", 0)
        self.script: dict[int, int] = {int(k): v for k, v in settings.get("script", {}).items()}
        self.settings = settings
        self.threads = threads or 1
        self.device = device
        self.kernels = "toy"
        self.metadata = {"general.architecture": "llama", "general.name": "toy"}
        self.weight_bytes = 1000
        self.n_ctx_train = self.n_ctx
        self.passes = (0, 0)
        self.windows: list[int | None] = [None]
        self.cache_bytes_per_token = 8
        self.notes: list[str] = settings.get("notes", [])
        self.tokenizer = Tokenizer(self)
        self.forwards = 0

    def check_attention(self, attention: object) -> None:
        """Run any pattern: the toy looks at a few tokens only."""

    def session(self) -> Session:
        return Session(self)

    def load_session(self, path: str | PathLike[str]) -> Session:
        session = Session(self)
        session.forward(json.loads(Path(path).read_text()))
        return session

    def forward_many(self, inputs: Any, *, choose: bool | Sequence[bool] = False) -> list[Any]:
        """Evaluate forks, so that a failure changes no session."""
        inputs = list(inputs)
        each = [choose] * len(inputs) if isinstance(choose, bool) else choose
        results, done = [], []
        for (session, tokens, positions), chooses in zip(inputs, each, strict=True):
            session, holder = session.parts() if isinstance(session, Lease) else (session, 0)
            session._check(holder)
            fork = session.fork()
            rows = fork.forward_last(tokens, max(positions, 1))[:positions]
            results.append(rows.argmax(axis=1).tolist() if chooses else rows)
            done.append((session, fork))
        for session, fork in done:
            session._ids = fork._ids
            session.rows += fork.rows
        self.forwards -= max(len(inputs) - 1, 0)  # they are one
        return results

    def row(self, history: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits [n_vocab] after `history`."""
        key = [self.seed, *(token + 1 for token in history[-self.order :])]
        logits: npt.NDArray[np.float32]
        logits = np.random.default_rng(key).random(self.n_vocab, dtype=np.float32)
        if len(history) in self.script:
            logits[self.script[len(history)]] = 2
        return logits


class Pattern:
    """Patterns are not for the toy."""


class Snapshot:
    def __init__(self, model: Model, tokens: list[int]) -> None:
        self.model = model
        self.ids = tuple(tokens)

    def __len__(self) -> int:
        return len(self.ids)


class Session:
    def __init__(self, model: Model, tokens: Sequence[int] = ()) -> None:
        self._model = model
        self._ids = list(tokens)
        self._lock = threading.Lock()
        self._holder = 0  # the number of the lease that may change the session
        self.rows: list[int] = []  # rows of each forward, for tests
        self.sparse_spans: list[tuple[int, int, str]] = []

    @property
    def tokens(self) -> list[int]:
        return list(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def forward(self, tokens: Any) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = self.forward_last(tokens, 1)[0]
        return row

    def forward_all_positions(self, tokens: Any) -> npt.NDArray[np.float32]:
        return self.forward_last(tokens, len(tokens))

    def choose_last(self, tokens: Any, positions: int, *, holder: int = 0) -> list[int | None]:
        rows = self.forward_last(tokens, positions, holder=holder)
        chosen: list[int | None] = rows.argmax(axis=1).tolist()
        return chosen

    def forward_last(
        self, tokens: Any, positions: int, *, holder: int = 0
    ) -> npt.NDArray[np.float32]:
        self._check(holder)
        ids = [index(token) for token in tokens]
        if not 1 <= positions <= len(ids):
            raise ValueError(f"{positions} positions of {len(ids)} tokens")
        for token in ids:
            if not 0 <= token < self._model.n_vocab:
                raise ValueError(
                    f"token {token} is outside the vocabulary of {self._model.n_vocab}"
                )
        needed = len(self._ids) + len(ids)
        if needed > self._model.n_ctx:
            error = ContextOverflow(f"{needed} positions are needed, {self._model.n_ctx} are there")
            error.needed, error.n_ctx = needed, self._model.n_ctx
            raise error
        self._ids += ids
        self._model.forwards += 1
        self.rows.append(len(ids))
        ends = range(needed - positions + 1, needed + 1)
        rows: npt.NDArray[np.float32]
        rows = np.stack([self._model.row(self._ids[:end]) for end in ends])
        return rows

    def prefill(
        self,
        tokens: Any,
        *,
        attention: object = None,
        positions: int = 1,
        progress: Callable[[int, int], object] | None = None,
        prompt_length: int | None = None,
        holder: int = 0,
    ) -> npt.NDArray[np.float32]:
        assert attention is None, "the toy looks at everything"
        rows = self.forward_last(tokens, max(positions, 1), holder=holder)[:positions]
        if progress is not None:
            progress(len(tokens), len(tokens))
        return rows

    def truncate(self, length: int, *, holder: int = 0) -> None:
        self._check(holder)
        if not 0 <= length <= len(self._ids):
            raise ValueError(f"cannot truncate {len(self._ids)} tokens to {length}")
        del self._ids[length:]

    def reset(self) -> None:
        self.truncate(0)

    def snapshot(self) -> Snapshot:
        return Snapshot(self._model, self._ids)

    def restore(self, snapshot: Snapshot) -> None:
        self._check(0)
        if snapshot.model is not self._model:
            raise ValueError("the snapshot was taken on another model")
        self._ids = list(snapshot.ids)

    def fork(self) -> Session:
        return Session(self._model, self._ids)

    def save(self, path: str | PathLike[str]) -> None:
        Path(path).write_text(json.dumps(self._ids))

    def lease(self) -> Lease:
        return Lease(self)

    def _check(self, holder: int) -> None:
        if holder != self._holder:
            raise RuntimeError(
                "the lease was released; take a new one with session.lease()"
                if holder
                else "the session is in use by another generation; finish or close that one, "
                "or work on session.fork()"
            )


class Lease:
    _numbers = count(1)

    def __init__(self, session: Session) -> None:
        self._number = 0
        with session._lock:
            session._check(0)
            session._holder = self._number = next(self._numbers)
        self._session = session
        self.forward_last = partial(session.forward_last, holder=self._number)
        self.choose_last = partial(session.choose_last, holder=self._number)
        self.prefill = partial(session.prefill, holder=self._number)
        self.truncate = partial(session.truncate, holder=self._number)

    def parts(self) -> tuple[Session, int]:
        return self._session, self._number

    def release(self) -> None:
        with self._session._lock:
            if self._session._holder == self._number:
                self._session._holder = 0

    def __del__(self) -> None:
        if self._number:
            self.release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


class Tokenizer:
    """Greedy longest match over the vocabulary."""

    def __init__(self, model: Model) -> None:
        settings = model.settings
        self._vocab = model.vocab
        self._bytes = [as_bytes(text) for text in model.vocab]
        self.n_vocab = len(model.vocab)
        default = model.vocab is LETTERS
        self.bos: int | None = settings.get("bos", 0 if default else None)
        self.eos: int | None = settings.get("eos", 1 if default else None)
        self.end_ids: list[int] = settings.get("end_ids", [] if self.eos is None else [self.eos])
        self.add_bos: bool = settings.get("add_bos", False)
        self.chat_template: str | None = settings.get("chat_template")
        self.notes: list[str] = settings.get("notes", [])
        self._control = set(settings.get("control", [0, 1] if default else []))
        self._unused = set(settings.get("unused", []))

    def encode(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False
    ) -> list[int]:
        add_bos = self.add_bos if add_bos is None else add_bos
        ids = [self.bos] if add_bos and self.bos is not None else []
        usable = [i for i in range(self.n_vocab) if parse_special or i not in self._control]
        left = text.encode()
        while left:
            fitting = [i for i in usable if self._bytes[i] and left.startswith(self._bytes[i])]
            if not fitting and not parse_special:  # who asks for marks may ask for any
                raise ValueError(f"the toy vocabulary cannot spell {left!r}")
            ids.append(max(fitting, key=lambda i: len(self._bytes[i]), default=self.n_vocab))
            left = left[len(self._bytes[ids[-1]]) if fitting else 1 :]
        return ids

    def encode_pieces(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        each = (self.encode(text, add_bos=False, parse_special=own) for text, own in pieces)
        return [token for ids in each for token in ids]

    def decode(self, tokens: Any, *, skip_special_tokens: bool = True) -> str:
        stream = self.stream(skip_special_tokens=skip_special_tokens)
        return "".join(stream.push(token) for token in tokens) + stream.finish()

    def token(self, id: int) -> str:  # noqa: A002 - the name of the interface
        return self._vocab[id] or ""

    def token_bytes(self, id: int) -> bytes:  # noqa: A002
        return b"" if id in self._control else self._bytes[id]

    def control_id(self, name: str) -> int | None:
        return next((i for i in sorted(self._control) if self._vocab[i] == name), None)

    def is_control(self, id: int) -> bool:  # noqa: A002
        return id in self._control

    def is_padding(self, id: int) -> bool:  # noqa: A002
        return self._vocab[id] is None or id in self._unused

    def stream(self, *, continuing: bool = False, skip_special_tokens: bool = True) -> TextStream:
        del continuing  # no first space here
        skipped = self._control if skip_special_tokens else ()
        return TextStream([b"" if i in skipped else b for i, b in enumerate(self._bytes)])


class TextStream:
    def __init__(self, spelling: list[bytes]) -> None:
        self._spelling = spelling
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._spelling[token] if token < len(self._spelling) else b"")

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def as_bytes(text: str | None) -> bytes:
    """Spell a vocabulary entry."""
    if text is None:
        return b""
    return bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()
