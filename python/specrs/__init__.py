"""Quantised Llama models on ordinary CPUs, with lossless speculative decoding.

>>> import specrs
>>> llm = specrs.Llama(specrs.pull("smollm2-135m"))
>>> out = llm.generate("Once upon a time", drafter=specrs.PromptLookup())
>>> out.text, out.stats.tokens_per_second
"""

from typing import TYPE_CHECKING

from ._specrs import ContextOverflow as ContextOverflow
from ._specrs import GgufError as GgufError
from ._specrs import Session as Session
from .adaptive import AdaptiveLength as AdaptiveLength
from .draft_model import DraftModel as DraftModel
from .drafters import Chain as Chain
from .drafters import Draft as Draft
from .drafters import Drafter as Drafter
from .drafters import PromptLookup as PromptLookup
from .length import FixedLength as FixedLength
from .length import LengthPolicy as LengthPolicy
from .llama import Completion as Completion
from .llama import Llama as Llama
from .llama import Stream as Stream
from .models import pull as pull
from .replay import Replay as Replay
from .replay import replay as replay
from .sampling import Sampling as Sampling
from .sampling import TokenLogprob as TokenLogprob
from .stats import Stats as Stats
from .suffix_decoding import SuffixCorpus as SuffixCorpus
from .suffix_decoding import SuffixDecoding as SuffixDecoding
from .trace import Trace as Trace

__version__: str

if not TYPE_CHECKING:  # type checkers would believe that it knows every name

    def __getattr__(name: str) -> str:
        # Reading the installed version takes about as long as all the imports above.
        if name == "__version__":
            from importlib.metadata import version

            return version("specrs")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
