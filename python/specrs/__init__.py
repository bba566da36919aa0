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
from .draft_model import DraftModel as DraftModel
from .drafters import Drafter as Drafter
from .drafters import PromptLookup as PromptLookup
from .length import FixedLength as FixedLength
from .llama import Completion as Completion
from .llama import Llama as Llama
from .llama import Stream as Stream
from .models import pull as pull
from .sampling import Sampling as Sampling
from .sampling import TokenLogprob as TokenLogprob
from .stats import Stats as Stats

__version__: str

if not TYPE_CHECKING:  # type checkers would believe that it knows every name

    def __getattr__(name: str) -> str:
        # Reading the installed version takes about as long as all the imports above.
        if name == "__version__":
            from importlib.metadata import version

            return version("specrs")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
