"""A loaded model and everything it can do for its user."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from ._specrs import Model, Session, Tokenizer
from .arguments import (
    check_kind,
    checked_bool,
    checked_int,
    checked_path,
    checked_positive,
    checked_stop,
    checked_text,
    checked_token_ids,
    checked_tokens,
)
from .attention.choice import Attention
from .attention.choice import check as check_attention
from .chat.template import Message
from .chat.tokens import ChatTokens
from .completion import Completion, Stream
from .decoding.loop import Generation, room
from .decoding.stats import Stats
from .decoding.trace import Trace
from .keywords import check_known
from .models import pull
from .options import (
    LOADING,
    PLACES,
    ChatOptions,
    OptionsOfChat,
    OptionsOfText,
    check_options,
    checked_length,
    prompt_ids,
)
from .sampling import Sampling
from .scoring.methods import ScoredTexts
from .serving.texts import ManyTexts
from .speculation.adaptive import AdaptiveLength
from .speculation.costs import MeasuredCost
from .speculation.drafters import Drafter
from .speculation.length import LengthPolicy
from .text import TextWriter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Unpack

    from ._specrs import Lease
    from .chat.format import ChatFormat
    from .structured.compiler import Compiler
    from .structured.grammar import Grammar

    # Session, token ids, and after how many of the last something is wanted.
    Input = tuple[Session | Lease, Sequence[int] | npt.NDArray[np.integer[Any]], int]


class Llama(ScoredTexts, ManyTexts):
    """A model from a GGUF file; one object serves any number of threads.

    `with Llama(...) as llm:` closes it at the end, and so gives its memory back.

    Args:
        path: The file, of a split one any part; or a name that `specrs.pull` knows, which is
            downloaded the first time.
        n_ctx: Positions of a session; None is what the file says.
        threads: CPU threads; None is the physical cores this process may use. With the devices of
            candle it decides, and the attribute `threads` says nothing.
        device: "cpu", "candle-cpu", "metal" or "cuda".

    Raises OSError if the file cannot be read or fetched, GgufError if it is malformed or not
    supported, MemoryError if there is no room for the weights, and ValueError for an unknown name
    or an argument out of range.

    >>> llm = Llama("smollm2-135m")
    >>> llm.generate("The capital of France is", max_tokens=8).text
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
        **unknown: NoReturn,
    ) -> None:
        check_known("Llama", unknown, LOADING, PLACES)
        self.path: Path = checked_path("path", path)
        for name, value in (("threads", threads), ("n_ctx", n_ctx)):
            if value is not None:
                checked_positive(name, value)
        if not self.path.exists():
            self.path = pull(path)
        self._loaded: Model | None = Model(self.path, n_ctx=n_ctx, threads=threads, device=device)
        self.tokenizer: Tokenizer = self._model.tokenizer
        self.n_ctx = self._model.n_ctx
        self.n_vocab = self._model.n_vocab
        self.threads = self._model.threads
        self.device = self._model.device
        self.kernels = self._model.kernels
        self.weight_bytes = self._model.weight_bytes
        self.cache_bytes_per_token = self._model.cache_bytes_per_token
        self.windows = self._model.windows
        self._cost = MeasuredCost()  # of forwards, learned by all generations together

    @property
    def _model(self) -> Model:
        if self._loaded is None:
            raise RuntimeError(f"{self!r} is closed; load it again")
        return self._loaded

    def close(self) -> None:
        """Give back the memory of the weights, once no session, stream or batch uses them any more.

        What runs goes on; whatever else is wanted of the model is a RuntimeError.
        """
        self._loaded = None

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def passes(self) -> tuple[int, int]:
        """Passes over the weights so far, and how many ran on fewer threads, as cores were held."""
        return self._model.passes

    @property
    def expert_rows(self) -> npt.NDArray[np.uint64] | None:
        """How many rows went to each expert so far, [layers, experts]; None without experts."""
        return self._model.expert_rows

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Everything the file says about itself, by its keys."""
        return self._model.metadata

    @cached_property
    def _chat_format(self) -> ChatFormat:
        from .chat.format import ChatFormat

        return ChatFormat(self.tokenizer)

    @cached_property
    def _compiler(self) -> Compiler:
        from .structured.compiler import Compiler

        return Compiler(self.tokenizer, self.n_vocab)

    def tokenize(
        self, text: str, add_bos: bool | None = None, parse_special: bool = False
    ) -> list[int]:
        """Return the ids of `text`.

        Args:
            text: Any text.
            add_bos: Whether a beginning-of-sequence token stands first; None is as the file says.
            parse_special: Whether the spelling of a control token becomes that token. Never for
                text that comes from users.
        """
        text = checked_text("text", text)
        return self.tokenizer.encode(text, add_bos=add_bos, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `tokens`, control tokens left out unless they are asked for."""
        skip = checked_bool("skip_special_tokens", skip_special_tokens)
        return self.tokenizer.decode(tokens, skip_special_tokens=skip)

    def session(self) -> Session:
        """Return a new, empty session."""
        return self._model.session()

    def load_session(self, path: str | os.PathLike[str]) -> Session:
        """Read what `Session.save` wrote; ValueError if damaged or of another model."""
        return self._model.load_session(path)

    @overload
    def forward_many(
        self, inputs: Iterable[Input], *, choose: Literal[False] = False
    ) -> list[npt.NDArray[np.float32]]: ...

    @overload
    def forward_many(
        self, inputs: Iterable[Input], *, choose: Literal[True]
    ) -> list[list[int | None]]: ...

    @overload
    def forward_many(
        self, inputs: Iterable[Input], *, choose: bool | Sequence[bool]
    ) -> list[npt.NDArray[np.float32] | list[int | None]]: ...

    def forward_many(
        self, inputs: Iterable[Input], *, choose: bool | Sequence[bool] = False
    ) -> Sequence[npt.NDArray[np.float32] | list[int | None]]:
        """Append tokens to several sessions, which share each pass over the weights.

        Several sessions cost little more than one. On device "cpu" every row has the bits that it
        has in a call of its own; candle takes one session after the other. A call that fails leaves
        all sessions as they were.

        Args:
            inputs: `(session, tokens, positions)` of each: after how many of the last tokens
                something is wanted, which may be 0. The sessions are different ones, of this model.
            choose: Whether the most likely tokens are wanted, or logits; for all inputs, or one
                value for each.

        Returns, in the order of the inputs, float32 [positions, n_vocab] or a list of ids (None
        where no logit is above -inf). Raises what `Session.forward_last` does, naming the input.
        """
        return self._model.forward_many(inputs, choose=choose)

    def generate(self, prompt: str | Sequence[int], **options: Unpack[OptionsOfText]) -> Completion:
        """Generate and return everything at once; arguments and errors as for `stream`."""
        check_options("generate", options, OptionsOfText)
        return self.stream(prompt, **options).collect()

    def chat(self, messages: Sequence[Message], **options: Unpack[OptionsOfChat]) -> Completion:
        """Reply to a conversation and return everything at once; arguments as for `stream_chat`."""
        check_options("chat", options, OptionsOfChat)
        return self.stream_chat(messages, **options).collect()

    def stream_chat(self, messages: Sequence[Message], **options: Unpack[OptionsOfChat]) -> Stream:
        """Reply to a conversation, formatted by the chat template of the file.

        Args:
            messages: As for `chat_tokens`.
            **options: As for `chat_tokens` and for `stream`.

        Raises what `chat_tokens` and `stream` do.
        """
        check_options("stream_chat", options, OptionsOfChat)
        given: Any = dict(options)
        prompt = {name: given.pop(name) for name in ChatOptions.__annotations__ if name in given}
        return self.stream(self.chat_tokens(messages, **prompt), **given)

    def chat_tokens(
        self, messages: Sequence[Message], **options: Unpack[ChatOptions]
    ) -> ChatTokens:
        """Return the prompt that the chat template of the file makes of a conversation.

        Args:
            messages: Dicts with "role" and "content", which is text or a list of parts such as
                `{"type": "text", "text": "..."}`; the latest last. Replies may have "tool_calls",
                their arguments as JSON text or as a dict. What they spell stays text: it never
                becomes a mark that begins or ends a turn.
            **options: `tools`, descriptions of what the model may call; `tool_choice`, whether it
                may ("auto"), must not ("none"), must ("required"), or which one it must, as
                `{"type": "function", "function": {"name": "..."}}`; `parallel_tool_calls=False` to
                allow one call only; `template_variables`, a dict of what else the template reads;
                `continue_final_message=True` to go on with the last message, a begun reply; and
                `add_generation_prompt=False` to begin none.

        Raises TypeError or ValueError for malformed arguments and for those that the template does
        not read; TemplateError, a ValueError, for what the template refuses, and if it takes more
        than 2 s or 256 MiB.
        """
        check_options("chat_tokens", options, ChatOptions)
        return self._chat_format.encode(messages, **options)

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = 128,
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        drafter: Drafter | None = None,
        draft_length: LengthPolicy | None = None,
        stop: str | Sequence[str] = (),
        stop_token_ids: Collection[int] = (),
        ignore_eos: bool = False,
        skip_special_tokens: bool = True,
        logprobs: int | None = None,
        grammar: Grammar | None = None,
        session: Session | None = None,
        attention: Attention = "dense",
        progress: Callable[[int, int], object] | None = None,
        trace: bool = False,
        parse_special: bool = False,
        **unknown: NoReturn,
    ) -> Stream:
        """Generate after `prompt`, chunk by chunk. All arguments are checked before any work.

        Args:
            prompt: Text, or token ids in any iterable that has an order.
            max_tokens: Most tokens to generate; None goes on until the context is full.
            sampling: How each token is chosen; greedily by default.
            drafter: Who guesses ahead, such as `PromptLookup()`; None decodes plainly. The result
                is the same, only the speed differs; but on the candle devices rows of logits are
                not equal to the bit, and text can differ where two tokens are nearly as likely.
            draft_length: How far to guess; None is `AdaptiveLength()`: as far as it pays.
            stop: Text or texts before which the result ends; one that names a control token, such
                as "<|im_end|>", stands for that token.
            stop_token_ids: Ids that end it as the model's own end tokens do.
            ignore_eos: Go on after the model's own end tokens.
            skip_special_tokens: Leave control tokens out of the text. If False, that of a chat is
                all that the model wrote, its reasoning and calls of tools as well.
            logprobs: Tell with every token its log-probability and those of this many most likely
                tokens; 0 tells only its own. None tells nothing.
            grammar: What the text must be, such as `Grammar.json()`; `logprobs` are those without.
            session: Continue here: what it shares with the prompt, as exact as it is wanted, is not
                evaluated again, and it holds prompt and result afterwards, without the last token.
                From the first chunk to the last it is leased: whoever else wants to change it, or
                to generate on it, gets a RuntimeError. None is a new one.
            attention: What the prompt looks at: "dense" for everything, a pattern of
                `specrs.attention`, or "auto" for one of them chosen for long prompts. What a
                pattern changes depends on the text: `specrs.attention.compare` measures it.
                Generated tokens always look at everything.
            progress: Called as `progress(done, total)` after each piece of a prompt; may raise.
            trace: Keep the steps for `Completion.trace`, which `replay` and a file can take.
            parse_special: Whether control tokens that a text prompt spells become these tokens.
                Never for text that comes from users.
            **unknown: Nothing else; the error says what it is called here.

        Raises TypeError, ValueError, NotImplementedError, or ContextOverflow for a prompt that
        leaves no room in the context. While it runs: what goes wrong in the drafter, by its name.
        """
        check_options("stream", unknown, OptionsOfText)
        parse_special = checked_bool("parse_special", parse_special)
        ids = prompt_ids(self, prompt, self._model.n_ctx_train, parse_special)
        if max_tokens is not None:
            max_tokens = checked_int("max_tokens", max_tokens, "an int or None")
        nothing_to_do = room(len(ids), self.n_ctx, max_tokens, self._model.n_ctx_train) == 0
        stops = checked_stop(stop)
        check_kind("sampling", sampling, Sampling)
        sampling.check_vocabulary(self.n_vocab)
        sampling = sampling.seeded()
        if logprobs is not None:
            logprobs = checked_tokens("logprobs", logprobs, self.n_vocab, "an int or None")
        pattern = check_attention(attention)
        self._model.check_attention(pattern)
        if progress is not None and not callable(progress):
            raise TypeError(f"progress must be callable as progress(done, total), not {progress!r}")
        length = checked_length(drafter, draft_length, self)
        length = AdaptiveLength(self._cost) if length is None else length
        session = self._checked_session(session)
        if isinstance(stop_token_ids, Set):
            stop_token_ids = sorted(stop_token_ids)
        end_ids = set(checked_token_ids("stop_token_ids", stop_token_ids, self.n_vocab))
        end_ids.update(id_ for id_ in map(self.tokenizer.control_id, stops) if id_ is not None)
        chat = prompt if isinstance(prompt, ChatTokens) else None
        if not checked_bool("ignore_eos", ignore_eos):
            end_ids.update(self.tokenizer.end_ids, () if chat is None else chat.end_ids)
        if chat is not None:
            grammar = chat.grammar_with(grammar)
        decoder = self.tokenizer.stream(
            # Only a new reply of a chat begins a text; to a grammar every space counts.
            continuing=bool(grammar) or chat is None or chat.continued,
            skip_special_tokens=checked_bool("skip_special_tokens", skip_special_tokens),
        )
        make_writer = TextWriter if chat is None or not skip_special_tokens else chat.writer
        writer = make_writer(decoder, stops, end_ids)
        generation = Generation(
            prompt=ids,
            n_ctx=self.n_ctx,
            n_vocab=self.n_vocab,
            max_tokens=max_tokens,
            sampling=sampling,
            drafter=drafter,
            length=length,
            ends=writer.ends,
            attention=pattern,
            progress=progress,
            logprobs=logprobs,
            grammar=None if grammar is None else self._compiler.compile(grammar, end_ids),
        )
        return Stream(
            session,
            generation,
            writer,
            stats=Stats(len(ids), seed=sampling.seed if sampling.temperature > 0 else None),
            trace=Trace(ids) if checked_bool("trace", trace) else None,
            finish_reason="length" if nothing_to_do else None,
        )

    def _checked_session(self, session: Session | None) -> Session:
        if session is None:
            return self.session()
        check_kind("session", session, Session)
        try:
            self.session().restore(session.snapshot())
        except ValueError:
            raise ValueError(
                f"session belongs to another model; make one with the session() of {self!r}"
            ) from None
        return session

    def __repr__(self) -> str:
        return (
            f"Llama({str(self.path)!r}, n_ctx={self.n_ctx}, threads={self.threads}, "
            f"device={self.device!r})"
        )
