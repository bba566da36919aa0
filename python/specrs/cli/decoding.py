"""How tokens are chosen and guessed: options that `generate` and `chat` share."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import typer

import specrs

from .options import biases_of, complete_model, default_of, given, seed_of


def _setting(name: str, help: str) -> Any:  # noqa: A002 - the name it has in typer
    return typer.Option(help=help, show_default=default_of(specrs.Sampling, name))


Temperature = Annotated[
    float | None,
    _setting("temperature", "0 takes the likeliest token; above, the higher the more varied."),
]
TopK = Annotated[int | None, _setting("top_k", "Draw among this many likeliest tokens; 0: all.")]
TopP = Annotated[
    float | None,
    _setting("top_p", "Draw among the likeliest tokens that have this probability together."),
]
MinP = Annotated[
    float | None, _setting("min_p", "Draw among tokens with this share of the likeliest one's.")
]
Seed = Annotated[
    str | None, _setting("seed", "Same number, same draws; or random, for others every time.")
]
RepetitionPenalty = Annotated[
    float | None, _setting("repetition_penalty", "Above 1, seen tokens become less likely.")
]
FrequencyPenalty = Annotated[
    float | None, _setting("frequency_penalty", "Taken from a token's logit at every occurrence.")
]
PresencePenalty = Annotated[
    float | None, _setting("presence_penalty", "Taken from the logit of tokens that occurred.")
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="ID=NUMBER", help="Add to the logit of a token; -inf forbids it."),
]


class DrafterName(str, Enum):
    """Drafters that need no model."""

    none = "none"
    prompt_lookup = "prompt-lookup"
    suffix_decoding = "suffix-decoding"
    forced_tokens = "forced-tokens"


DRAFTER_HELP = "Who guesses ahead. The text stays the same, it only comes sooner."
DraftModel = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Guess ahead with this smaller model instead.",
        autocompletion=complete_model,
    ),
]
NumDraftTokens = Annotated[
    int | None,
    typer.Option(
        help="Most tokens to guess at once.",
        show_default=default_of(specrs.PromptLookup, "num_draft_tokens")
        + "; of a draft model "
        + default_of(specrs.DraftModel, "num_draft_tokens"),
    ),
]


def sampling_of(seed: str | None, logit_bias: list[str] | None, **settings: Any) -> specrs.Sampling:
    """Return the settings the user gave."""
    values = given(**settings, logit_bias=biases_of(logit_bias))
    if seed is not None:
        values["seed"] = seed_of(seed)
    return specrs.Sampling(**values)


def check_drafter(drafter: DrafterName | None, draft_model: str | None, **needing: Any) -> None:
    """Raise ValueError for options of drafting that do not fit together.

    Args:
        drafter: --drafter.
        draft_model: --draft-model.
        **needing: Other options, which need one of the two; None where they were not given.
    """
    drafts = drafter not in (None, DrafterName.none)
    if drafts and draft_model:
        raise ValueError("--drafter and --draft-model exclude each other")
    for name in given(**needing):
        counted = name == "num_draft_tokens" and drafter is DrafterName.forced_tokens
        if counted or not (drafts or draft_model):
            raise ValueError(f"--{name.replace('_', '-')} needs --drafter or --draft-model")


def drafter_of(
    drafter: DrafterName | None,
    draft_model: str | None,
    *,
    of_lookup: Mapping[str, Any],
    of_model: Mapping[str, Any],
    of_either: Mapping[str, Any],
    computing: Mapping[str, Any],
) -> specrs.Drafter | None:
    """Return who guesses, and load the draft model.

    Args:
        drafter: --drafter.
        draft_model: --draft-model.
        of_lookup: Arguments of `PromptLookup`.
        of_model: Arguments of `DraftModel`.
        of_either: Arguments of all of them.
        computing: Arguments with which the draft model is loaded.
    """
    if draft_model:
        small = specrs.Llama(specrs.pull(draft_model), **computing)
        return specrs.DraftModel(small, **of_model, **of_either)
    if drafter is DrafterName.prompt_lookup:
        return specrs.PromptLookup(**of_lookup, **of_either)
    if drafter is DrafterName.suffix_decoding:
        return specrs.SuffixDecoding(**of_either)
    if drafter is DrafterName.forced_tokens:
        return specrs.ForcedTokens()
    return None
