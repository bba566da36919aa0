"""What is to be scored, checked and turned into ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .._specrs import ContextOverflow, Tokenizer
from ..arguments import NO_TOKEN_IDS, checked_text, checked_token_ids


@dataclass(frozen=True)
class Text:
    """What is to be scored.

    Attributes:
        context: Ids before it.
        tokens: Its ids.
        num_bytes: Length of its text; None if it is the sum of its tokens.
    """

    context: list[int]
    tokens: list[int]
    num_bytes: int | None


def texts(
    tokenizer: Tokenizer, prompt: Any, continuations: Sequence[Any] | None, n_ctx: int, of: str = ""
) -> list[Text]:
    """Check what is to be scored and turn it into ids.

    Text is tokenised with what stands before it, and white space at the end of the prompt belongs
    to the continuation, as in EleutherAI's evaluation harness. Ids stay as they are.

    Args:
        tokenizer: The model's.
        prompt: Text or ids.
        continuations: What may follow it; None is to score the prompt itself.
        n_ctx: Positions of the context.
        of: What errors begin with: which of several prompts this is.

    Raises TypeError, ValueError, also for a text without tokens, or ContextOverflow.
    """
    prompt_name = f"{of}prompt"
    if continuations is None:
        if isinstance(prompt, str):
            ids = tokenizer.encode(checked_text(prompt_name, prompt))
            at = int(tokenizer.bos is not None and ids[:1] == [tokenizer.bos])
            found = Text(ids[:at], ids[at:], len(prompt.encode()))
        else:
            found = Text([], checked_token_ids(prompt_name, prompt, tokenizer.n_vocab), None)
        return [_fitting(found, f"{of}the prompt", n_ctx)]
    names = [f"{of}continuations[{i}]" for i in range(len(continuations))]
    if isinstance(prompt, str):
        found_texts = list(_of_text(tokenizer, prompt_name, prompt, names, continuations))
    else:
        context = checked_token_ids(prompt_name, prompt, tokenizer.n_vocab)
        of_ids = (
            checked_token_ids(name, one, tokenizer.n_vocab)
            for name, one in zip(names, continuations, strict=True)
        )
        found_texts = [Text(context, ids, None) for ids in of_ids]
    return [_fitting(text, name, n_ctx) for text, name in zip(found_texts, names, strict=True)]


def _of_text(
    tokenizer: Tokenizer,
    prompt_name: str,
    prompt: str,
    names: Sequence[str],
    continuations: Sequence[Any],
) -> Iterator[Text]:
    """Tokenise continuations with the prompt before them."""
    stem = checked_text(prompt_name, prompt).rstrip()
    context = tokenizer.encode(stem)
    for name, one in zip(names, continuations, strict=True):
        text = prompt[len(stem) :] + checked_text(name, one)
        ids = tokenizer.encode(stem + text)
        if text and len(ids) <= len(context):
            raise ValueError(
                f"{name} becomes one token with the end of the prompt; give ids, or move the border"
            )
        yield Text(context, ids[len(context) :], len(text.encode()))


def _fitting(text: Text, name: str, n_ctx: int) -> Text:
    """Return a text that can be scored; ValueError or ContextOverflow for another."""
    if not text.tokens:
        raise ValueError(f"{name} has no tokens; there is nothing to score")
    needed = len(text.context) + len(text.tokens) - 1
    if needed > n_ctx:
        error = ContextOverflow(
            f"{name} needs {needed} positions, and the context has {n_ctx}; shorten it, or "
            "load the model with a larger n_ctx"
        )
        error.needed, error.n_ctx = needed, n_ctx
        raise error
    return text


def several(continuations: Any) -> list[Any] | None:
    """Return continuations as a list; None for a single one, which is text or ids."""
    if isinstance(continuations, str) or continuations is None:
        return None
    if isinstance(continuations, NO_TOKEN_IDS) or not isinstance(continuations, Iterable):
        raise TypeError(f"continuations must be text, ids or a list of them, not {continuations!r}")
    listed = list(continuations)
    is_ids = bool(listed) and not isinstance(listed[0], str) and not isinstance(listed[0], Iterable)
    return None if is_ids else listed


def pairs(prompts: Any, continuations: Any) -> list[tuple[Any, list[Any] | None]]:
    """Return each of several prompts with its continuation in a list; None where there is none."""
    listed = _listed("prompts", prompts)
    if continuations is None:
        return [(prompt, None) for prompt in listed]
    following = _listed("continuations", continuations)
    if len(following) != len(listed):
        raise ValueError(
            f"there are {len(listed)} prompts and {len(following)} continuations; give one for each"
        )
    return [(prompt, [one]) for prompt, one in zip(listed, following, strict=True)]


def _listed(name: str, several: Any) -> list[Any]:
    """Return several texts, or lists of ids, as a list; TypeError for one text."""
    if isinstance(several, NO_TOKEN_IDS) or not isinstance(several, Iterable):
        raise TypeError(f"{name} must be several texts, or lists of ids, not {several!r}")
    return list(several)
