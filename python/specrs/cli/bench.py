"""Speculation measured against plain decoding: same prompts, same machine, taking turns."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..completion import Completion
from ..files import json_lines
from ..llama import Llama
from ..sampling import Sampling
from ..speculation.drafters import Drafter
from ..speculation.length import LengthPolicy

# A prompt of each kind of task, for when there is no file of them.
PROMPTS = {
    "rewriting": "Correct the spelling mistakes in this text and change nothing else: The old "
    "lighthouse stood on a rocky cliff above the see. Every evening the keeper climed the one "
    "hundred and twelve steps to light the great lamp. The sailors who past the cliff at night "
    "knew his light and trusted it.",
    "summarising": "Summarise in two sentences: The river had been rising since noon. By four "
    "o'clock the lower meadows were under water, and the farmers moved their sheep to the hill. "
    "Nobody in the village slept that night. In the morning the water stood at the church door, "
    "but it rose no further, and by the evening of the second day it had begun to fall.",
    "answering": "Why do the leaves of many trees turn red and yellow in autumn?",
    "calculating": "A baker makes 12 trays with 8 rolls each and sells three quarters of them. "
    "How many rolls are left? Explain every step.",
    "coding": "Write a Python class Stack with the methods push, pop, peek and is_empty, then "
    "write a class Queue with the methods enqueue, dequeue, peek and is_empty.",
    "telling": "Write a short story about a fox who wants to learn to swim.",
}


@dataclass
class Prompt:
    """What to continue."""

    task: str
    tokens: list[int]


@dataclass
class Contestant:
    """A way to draft: what `generate` is given."""

    drafter: Drafter
    draft_length: Callable[[], LengthPolicy] | None = None  # None is the default

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of a new generation."""
        length = None if self.draft_length is None else self.draft_length()
        return {"drafter": self.drafter, "draft_length": length}


