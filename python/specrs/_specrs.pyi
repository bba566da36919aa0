"""The Rust engine: model files, logits, sessions and tokenising."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, Literal, final, overload

import numpy as np
import numpy.typing as npt

TokenIds = Sequence[int] | npt.NDArray[np.integer[Any]]

class GgufError(ValueError):
    """The model file is malformed, or uses something that is not supported."""

class ContextOverflow(ValueError):
    """More positions are needed than the context holds; `needed` and `n_ctx` carry both numbers."""

    needed: int
    n_ctx: int

@final
class GgufFile:
    """The header of a GGUF file (all parts of a split one); nothing is loaded.

    Raises OSError when the file cannot be read and GgufError when it is malformed.
    """

    def __new__(cls, path: str | PathLike[str]) -> GgufFile: ...
    @property
    def version(self) -> int: ...
    @property
    def size(self) -> int:
        """Bytes of all parts."""
    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def tensors(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """Name, type, shape (rows first) and bytes of every tensor, in file order."""
    def ignored_tensors(self) -> list[str]:
        """Names of the tensors that a model does not use; GgufError if the file cannot run."""
    def plan(self, *, n_ctx: int | None = None, threads: int | None = None) -> Plan:
        """What `Model` would be on device "cpu", from the header alone; raises what the header alone makes `Model` raise."""

@final
class Plan:
    """What a model will be once it is loaded."""

    @property
    def n_ctx(self) -> int:
        """Positions of a session."""
    @property
    def threads(self) -> int: ...
    @property
    def kernels(self) -> str: ...
    @property
    def weight_bytes(self) -> int:
        """Resident bytes of the weights."""
    @property
    def cache_bytes_per_token(self) -> int: ...
    @property
    def notes(self) -> list[str]:
        """What the file says and cannot be followed, a sentence each."""

@final
class Model:
    """A loaded model; immutable, shared by its sessions and safe to use from several threads.

    Args:
        n_ctx: Positions a session holds; None is what the file says.
        threads: CPU threads of a forward; None is the physical cores this process may use.
        device: "cpu", "candle-cpu", "metal" or "cuda".

    Raises OSError, GgufError, MemoryError, or ValueError for an argument out of range.
    """

    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        n_ctx: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
    ) -> Model: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def kernels(self) -> str:
        """The chosen kernel set, such as "avx512-vnni"; "candle" on the candle engine."""
    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def weight_bytes(self) -> int:
        """Resident bytes of the weights."""
    @property
    def n_ctx_train(self) -> int:
        """Positions the model was trained for: the largest `n_ctx`."""
    @property
    def passes(self) -> tuple[int, int]:
        """Passes over the weights so far, and how many ran on fewer threads; (0, 0) on candle."""
    @property
    def expert_rows(self) -> npt.NDArray[np.uint64] | None:
        """How many rows went to each expert so far, [layers, experts]; None without experts."""
    @property
    def windows(self) -> list[int | None]:
        """How many positions a query sees in each layer, its own included; None is all."""
    @property
    def cache_bytes_per_token(self) -> int: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    def check_attention(self, attention: object) -> None:
        """Raise ValueError unless this device can run what `attention=` asks for."""
    def session(self) -> Session: ...
    def load_session(self, path: str | PathLike[str]) -> Session:
        """Read a session written by `Session.save`; ValueError if it is damaged or of another model."""
    @overload
    def forward_many(
        self,
        inputs: Iterable[tuple[Session | Lease, TokenIds, int]],
        *,
        choose: Literal[False] = ...,
    ) -> list[npt.NDArray[np.float32]]: ...
    @overload
    def forward_many(
        self, inputs: Iterable[tuple[Session | Lease, TokenIds, int]], *, choose: Literal[True]
    ) -> list[list[int | None]]: ...
    @overload
    def forward_many(
        self,
        inputs: Iterable[tuple[Session | Lease, TokenIds, int]],
        *,
        choose: bool | Sequence[bool] = ...,
    ) -> list[npt.NDArray[np.float32] | list[int | None]]:
        """Append tokens to several sessions, which share each pass over the weights.

        On device "cpu" every row has the bits that it has in a call of its own; candle takes one
        session after the other. A call that fails leaves all sessions as they were.

        Args:
            inputs: `(session, tokens, positions)` of each: after how many of the last tokens something
                is wanted, which may be 0. The sessions are different ones, of this model; one that
                another thread uses is waited for.
            choose: Whether the most likely tokens are wanted, as of `Session.choose_last`, or logits,
                as of `Session.forward_last`; for all inputs, or one value for each.

        Returns, in the order of the inputs, logits [positions, n_vocab] or a list of ids. Errors name
        the input at fault.
        """

@final
class Pattern:
    """The engine's form of an attention pattern; `specrs.attention` builds and checks them."""

    @staticmethod
    def auto() -> Pattern:
        """What `attention="auto"` stands for."""
    @staticmethod
    def window(sink: int, window: int, log: bool) -> Pattern: ...
    @staticmethod
    def block_mean(
        alpha: float, spread: float, least: float, sink: int, window: int, correct: bool
    ) -> Pattern: ...
    @staticmethod
    def antidiagonal(stride: int, tau: float, sink: int, window: int) -> Pattern: ...
    @staticmethod
    def custom(mask: npt.NDArray[np.bool_]) -> Pattern: ...
    @staticmethod
    def layer_split(first: float, early: Pattern, late: Pattern) -> Pattern: ...
    def dense_below(self, positions: int) -> Pattern: ...
    def dense_layers(self, first: float, last: float) -> Pattern: ...
    def dense_tail(self, positions: int) -> Pattern: ...
    def tail_start(self, end: int) -> int:
        """The position from which some layer attends exactly because a prompt ends at `end`."""

