"""The keyword arguments of generations and chats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from .attention.choice import Attention
from .sampling import Sampling
from .speculation.drafters import Drafter
from .speculation.length import LengthPolicy

if TYPE_CHECKING:
    from ._specrs import Session


class _Options(TypedDict, total=False):
    """What is the same for one generation and for many."""

    draft_length: LengthPolicy | None
    stop: str | Sequence[str]
    stop_token_ids: Collection[int]
    ignore_eos: bool
    skip_special_tokens: bool
    logprobs: int | None
    attention: Attention
    progress: Callable[[int, int], object] | None
    trace: bool


class RequestOptions(_Options, total=False):
    """The keyword arguments of a generation that has a session of its own."""

    max_tokens: int | None
    sampling: Sampling
    drafter: Drafter | None


class Options(RequestOptions, total=False):
    """The keyword arguments of a generation; `Llama.stream` explains them."""

    session: Session | None


class ManyOptions(_Options, total=False):
    """The keyword arguments of many generations; `Llama.generate_many` explains them."""

    max_tokens: int | Sequence[int | None] | None
    sampling: Sampling | Sequence[Sampling]
    drafter: Drafter | Sequence[Drafter | None] | None
    max_requests: int
    cache_bytes: int | None


class ChatOptions(TypedDict, total=False):
    """What else makes the prompt of a chat; `Llama.chat_tokens` explains it."""

    tools: Sequence[Mapping[str, Any]] | None
    template_variables: Mapping[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool


class OptionsOfChat(Options, ChatOptions, total=False):
    """The keyword arguments of a reply."""


class RequestOptionsOfChat(RequestOptions, ChatOptions, total=False):
    """The keyword arguments of a reply that has a session of its own."""


class ManyOptionsOfChat(ManyOptions, ChatOptions, total=False):
    """The keyword arguments of many replies."""


def checked_length(
    drafter: Drafter | None, draft_length: LengthPolicy | None, llm: Any
) -> LengthPolicy | None:
    """Return `draft_length`; TypeError or ValueError unless it and `drafter` fit together."""
    if drafter is None:
        if draft_length is not None:
            raise ValueError("draft_length has no effect without a drafter; pass drafter= as well")
        return None
    if isinstance(drafter, type) or not isinstance(drafter, Drafter):
        raise TypeError(
            f"drafter must be an object with a method propose(tokens, k), not {drafter!r}"
        )
    check_target = getattr(drafter, "check_target", None)
    if check_target is not None:
        check_target(llm)
    if draft_length is None:
        return None
    if isinstance(draft_length, type) or not isinstance(draft_length, LengthPolicy):
        raise TypeError(
            f"draft_length must be a policy such as specrs.FixedLength(4), not {draft_length!r}"
        )
    return draft_length


def check_options(method: str, options: Iterable[str], known: type = Options) -> None:
    """Raise TypeError for an option that is not among the `known` ones."""
    for name in options:
        if name not in known.__annotations__:
            belongs = name in Sampling.__dataclass_fields__
            hint = f"; it belongs to sampling=specrs.Sampling({name}=...)" if belongs else ""
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}{hint}")