@dataclass
class Figures:
    """What came of one contestant on the prompts of a task.

    Attributes:
        tokens: Tokens compared with those of plain decoding.
        different: Those that differ; anything but 0 is a fault.
        plain_seconds: Decoding these tokens plainly (medians of the rounds).
        seconds: Decoding them with the contestant.
        drafted: Tokens proposed and verified.
        accepted: Of these, tokens that were right.
        steps: Forwards.
        tried: By position: drafts that reached it with everything right before it.
        right: By position: drafts that were right at it too.
    """

    tokens: int = 0
    different: int = 0
    plain_seconds: float = 0.0
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    tried: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """How much faster than plain decoding."""
        return self.plain_seconds / self.seconds if self.seconds else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the verified tokens that were right."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def add(self, other: Figures) -> None:
        """Add the figures of other prompts."""
        for name in ("tokens", "different", "plain_seconds", "seconds", "drafted", "accepted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.steps += other.steps
        for ours, theirs in ((self.tried, other.tried), (self.right, other.right)):
            ours += [0] * (len(theirs) - len(ours))
            for i, count in enumerate(theirs):
                ours[i] += count

    def as_dict(self) -> dict[str, Any]:
        """Give every figure by its name, rates too."""
        return vars(self) | {"speedup": self.speedup, "acceptance_rate": self.acceptance_rate}


# By contestant and task; the task "all" is the sum.
Results = dict[str, dict[str, Figures]]


def read_prompts(
    llm: Llama, path: Path | None, limit: int | None, most: int = 1000
) -> list[Prompt]:
    """Read JSON lines with "task" and "prompt", as chats of at most `most` tokens.

    Args:
        llm: Whose tokens and chat template to use; without a template the text itself is taken.
        path: The file; None takes a few built-in prompts.
        limit: Most prompts, spread evenly over the tasks; None takes all.
        most: Longer prompts lose their middle.
    """
    if path is None:
        rows = [{"task": task, "prompt": text} for task, text in PROMPTS.items()]
    else:
        try:
            rows = [json.loads(line) for _, line in json_lines(path.read_bytes())]
            rows = [{"task": row["task"], "prompt": row["prompt"]} for row in rows]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f'{path} is no file of prompts, JSON lines with "task" and "prompt" ({error!r})'
            ) from None
    by_task: dict[str, list[str]] = {}
    for row in rows:
        by_task.setdefault(row["task"], []).append(row["prompt"])
    turns = max(map(len, by_task.values()), default=0)
    spread = [
        (task, texts[i]) for i in range(turns) for task, texts in by_task.items() if i < len(texts)
    ]
    prompts = []
    for task, text in spread[:limit]:
        if llm.tokenizer.chat_template:
            tokens = list(llm.chat_tokens([{"role": "user", "content": text}]))
        else:
            tokens = llm.tokenize(text)
        if len(tokens) > most:
            tokens = tokens[: most - most // 10] + tokens[-(most // 10) :]
        prompts.append(Prompt(task, tokens))
    return prompts


def compare(
    llm: Llama,
    contestants: Mapping[str, Contestant],
    prompts: Sequence[Prompt],
    *,
    max_tokens: int = 128,
    rounds: int = 3,
    sampling: Sampling | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Results:
    """Measure contestants against plain decoding; `progress` is told how many prompts are done.

    The prompt is evaluated once, by draft models too, and stays cached. In each round everyone
    decodes it, in turns that begin with another one each time, so that all meet the same machine;
    medians over the rounds count. Every text is compared with the plain one.
    """
    results: Results = {name: {} for name in contestants}
    options: dict[str, Any] = {"max_tokens": max_tokens}
    if sampling is not None:
        options["sampling"] = sampling
    for number, prompt in enumerate(prompts, 1):
        session = llm.session()
        options["session"] = session
        plain = llm.generate(prompt.tokens, **options)
        for contestant in contestants.values():
            for drafter in getattr(contestant.drafter, "members", [contestant.drafter]):
                drafter.propose(prompt.tokens, 1)
        names: list[str | None] = [None, *contestants]
        seconds: dict[str | None, list[float]] = {name: [] for name in names}
        figures: dict[str, Figures] = {name: Figures() for name in contestants}
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                chosen = {} if name is None else contestants[name].options()
                out = llm.generate(prompt.tokens, trace=True, **options, **chosen)
                # The prompt is cached, so the first step is one like the others.
                seconds[name].append(out.stats.prefill_seconds + out.stats.decode_seconds)
                if name is not None:
                    _count(figures[name], plain, out, first=turn == 0)
        for name, found in figures.items():
            found.plain_seconds = statistics.median(seconds[None])
            found.seconds = statistics.median(seconds[name])
            for task in (prompt.task, "all"):
                results[name].setdefault(task, Figures()).add(found)
        progress(number)
    return results


def _count(figures: Figures, plain: Completion, out: Completion, *, first: bool) -> None:
    """Count a generation: its differences always, its steps in the first round only."""
    pairs = zip(plain.tokens, out.tokens, strict=False)
    figures.different += sum(ours != theirs for ours, theirs in pairs)
    figures.different += abs(len(plain.tokens) - len(out.tokens))
    figures.tokens += len(plain.tokens)
    if not first:
        return
    figures.drafted = out.stats.num_draft_tokens
    figures.accepted = out.stats.num_accepted_tokens
    figures.steps = out.stats.forward_calls
    for step in out.trace or ():
        missing = step.drafted - len(figures.tried)
        figures.tried += [0] * missing
        figures.right += [0] * missing
        for i in range(min(step.drafted, step.accepted + 1)):
            figures.tried[i] += 1
            figures.right[i] += i < step.accepted


def table(results: Results) -> str:
    """Lay the speed-ups out in Markdown: a row for each contestant, a column for each task."""
    tasks = [task for task in next(iter(results.values()), {}) if task != "all"]
    lines = [
        f"| decode time, plain / drafted | all | {' | '.join(tasks)} | accepted | different |",
        "|---" * (len(tasks) + 4) + "|",
    ]
    for name, figures in results.items():
        whole = figures["all"]
        cells = [f"{figures[task].speedup:.2f}x" for task in ("all", *tasks)]
        cells += [f"{whole.acceptance_rate:.0%}", f"{whole.different} of {whole.tokens:,}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def record(results: Results) -> dict[str, Any]:
    """Give the results as JSON can hold them."""
    return {
        name: {task: figures.as_dict() for task, figures in tasks.items()}
        for name, tasks in results.items()
    }