@final
class Snapshot:
    """A frozen state of a session; cheap, and never changed by what the session does later."""

    def __len__(self) -> int: ...

@final
class Session:
    """The mutable state of one sequence: the KV cache and the ids in it.

    Every call that fails leaves the session as it was. Calls from several threads wait for each other.
    MemoryError if there is no room for the logits.
    """

    @property
    def tokens(self) -> list[int]:
        """The cached ids."""
    def __len__(self) -> int: ...
    def forward(self, tokens: TokenIds) -> npt.NDArray[np.float32]:
        """Append `tokens`; logits [n_vocab] after the last of them."""
    def forward_all_positions(self, tokens: TokenIds) -> npt.NDArray[np.float32]:
        """Append `tokens`; logits [len(tokens), n_vocab] after each of them."""
    def forward_last(self, tokens: TokenIds, positions: int) -> npt.NDArray[np.float32]:
        """Append `tokens`; logits [positions, n_vocab] after the last `positions` of them."""
    def choose_last(self, tokens: TokenIds, positions: int) -> list[int | None]:
        """Append `tokens`; the ids with the highest logits after the last `positions` of them.

        The first id among equals, as of `forward_last(...).argmax(axis=1)`, but without computing all
        logits. None where no logit is above -inf.
        """
    def prefill(
        self,
        tokens: TokenIds,
        *,
        attention: object = None,
        positions: int = ...,
        progress: Callable[[int, int], object] | None = None,
        prompt_length: int | None = None,
        kept: npt.NDArray[np.uint32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Append the rest of a prompt; logits [positions, n_vocab] after the last ones.

        Args:
            tokens: The ids.
            attention: What they look at: "dense" or None for everything, "auto", or a pattern of
                `specrs.attention`; ValueError if this device cannot run it.
            positions: How many of the last positions need logits; 0 for none.
            progress: Called as `progress(done, total)` after every piece of the prompt; an
                exception that it raises cancels the call and leaves the session as it was.
            prompt_length: Positions of the session when the prompt is complete; None if it is after
                this call.
            kept: Zeros of `kept_shape(len(tokens))`; for each layer, block of queries and block of
                keys the number of queries for which its values counted is added. On device "cpu"
                only.
        """
    def kept_shape(self, length: int) -> tuple[int, int, int]:
        """The shape of `kept` for `length` more tokens; ContextOverflow if they do not fit."""
    @property
    def sparse_spans(self) -> list[tuple[int, int, str]]:
        """The positions that were attended to sparsely: start, end and pattern of each span."""
    def truncate(self, length: int) -> None:
        """Forget all ids from position `length` on; ValueError if the session is shorter."""
    def reset(self) -> None:
        """Forget everything."""
    def snapshot(self) -> Snapshot: ...
    def restore(self, snapshot: Snapshot) -> None:
        """Go back to `snapshot`; ValueError if it was taken on another model."""
    def fork(self) -> Session:
        """A second session with the same contents; shared memory is copied only where it is written."""
    def save(self, path: str | PathLike[str]) -> None:
        """Write the session to a file, atomically."""
    def lease(self) -> Lease:
        """Keep the session to oneself, for a generation; RuntimeError if it is leased already.

        Until the lease is released, every other call that would change the session is a RuntimeError.
        Reading, `snapshot`, `fork` and `save` work as ever.
        """

@final
class Lease:
    """The right to change a session, which nobody else has until it is released.

    A context: its end releases the lease, and so does forgetting it. Calls after that are a
    RuntimeError. Its methods do what those of `Session` do.
    """

    def forward_last(self, tokens: TokenIds, positions: int) -> npt.NDArray[np.float32]: ...
    def choose_last(self, tokens: TokenIds, positions: int) -> list[int | None]: ...
    def prefill(
        self,
        tokens: TokenIds,
        *,
        attention: object = None,
        positions: int = ...,
        progress: Callable[[int, int], object] | None = None,
        prompt_length: int | None = None,
    ) -> npt.NDArray[np.float32]: ...
    def truncate(self, length: int) -> None: ...
    def release(self) -> None:
        """Let others change the session again."""
    def __enter__(self) -> Lease: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Tokenizer:
    """The tokenizer a GGUF file describes (SPM or BPE)."""

    @property
    def n_vocab(self) -> int: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def end_ids(self) -> list[int]:
        """Every id that ends a generation: end of sequence, of turn, of message."""
    @property
    def add_bos(self) -> bool: ...
    @property
    def chat_template(self) -> str | None: ...
    def encode(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False
    ) -> list[int]: ...
    def encode_pieces(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        """Ids of one text in pieces, each with whether marks count in it; BOS is not added."""
    def decode(self, tokens: TokenIds, *, skip_special_tokens: bool = True) -> str:
        """Text of `tokens`, with or without control tokens; bytes that are no UTF-8 become U+FFFD."""
    def token_bytes(self, id: int) -> bytes:
        """The bytes that `id` adds to a text: none, if it is a control token or padding."""
    @property
    def notes(self) -> list[str]: ...
    def token(self, id: int) -> str:
        """The vocabulary's own string of `id`, for messages and comparisons."""
    def control_id(self, name: str) -> int | None: ...
    def is_control(self, id: int) -> bool: ...
    def is_padding(self, id: int) -> bool:
        """Whether `id` is an unused row that only pads the vocabulary."""
    def stream(self, *, continuing: bool = False, skip_special_tokens: bool = True) -> TextStream:
        """A stream for ids that begin a text, or that continue one (a first space then belongs to it)."""

@final
class TextStream:
    """Turns ids into text piece by piece; every piece is whole UTF-8 and the pieces join to `Tokenizer.decode`."""

    def push(self, token: int) -> str:
        """Text that became complete with `token`, often empty in the middle of a character."""
    def finish(self) -> str:
        """What was held back: one U+FFFD for each incomplete character."""

@final
class Sampler:
    """Chooses the tokens of one sequence and keeps their history; see `specrs.Sampling`.

    Logits are float32 [n_vocab], contiguous, and are read in place. ValueError where no token has a
    logit above -inf; the history is then as it was.

    Args:
        prompt_tokens: Ids at the beginning that do not count as generated.
    """

    def __new__(
        cls,
        *,
        prompt_tokens: int = ...,
        seed: int = 0,
        temperature: float = 0.0,
        top_k: int = ...,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: Sequence[tuple[int, float]] = ...,
    ) -> Sampler: ...
    def __len__(self) -> int:
        """Length of the history: the position of the next choice."""
    def extend(self, tokens: TokenIds) -> None:
        """Append `tokens` to the history."""
    def truncate(self, length: int) -> None:
        """Cut the history; ValueError if it is shorter."""
    def adjust(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """New logits with penalties and biases applied, as the history demands."""
    def pick(self, logits: npt.NDArray[np.float32], *, adjusted: bool = False) -> int:
        """Choose the next token and append it; `adjusted` logits come from `adjust`."""
    def log_probabilities(
        self, logits: npt.NDArray[np.float32], token: int, count: int
    ) -> tuple[float, list[tuple[int, float]]]:
        """The log-softmax of `logits` at `token`, and the `count` largest with their ids, descending."""

@final
class NgramIndex:
    """Where the n-grams of a history occurred; sizes from `min_size` to `max_size`.

    Args:
        occurrence: Which of several occurrences `propose` copies from.
        min_hits: Occurrences an n-gram needs.
    """

    def __new__(
        cls,
        min_size: int,
        max_size: int,
        occurrence: Literal["last", "first", "most_frequent"],
        min_hits: int,
    ) -> NgramIndex: ...
    def __len__(self) -> int:
        """Length of the history."""
    def clear(self) -> None:
        """Forget the history."""
    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the history."""
    def propose(self, k: int) -> tuple[list[int], int]:
        """Up to `k` ids that followed the longest final n-gram which occurred before, and its size."""

@final
class SuffixTree:
    """How often every string of at most `depth` ids occurs in the texts added; from 2 on."""

    def __new__(cls, depth: int) -> SuffixTree: ...
    def __len__(self) -> int:
        """Ids of all texts."""
    def add(self, tokens: Sequence[int]) -> None:
        """Add a text."""

@final
class SuffixIndex:
    """A history whose end is looked up in its own past and in a corpus."""

    def __new__(cls, depth: int, corpus: SuffixTree | None = None) -> SuffixIndex: ...
    def __len__(self) -> int:
        """Length of the history."""
    def clear(self) -> None:
        """Forget the history."""
    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the history."""
    def propose(self, k: int, min_probability: float) -> tuple[list[int], int, float]:
        """The guess of up to `k` ids with the most right ones to expect.

        Returns the ids, the length of the context they follow, and how many should be right.
        """
