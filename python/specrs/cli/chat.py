"""The command `chat`: a conversation in the terminal, or over pipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

import specrs

from ..text import Chunk
from .conversation import Conversation
from .decoding import (
    DRAFTER_HELP,
    DrafterName,
    DraftModel,
    MinP,
    NumDraftTokens,
    RepetitionPenalty,
    Seed,
    Temperature,
    TopK,
    TopP,
    check_drafter,
    drafter_of,
    sampling_of,
)
from .display import parted, printable, progress_bar, summary
from .options import (
    Device,
    Model,
    NCtx,
    System,
    TemplateVariable,
    Threads,
    check_max_tokens,
    given,
    not_utf8,
    variables_of,
)

HELP = r"""/system [TEXT]  show or change the system message
/regenerate     draw another reply to the last message
/clear          forget all messages but the system message
/stats          speed of the last reply, and how full the context is
/save FILE      write the conversation, a line of JSON for each message
/load FILE      go on with a conversation that was saved
/exit           end, as Ctrl-D does
A line that ends with \ goes on in the next one. A message that begins with / begins with //.
Ctrl-C stops a reply; what is there of it stays."""


def chat(
    model: Model,
    system: System = None,
    max_tokens: Annotated[int, typer.Option(help="Longest reply in tokens.")] = 1024,
    template_variable: TemplateVariable = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    repetition_penalty: RepetitionPenalty = None,
    drafter: Annotated[
        DrafterName | None, typer.Option(help=DRAFTER_HELP, show_default="prompt-lookup")
    ] = None,
    draft_model: DraftModel = None,
    num_draft_tokens: NumDraftTokens = None,
    n_ctx: NCtx = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Talk with a model: in the terminal, or with one message a line on standard input."""
    sampling = sampling_of(
        seed,
        None,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    check_max_tokens(max_tokens)
    if drafter is None and not draft_model:
        drafter = DrafterName.prompt_lookup
    either = given(num_draft_tokens=num_draft_tokens)
    check_drafter(drafter, draft_model, **either)
    if drafter is DrafterName.forced_tokens:
        raise ValueError("--drafter forced-tokens is for replies of a grammar; a chat has none")
    variables = variables_of(template_variable)
    if sys.stdin is None:
        raise ValueError("standard input is closed; there is nobody to talk with")
    computing = given(threads=threads, device=device)
    path = specrs.pull(model)
    chosen = drafter_of(
        drafter, draft_model, of_lookup={}, of_model={}, of_either=either, computing=computing
    )
    llm = specrs.Llama(path, **given(n_ctx=n_ctx), **computing)
    conversation = Conversation(
        llm,
        system=system,
        sampling=sampling,
        max_tokens=max_tokens,
        variables=variables,
        options={"drafter": chosen},
    )
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    talk = Talk(llm, conversation, Terminal() if interactive else Pipe())
    if interactive:
        _note(f"{llm.path.stem}, {llm.kernels}, {llm.threads} threads; /help lists the commands")
    if not talk.run():
        raise typer.Exit(1)


class Terminal:
    """Somebody who reads and types; Ctrl-C stops a reply."""

    def __init__(self) -> None:
        # https://no-color.org
        self._colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        with suppress(ImportError):  # not everywhere; without it there are no keys to edit with
            import readline  # noqa: F401 - input() uses it

    def messages(self) -> Iterator[str]:
        """Give what is typed, until Ctrl-D."""
        lines: list[str] = []
        while True:
            try:
                line = input("  " if lines else "> ")
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                _note("Ctrl-D or /exit ends")
                lines.clear()
                continue
            if line.endswith("\\"):
                lines.append(line[:-1])
                continue
            yield "\n".join([*lines, line])
            lines.clear()

    def show(self, chunk: Chunk) -> None:
        """Write a piece of a reply: accepted draft tokens in green, thoughts dimly."""
        # A model may say anything, and the terminal is not to obey it.
        thought, text = (printable(t, keep="\n\t") for t in (chunk.reasoning, chunk.text))
        if thought and self._colours:
            thought = f"\x1b[2m{thought}\x1b[0m"
        if text and chunk.from_draft and self._colours:
            text = f"\x1b[32m{text}\x1b[0m"
        print(thought + text, end="", flush=True)

    def stoppable(self) -> AbstractContextManager[None]:
        """Let Ctrl-C stop the reply and nothing else."""
        return suppress(KeyboardInterrupt)


class Pipe:
    """A program, or a file: one message a line, and nothing but replies on standard output."""

    def messages(self) -> Iterator[str]:
        """Give every line."""
        try:
            for line in sys.stdin:
                text = line.removesuffix("\n")
                text.encode()  # some locales let any byte pass, as a surrogate
                yield text
        except UnicodeError as error:
            raise not_utf8(error) from None

    def show(self, chunk: Chunk) -> None:
        """Write a piece of a reply; thoughts are none of it."""
        print(chunk.reasoning, end="", file=sys.stderr, flush=True)
        print(chunk.text, end="", flush=True)

    def stoppable(self) -> AbstractContextManager[None]:
        """Let Ctrl-C end everything."""
        return nullcontext()


class Talk:
    """Messages and commands, one after the other."""

    def __init__(
        self, llm: specrs.Llama, conversation: Conversation, user: Terminal | Pipe
    ) -> None:
        self._llm = llm
        self._conversation = conversation
        self._user = user
        self._stats: specrs.Stats | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: _note(HELP),
            "system": self._system,
            "regenerate": self._regenerate,
            "clear": lambda _: conversation.clear(),
            "stats": self._show_stats,
            "save": lambda text: conversation.save(_file(text)),
            "load": lambda text: conversation.load(_file(text)),
        }

    def run(self) -> bool:
        """Talk until the user ends; return whether everything worked."""
        worked = True
        for message in self._user.messages():
            if message.strip() == "/exit":
                break
            try:
                self._take(message)
            except (OSError, ValueError) as error:
                _note(str(error))
                worked = False
        return worked

    def _take(self, message: str) -> None:
        """Obey a command, or reply to a message."""
        if not message.strip():
            return
        if not message.startswith("/") or message.startswith("//"):
            self._conversation.ask(message[1:] if message.startswith("/") else message)
            self._reply()
            return
        name, _, rest = message[1:].partition(" ")
        command = self._commands.get(name)
        if command is None:
            raise ValueError(f"there is no command /{name}; /help lists them")
        command(rest.strip())

    def _reply(self) -> None:
        """Write the reply to the last message."""
        conversation, texts = self._conversation, []
        stream: specrs.Stream | None = None
        try:
            with self._user.stoppable(), progress_bar("prompt") as progress:
                if dropped := conversation.fit():
                    turns = "turn is" if dropped == 1 else f"{dropped} turns are"
                    _note(f"the context is full: the oldest {turns} forgotten")
                stream = conversation.reply(progress=progress)
                for chunk in parted(stream):
                    texts.append(chunk.text)
                    self._user.show(chunk)
        except BaseException:
            conversation.take_back()
            raise
        print(flush=True)
        if stream is None or (stream.finish_reason is None and not any(texts)):
            conversation.take_back()
            _note("stopped; the message is forgotten")
            return
        stream.close()
        conversation.take(stream, "".join(texts))
        self._stats = stream.stats
        if stream.finish_reason is None:
            _note("stopped")
        elif stream.finish_reason == "length":
            full = conversation.context_tokens >= self._llm.n_ctx
            _note("the context is full" if full else "the reply was cut at --max-tokens")

    def _system(self, text: str) -> None:
        if text:
            self._conversation.set_system(text)
        else:
            _note(self._conversation.system or "there is no system message")

    def _regenerate(self, _: str) -> None:
        self._conversation.ask_again()
        self._reply()

    def _show_stats(self, _: str) -> None:
        used, size = self._conversation.context_tokens, self._llm.n_ctx
        if self._stats is not None:
            _note(summary(self._stats))
        _note(f"{used:,} of {size:,} tokens of context used")


def _file(text: str) -> Path:
    if not text:
        raise ValueError("give the name of a file")
    return Path(text).expanduser()


def _note(text: str) -> None:
    """Say something that is no part of the conversation."""
    for line in text.split("\n"):
        print(f"specrs: {printable(line)}", file=sys.stderr, flush=True)
