"""The keyword arguments of generations and chats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from .arguments import NO_TOKEN_IDS, checked_int
from .attention.choice import Attention
from .sampling import Sampling
from .speculation.drafters import Drafter
from .speculation.length import LengthPolicy

if TYPE_CHECKING:
    from ._specrs import Session


class Options(TypedDict, total=False):
    """The keyword arguments of a generation; `Llama.stream` explains them."""

    max_tokens: int | None
    sampling: Sampling
    drafter: Drafter | None
    draft_length: LengthPolicy | None
    stop: str | Sequence[str]
    stop_token_ids: Collection[int]
    ignore_eos: bool
    skip_special_tokens: bool
    logprobs: int | None
    session: Session | None
    attention: Attention
    progress: Callable[[int, int], object] | None
    trace: bool


class ChatOptions(TypedDict, total=False):
    """What else makes the prompt of a chat; `Llama.chat_tokens` explains it."""

    tools: Sequence[Mapping[str, Any]] | None
    template_variables: Mapping[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool


class OptionsOfChat(Options, ChatOptions, total=False):
    """The keyword arguments of a reply."""


def check_options(method: str, options: Iterable[str], known: type = Options) -> None:
    """Raise TypeError for an option that is not among the `known` ones."""
    for name in options:
        if name not in known.__annotations__:
            belongs = name in Sampling.__dataclass_fields__
            hint = f"; it belongs to sampling=specrs.Sampling({name}=...)" if belongs else ""
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}{hint}")


def checked_stop_ids(ids: Any, n_vocab: int) -> frozenset[int]:
    """Return the ids of `stop_token_ids`; TypeError or ValueError if they are none."""
    if isinstance(ids, (set, frozenset)):
        ids = sorted(ids)
    if isinstance(ids, NO_TOKEN_IDS) or not isinstance(ids, Iterable):
        raise TypeError(f"stop_token_ids must be token ids, not {ids!r}")
    checked = [checked_int(f"stop_token_ids[{i}]", token) for i, token in enumerate(ids)]
    for i, token in enumerate(checked):
        if not 0 <= token < n_vocab:
            raise ValueError(f"stop_token_ids[{i}] is {token}, outside the vocabulary of {n_vocab}")
    return frozenset(checked)
