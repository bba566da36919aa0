"""Asking drafters for drafts and policies for lengths, with nothing taken on trust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from reprlib import repr as shortened

from ..arguments import NO_TOKEN_IDS, checked_int
from .drafters import Draft, Drafter
from .length import LengthPolicy


def propose(
    drafter: Drafter | None, length: LengthPolicy, tokens: list[int], room: int, n_vocab: int
) -> Draft:
    """Ask for a draft of at most `room` ids; of a chain each member until one's draft is kept."""
    if drafter is None or room <= 0:
        return Draft()
    for member in members_of(drafter):
        k = how_many(member, length, room)
        draft = kept(length, proposal_of(member, tokens, k, n_vocab)) if k else Draft()
        if draft:
            return draft
    return Draft()


def members_of(drafter: Drafter) -> Sequence[Drafter]:
    """Return those who are asked one after the other."""
    members: Sequence[Drafter] = getattr(drafter, "members", [drafter])
    return members


def how_many(member: Drafter, length: LengthPolicy, room: int) -> int:
    """Return how many ids to ask a drafter for."""
    return min(_policy_number(length, "next", type(member).__name__), room)


def kept(length: LengthPolicy, draft: Draft) -> Draft:
    """Cut a draft to what the policy keeps of it."""
    del draft[_policy_number(length, "keep", draft) :]
    return draft


def call_policy(length: LengthPolicy, method: str, argument: object) -> object:
    """Call a method of the user's policy."""
    try:
        return getattr(length, method)(argument)
    except Exception as error:
        raise RuntimeError(
            f"draft_length: {type(length).__name__}.{method}() failed: {error!r}"
        ) from error


def _policy_number(length: LengthPolicy, method: str, argument: object) -> int:
    """Ask the user's policy for a number of tokens."""
    name = f"draft_length: what {type(length).__name__}.{method}() returns"
    number = checked_int(name, call_policy(length, method, argument))
    if number < 0:
        raise ValueError(f"{name} must be 0 or more, not {number}")
    return number


def proposal_of(drafter: Drafter, tokens: list[int], k: int, n_vocab: int) -> Draft:
    """Ask `drafter` for at most `k` ids, and take nothing on trust."""
    name, known = type(drafter).__name__, len(tokens)
    try:
        proposal = drafter.propose(tokens, k)
        if isinstance(proposal, Iterator):  # its work is only done now
            proposal = list(islice(proposal, k + 1))
    except Exception as error:
        raise RuntimeError(f"drafter {name} failed after {known} tokens: {error!r}") from error
    if len(tokens) != known:
        raise RuntimeError(f"drafter {name} changed the history it was given; it may only read it")
    return checked_draft(drafter, proposal, k, n_vocab)


def checked_draft(drafter: Drafter, proposal: Sequence[int], k: int, n_vocab: int) -> Draft:
    """Return what `drafter` proposed; TypeError or ValueError unless it is up to `k` ids."""
    name = type(drafter).__name__
    try:
        if isinstance(proposal, NO_TOKEN_IDS):
            raise TypeError
        draft = Draft((checked_int("", token) for token in islice(proposal, k + 1)), drafter=name)
    except TypeError:
        raise TypeError(
            f"drafter {name} must propose a sequence of token ids, not {shortened(proposal)}"
        ) from None
    draft.matched = checked_int(
        f"drafter {name}: matched, of what it proposes,", getattr(proposal, "matched", 0)
    )
    if len(draft) > k:
        raise ValueError(f"drafter {name} proposed more than the {k} tokens it was asked for")
    for token in draft:
        if not 0 <= token < n_vocab:
            raise ValueError(
                f"drafter {name} proposed token {token}, outside the vocabulary of {n_vocab}"
            )
    return draft
