"""The keyword arguments of generations and chats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from itertools import islice
from typing import TYPE_CHECKING, Any, TypedDict

from .arguments import NO_TOKEN_IDS, checked_int, checked_text
from .attention.choice import Attention
from .decoding.loop import room
from .keywords import check_known
from .sampling import Sampling
from .speculation.drafters import Drafter
from .speculation.length import LengthPolicy

if TYPE_CHECKING:
    from ._specrs import Session
    from .structured.grammar import Grammar


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


class TextOptions(TypedDict, total=False):
    """What else makes the prompt of a text; `Llama.stream` explains it."""

    parse_special: bool


class RequestOptions(_Options, total=False):
    """The keyword arguments of a generation that has a session of its own."""

    max_tokens: int | None
    sampling: Sampling
    drafter: Drafter | None
    grammar: Grammar | None


class Options(RequestOptions, total=False):
    """The keyword arguments of a generation; `Llama.stream` explains them."""

    session: Session | None


class ManyOptions(_Options, total=False):
    """The keyword arguments of many generations; `Llama.generate_many` explains them."""

    max_tokens: int | Sequence[int | None] | None
    sampling: Sampling | Sequence[Sampling]
    drafter: Drafter | Sequence[Drafter | None] | None
    grammar: Grammar | Sequence[Grammar | None] | None
    max_requests: int
    cache_bytes: int | None


class OptionsOfText(Options, TextOptions, total=False):
    """The keyword arguments of a generation after a text."""


class RequestOptionsOfText(RequestOptions, TextOptions, total=False):
    """The keyword arguments of a generation after a text that has a session of its own."""


class ManyOptionsOfText(ManyOptions, TextOptions, total=False):
    """The keyword arguments of many generations after texts."""


class ChatOptions(TypedDict, total=False):
    """What else makes the prompt of a chat; `Llama.chat_tokens` explains it."""

    tools: Sequence[Mapping[str, Any]] | None
    template_variables: Mapping[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool


class OptionsOfChat(Options, ChatOptions, total=False):
    """The keyword arguments of a reply."""


class RequestOptionsOfChat(RequestOptions, ChatOptions, total=False):
    """The keyword arguments of a reply that has a session of its own."""


class ManyOptionsOfChat(ManyOptions, ChatOptions, total=False):
    """The keyword arguments of many replies."""


def prompt_ids(
    llm: Any, prompt: str | Sequence[int], n_ctx_train: int, parse_special: bool
) -> list[int]:
    """Return the ids of a prompt of `llm`, which may be text.

    Raises TypeError or ValueError for what is none, ContextOverflow for what leaves no room.
    """
    if isinstance(prompt, str):
        return list(llm.tokenize(checked_text("prompt", prompt), parse_special=parse_special))
    if isinstance(prompt, NO_TOKEN_IDS) or not isinstance(prompt, Iterable):
        raise TypeError(f"prompt must be text or token ids, not {type(prompt).__name__}")
    if isinstance(prompt, Sized):  # too many need not be read
        room(len(prompt), llm.n_ctx, None, n_ctx_train)
    ids = []
    for i, token in enumerate(islice(prompt, llm.n_ctx)):
        if isinstance(token, str):
            raise TypeError("prompt must be one text or token ids; call once for each text")
        token = checked_int(f"prompt[{i}]", token, "a token id")
        if not 0 <= token < llm.n_vocab:
            raise ValueError(f"prompt[{i}] is {token}, outside the vocabulary of {llm.n_vocab}")
        ids.append(token)
    if len(ids) == llm.n_ctx:  # of an iterator that may have no end
        room(llm.n_ctx, llm.n_ctx, None, n_ctx_train, more=True)
    return ids


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


LOADING = ("path", "n_ctx", "threads", "device")
"""The arguments of `Llama`."""

PLACES: Mapping[str, Collection[str]] = {
    "sampling=specrs.Sampling({}=...)": Sampling.__dataclass_fields__,
    "specrs.Llama({}=...)": LOADING,
    "generate({}=...) and its like": OptionsOfText.__annotations__,
    "chat({}=...) and its like": ChatOptions.__annotations__,
}
"""Where an argument may belong that was given elsewhere."""


def check_options(method: str, options: Iterable[str], known: type = Options) -> None:
    """Raise TypeError for an option that is not among the `known` ones."""
    check_known(method, options, known.__annotations__, PLACES)
