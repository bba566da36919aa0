"""A conversation with a model: its messages, its replies, and room for the next one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..completion import Stream
from ..files import json_lines, replace_file
from ..llama import Llama
from ..sampling import Sampling

ROLES = ("system", "user", "assistant")


class Conversation:
    """Messages and the session that holds them, so that each turn evaluates only what is new.

    Args:
        llm: Who replies.
        system: The system message; None for none.
        sampling: How replies are chosen.
        max_tokens: Longest reply.
        variables: Of the chat template.
        options: Others of `Llama.stream`.

    Attributes:
        messages: Dicts with "role" and "content".
        context_tokens: Length of the last prompt and its reply.
    """

    def __init__(
        self,
        llm: Llama,
        *,
        system: str | None,
        sampling: Sampling,
        max_tokens: int,
        variables: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.messages: list[dict[str, str]] = []
        self.context_tokens = 0
        self._llm = llm
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._variables = variables
        self._options = options
        self._session = llm.session()
        self._tries = 0  # replies to the last message before
        self.set_system(system)

    @property
    def system(self) -> str | None:
        """The system message."""
        first = self.messages[:1]
        return first[0]["content"] if first and first[0]["role"] == "system" else None

    def set_system(self, text: str | None) -> None:
        """Change the system message; ValueError if the template takes none."""
        rest = self.messages if self.system is None else self.messages[1:]
        system = [{"role": "system", "content": text}] if text else []
        self._tokens([*system, {"role": "user", "content": "Hello"}])
        self.messages = system + rest

    def clear(self) -> None:
        """Forget everything but the system message."""
        del self.messages[self.system is not None :]

    def ask(self, text: str) -> None:
        """Add a message of the user."""
        self.messages.append({"role": "user", "content": text})
        self._tries = 0

    def ask_again(self) -> None:
        """Take back the last reply, to draw another one; ValueError if there is none."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise ValueError("there is no reply yet")
        self.messages.pop()
        self._tries += 1

    def fit(self) -> int:
        """Drop the oldest turns where the context has no room for a reply; return how many.

        Then a quarter of the context is made free, so that not every turn from now on has to
        evaluate all that is left. The system message and the last turn stay.
        """
        n_ctx = self._llm.n_ctx
        free = n_ctx - len(self._tokens(self.messages))
        dropped = 0
        if free < min(self._max_tokens, n_ctx // 4):
            while free < n_ctx // 4 and self._drop_turn():
                free = n_ctx - len(self._tokens(self.messages))
                dropped += 1
        return dropped

    def reply(self, **options: Any) -> Stream:
        """Begin the reply to the last message."""
        sampling = self._sampling
        if sampling.temperature and sampling.seed is not None:
            sampling = replace(sampling, seed=(sampling.seed + self._tries) % 2**64)
        return self._llm.stream(
            self._tokens(self.messages),
            max_tokens=self._max_tokens,
            sampling=sampling,
            session=self._session,
            **self._options,
            **options,
        )

    def take(self, stream: Stream, text: str) -> None:
        """Keep a reply, or as much of it as there is."""
        self.context_tokens = stream.stats.prompt_tokens + stream.stats.tokens_generated
        self.messages.append({"role": "assistant", "content": text})

    def take_back(self) -> None:
        """Forget the last message, to which there is no reply."""
        self.messages.pop()

    def save(self, path: Path) -> None:
        """Write the messages, a line of JSON for each."""
        lines = (json.dumps(message, ensure_ascii=False) + "\n" for message in self.messages)
        replace_file(path, (line.encode() for line in lines))

    def load(self, path: Path) -> None:
        """Go on with the messages of a file; ValueError if it is none of `save`."""
        messages = []
        for number, line in json_lines(path.read_bytes()):
            try:
                message = json.loads(line)
                role, content = message["role"], message["content"]
            except (ValueError, TypeError, KeyError):
                role = content = None
            if role not in ROLES or not isinstance(content, str):
                raise ValueError(
                    f'{path}, line {number}: must be an object with "role" ({", ".join(ROLES)}) '
                    f'and "content", a text'
                )
            messages.append({"role": role, "content": content})
        if messages and messages[-1]["role"] == "user":
            raise ValueError(f"{path} ends with a message of the user; a reply is missing")
        self._tokens([*messages, {"role": "user", "content": "Hello"}])
        self.messages = messages

    def _tokens(self, messages: list[dict[str, str]]) -> list[int]:
        return self._llm.chat_tokens(messages, template_variables=self._variables)

    def _drop_turn(self) -> bool:
        """Drop the oldest turn; False if it is the only one."""
        start = int(self.system is not None)
        starts = [i for i, m in enumerate(self.messages) if m["role"] == "user" and i > start]
        if not starts:
            return False
        del self.messages[start : starts[0]]
        return True
