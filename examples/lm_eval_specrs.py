"""Models on specrs in EleutherAI's lm-evaluation-harness.

    pip install "lm-eval>=0.4.9" specrs
    python examples/lm_eval_specrs.py --model specrs --model_args model=smollm2-135m --tasks piqa

All arguments are those of the harness's own command; `--model_args` has `model`, a path or a name
that `specrs.pull` knows, and may have `n_ctx`, `threads`, `device` and `max_gen_toks`. Choices are
scored with `Llama.score_many`, which evaluates what prompts begin with (few-shot examples, the
question of several choices) once; texts are generated with `Llama.generate_many`. Ids are those
that the harness's backend for transformers makes: without BOS, control tokens as they are spelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

import specrs

Pair = tuple[list[int], list[int]]
"""Ids of a context and of what continues it."""


@register_model("specrs")
class SpecrsLM(LM):
    """A GGUF model that the harness asks for log-likelihoods and texts.

    Args:
        model: A path or name, as `specrs.Llama` takes it.
        n_ctx: Positions of the context; None is what the file says.
        threads: CPU threads; None is one for each core.
        device: As of `specrs.Llama`.
        max_gen_toks: Longest text where a task does not say.
    """

    def __init__(
        self,
        model: str,
        n_ctx: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
        max_gen_toks: int = 256,
        **_: Any,  # batch_size and others, which the harness gives to every backend
    ) -> None:
        super().__init__()
        self.llm = specrs.Llama(model, n_ctx=n_ctx, threads=threads, device=device or "cpu")
        self.max_gen_toks = int(max_gen_toks)

    @property
    def tokenizer_name(self) -> str:
        """What the harness names its caches after."""
        return self.llm.path.name

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context."""
        tokenizer = self.llm.tokenizer
        found = tokenizer.eos if tokenizer.bos is None else tokenizer.bos
        if found is None:
            raise ValueError(f"{self.llm.path}: the vocabulary has neither BOS nor EOS")
        return found

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text that the harness wrote."""
        return self.llm.tokenize(text, add_bos=False, parse_special=True)

    def encode_pair(self, context: str, continuation: str) -> Pair:
        """Return the ids of both, tokenised as one text; space between them is the second's."""
        if not context:
            return [self.prefix_token_id], self.encode(continuation)
        stem = context.rstrip()
        ids = self.encode(stem)
        return ids, self.encode(context + continuation)[len(ids) :]

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return the log-likelihood of every continuation, and whether it is the greedy one."""
        del disable_tqdm
        pairs = [self.encode_pair(*request.args) for request in requests]
        answers = [(score.total, score.is_greedy) for score in self.score(pairs)]
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return answers

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-likelihood of every text, in windows if it is longer than the context."""
        del disable_tqdm
        windows: list[Pair] = []
        counts = []
        for request in requests:
            found = get_rolling_token_windows(
                self.encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.llm.n_ctx,
                context_len=1,
            )
            pairs = [(list(a), list(b)) for a, b in map(make_disjoint_window, found)]
            windows += pairs
            counts.append(len(pairs))
        scores = iter(self.score(windows))
        answers = [sum(next(scores).total for _ in range(count)) for count in counts]
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return answers

    def score(self, pairs: Iterable[Pair]) -> list[specrs.Score]:
        """Score continuations; of contexts that are too long the end counts."""
        contexts, continuations = [], []
        for context, continuation in pairs:
            room = self.llm.n_ctx + 1 - len(continuation)
            contexts.append(context[max(len(context) - room, 0) :] if room > 0 else [])
            continuations.append(continuation)
        return self.llm.score_many(contexts, continuations)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return what the model writes after every context, up to the first stop."""
        del disable_tqdm
        alike: dict[str, list[int]] = defaultdict(list)
        for i, request in enumerate(requests):
            alike[repr(request.args[1])].append(i)
        answers = [""] * len(requests)
        for places in alike.values():
            settings = dict(requests[places[0]].args[1])
            texts = self.generate([requests[i].args[0] for i in places], settings)
            for i, text in zip(places, texts, strict=True):
                answers[i] = text
                self.cache_hook.add_partial("generate_until", requests[i].args, text)
        return answers

    def generate(self, contexts: Sequence[str], settings: dict[str, Any]) -> list[str]:
        """Generate after contexts, all with the same settings; of a long one the end counts."""
        until = settings.pop("until", None) or []
        max_tokens = int(settings.pop("max_gen_toks", self.max_gen_toks))
        draws = settings.pop("do_sample", None)
        if draws is False:  # as in transformers, the settings of the draw do not count then
            settings = {}
        unknown = set(settings) - {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"}
        if unknown:
            raise ValueError(f"a task asks for {', '.join(sorted(unknown))}, which specrs has not")
        if draws:
            settings.setdefault("temperature", 1.0)
        room = self.llm.n_ctx - max_tokens
        if room < 1:
            raise ValueError(
                f"max_gen_toks is {max_tokens}, and the context has {self.llm.n_ctx} positions"
            )
        prompts = [self.encode(context)[-room:] or [self.prefix_token_id] for context in contexts]
        results = self.llm.generate_many(
            prompts,
            max_tokens=max_tokens,
            stop=[until] if isinstance(until, str) else list(until),
            sampling=specrs.Sampling(**settings),
        )
        return [result.text for result in results]

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return a conversation as text, which `encode` turns into the ids of the chat template."""
        ids = self.llm.chat_tokens(
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return self.llm.detokenize(ids, skip_special_tokens=False)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the template that is used, for the harness's records."""
        return (self.llm.tokenizer.chat_template or "") if chat_template else ""


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
