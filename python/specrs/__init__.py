"""Quantised Llama models on ordinary CPUs, with lossless speculative decoding.

>>> import specrs
>>> llm = specrs.Llama("smollm2-135m")
>>> out = llm.generate("Once upon a time", drafter=specrs.PromptLookup())
>>> out.text, out.stats.tokens_per_second
"""

import sys
from typing import TYPE_CHECKING

from . import attention as attention
from ._specrs import ContextOverflow as ContextOverflow
from ._specrs import GgufError as GgufError
from ._specrs import Session as Session
from .chat.template import TemplateError as TemplateError
from .completion import Completion as Completion
from .completion import Stream as Stream
from .completion import ToolCall as ToolCall
from .decoding.replay import Replay as Replay
from .decoding.replay import replay as replay
from .decoding.stats import Stats as Stats
from .decoding.trace import Trace as Trace
from .llama import Llama as Llama
from .models import pull as pull
from .sampling import Sampling as Sampling
from .sampling import TokenLogprob as TokenLogprob
from .scoring.score import Score as Score
from .serving.batch import Batch as Batch
from .serving.batch import BatchStats as BatchStats
from .serving.many import BatchError as BatchError
from .serving.many import BatchInterrupted as BatchInterrupted
from .serving.request import Request as Request
from .speculation.adaptive import AdaptiveLength as AdaptiveLength
from .speculation.draft_model import DraftModel as DraftModel
from .speculation.drafters import Chain as Chain
from .speculation.drafters import Draft as Draft
from .speculation.drafters import Drafter as Drafter
from .speculation.drafters import PromptLookup as PromptLookup
from .speculation.length import FixedLength as FixedLength
from .speculation.length import LengthPolicy as LengthPolicy
from .speculation.suffix import SuffixCorpus as SuffixCorpus
from .speculation.suffix import SuffixDecoding as SuffixDecoding

__all__ = [
    "AdaptiveLength",
    "Batch",
    "BatchError",
    "BatchInterrupted",
    "BatchStats",
    "Chain",
    "Completion",
    "ContextOverflow",
    "Draft",
    "DraftModel",
    "Drafter",
    "FixedLength",
    "ForcedTokens",
    "GgufError",
    "Grammar",
    "LengthPolicy",
    "Llama",
    "PromptLookup",
    "Replay",
    "Request",
    "Sampling",
    "Score",
    "Session",
    "Stats",
    "Stream",
    "SuffixCorpus",
    "SuffixDecoding",
    "TemplateError",
    "TokenLogprob",
    "ToolCall",
    "Trace",
    "__version__",
    "attention",
    "pull",
    "replay",
]

__version__: str

if TYPE_CHECKING:
    from .speculation.forced import ForcedTokens as ForcedTokens
    from .structured.grammar import Grammar as Grammar
else:  # type checkers would believe that it knows every name

    class _Package(type(sys)):
        # A function __getattr__ would do the same, and stand in the middle of help(specrs).
        def __getattr__(self, name: str) -> object:
            if name == "Grammar":  # only some programs need it
                from .structured.grammar import Grammar

                return Grammar
            if name == "ForcedTokens":
                from .speculation.forced import ForcedTokens

                return ForcedTokens
            # Reading the installed version takes about as long as all the imports above.
            if name == "__version__":
                from importlib.metadata import version

                return version("specrs")
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

        def __dir__(self) -> list[str]:
            return sorted({*super().__dir__(), *__all__})

    sys.modules[__name__].__class__ = _Package
