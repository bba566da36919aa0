"""The rule that makes speculation lossless."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def verify(picks: Iterable[int], draft: Sequence[int]) -> list[int]:
    """Return the ids a step makes: the picks that the draft foresaw, and one more.

    Only picks of the target are ever returned; the draft decides how many of them one forward
    yields. Pick i was made on a history that holds draft[:i], so it counts only while all of those
    were picked too. `picks` may be lazy: nothing is asked of it beyond the first difference. Where
    a grammar is complete it ends early, and so do the ids.

    >>> verify([5, 6, 7, 9], [5, 6, 8])
    [5, 6, 7]

    Args:
        picks: The target's choice at each of the len(draft) + 1 positions.
        draft: The proposed ids; empty in plain decoding.
    """
    made: list[int] = []
    for pick in picks:
        made.append(pick)
        if len(made) > len(draft) or pick != draft[len(made) - 1]:
            break
    return made
