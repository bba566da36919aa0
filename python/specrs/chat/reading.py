"""Reading of a reply as it comes: what is reasoning, what is text, and what calls a tool."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..text import Piece, ToolCallDelta, overlap
from .cursor import SPACE, Cursor, NoCallError, Waiting
from .formats import NAME, CallFormat, Marks
from .parameters import typed


@dataclass(frozen=True, kw_only=True)
class ReplyRules:
    """What is looked for in a reply.

    Attributes:
        marks: Formats and marks of the model.
        tools: Schemas of the arguments by the names of the tools; empty where no call counts.
        thinking: Whether the prompt has the mark already that opens reasoning.
        continued: Whether the reply was begun in the prompt.
        parallel: Whether there may be several calls; else the reply ends after the first.
        certain: Whether a grammar keeps calls well-formed. Then arguments are given as they come;
            otherwise a call is given when it is whole, since until then it may prove to be text.
        call_id: Makes the id of a call from its index.
    """

    marks: Marks
    tools: Mapping[str, Any]
    thinking: bool = False
    continued: bool = False
    parallel: bool = True
    certain: bool = False
    call_id: Callable[[int], str]

    @property
    def tokens(self) -> dict[int, str]:
        """The characters that stand for marks which count, by their ids."""
        calls = self.marks.call_tokens if self.tools else {}
        return {**self.marks.reasoning_tokens, **calls}

    @property
    def trivial(self) -> bool:
        """Whether all of a reply is text."""
        return self.marks.reasoning is None and not (self.tools and self.marks.calls)


class ReplyReader(Cursor):
    """Tells reasoning, text and calls of a reply apart, however it is cut into pieces.

    White space beside a mark belongs to the mark. What turns out to be no call is text, with its
    marks spelled out; so is a mark where none is expected. Nothing else is changed or left out.

    Attributes:
        over: Whether the reply ends here: after the only call that it may have.
    """

    def __init__(self, rules: ReplyRules) -> None:
        super().__init__()
        self.over = False
        self._rules = rules
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCallDelta] = []  # given
        self._tried: list[ToolCallDelta] = []  # of what may still prove to be text
        self._count = 0  # of calls so far
        self._call = ToolCallDelta(0, "", "", "")
        self._from: int | None = None  # where arguments begin that are taken as they are written
        self._run = self._read()

    def feed(self, text: str) -> Piece:
        """Take the next text; return what became final."""
        self.text += text
        return self._step()

    def finish(self) -> Piece:
        """Return what was held back: no more text comes."""
        self.ended = True
        return self._step()

    def _step(self) -> Piece:
        next(self._run, None)
        if self._rules.certain:
            self._take_arguments()
            self._give_calls()
        piece = Piece("".join(self._text), "".join(self._reasoning), tuple(self._calls))
        self._text.clear()
        self._reasoning.clear()
        self._calls.clear()
        return piece

    def _read(self) -> Generator[None, None, None]:
        if self._rules.marks.reasoning is not None:
            yield from self._read_reasoning()
        form = self._rules.marks.calls
        if form is not None and self._rules.tools:
            yield from self._read_calls(form)
        while not self.over:
            self._give_text(len(self.text))
            if self.ended:
                return
            yield

    def _read_reasoning(self) -> Waiting[None]:
        form, written = self._rules.marks.reasoning, self._rules.marks.written
        assert form is not None
        if not self._rules.continued:
            yield from self.peek()
            opened = yield from self.take(written(form.open))
            if not opened and not self._rules.thinking:
                self.at = 0
                return
        elif not self._rules.thinking:
            return
        if not self._rules.continued:
            yield from self.peek()
            self.drop(self.at)
        yield from self._read_within(written(form.close), self._reasoning)
        if form.answer and (yield from self.take(written(form.answer[0]))):
            yield from self.peek()
            self.drop(self.at)
            yield from self._read_within(written(form.answer[1]), self._text)

    def _read_within(self, close: str, kind: list[str]) -> Waiting[None]:
        """Give all up to the mark `close`, or to the end, as of this kind; go past the mark."""
        while (end := self.text.find(close)) < 0:
            held = 0 if self.ended else overlap(self.text, (close,))
            within = self.text[: len(self.text) - held]
            within = within if self.ended else within.rstrip(SPACE)
            kind.append(self._spelled(self.drop(len(within))))
            if self.ended:
                return
            yield
        kind.append(self._spelled(self.drop(end).rstrip(SPACE)))
        self.at = len(close)
        yield from self.peek()
        self.drop(self.at)

    def _read_calls(self, form: CallFormat) -> Waiting[None]:
        begins = [self._rules.marks.written(mark) for mark in form.begins]
        bare = form.bare and not self._rules.continued
        while not self.over:
            find = self._skip_begin if bare else self._find_begin
            begin = yield from find(begins)
            if begin is None:
                return
            count = self._count
            try:
                yield from self._read_call(form, begin)
            except NoCallError:
                # With a mark before it, it is text up to there; the rest may have another.
                self._give_back(len(begin) if begin else 0, count)
                bare = False
                continue
            self._give_calls()
            yield from self.peek()
            self.drop(self.at)
            bare = form.bare

    def _skip_begin(self, begins: list[str]) -> Waiting[str | None]:
        """Go past white space and a mark that begins a call, if there is one; return the text."""
        yield from self.peek()
        if self._count:
            yield from self.take(";")  # some write it between calls
            yield from self.peek()
        for mark in begins:
            if (yield from self.take(mark)):
                return self.text[: self.at]
        return ""

    def _find_begin(self, begins: list[str]) -> Waiting[str | None]:
        """Give all text up to the next mark that begins a call and go past it; return it.

        None is the end.
        """
        while True:
            found = [(at, mark) for mark in begins if (at := self.text.find(mark)) >= 0]
            if found:
                at, mark = min(found)
                before = len(self.text[:at].rstrip(SPACE))
                self._give_text(before)
                self.at = at - before + len(mark)
                return self.text[: self.at]
            if self.ended:
                self._give_text(len(self.text))
                return None
            free = self.text[: len(self.text) - overlap(self.text, begins)]
            self._give_text(len(free.rstrip(SPACE)))
            yield

    def _read_call(self, form: CallFormat, begin: str) -> Waiting[None]:
        """Read what begins here as one or several calls; NoCallError if it is none."""
        known = form.bare and not begin
        if form.body == "named":
            yield from self._read_named(form, known)
        elif form.body == "xml":
            yield from self._read_xml()
        elif (yield from self.peek()) == "[":
            self.at += 1
            while True:
                yield from self._read_object(known)
                if not self._rules.parallel:
                    self.over = True
                    return
                if not (yield from self.has_more("]")):
                    break
        else:
            yield from self._read_object(known)
        if form.close and (yield from self.peek()):
            close = self._rules.marks.written(form.close)
            if not (yield from self.take(close)):
                if not (self.ended and close.startswith(self.text[self.at :])):
                    raise NoCallError
                self.at = len(self.text)  # cut off within the mark
        self.over = not self._rules.parallel

    def _read_object(self, known: bool) -> Waiting[None]:
        """Read an object with the name of the tool and its arguments, in any order."""
        if (yield from self.peek()) != "{":
            raise NoCallError
        self.at += 1
        name = id_ = arguments = None
        begun = False
        more = True
        while more:
            key = yield from self.key()
            if key == "name":
                name = yield from self.string()
            elif key == "id":
                id_ = yield from self.string()
            elif key in {"arguments", "parameters"}:
                if arguments is not None or (yield from self.peek()) != "{":
                    raise NoCallError
                if name is not None and self._rules.certain:  # an id may still follow otherwise
                    self._begin_call(name, id_, known)
                    begun, self._from = True, self.at
                start = self.at
                yield from self.value()
                arguments = self.text[start : self.at]
                self._take_arguments()
                self._from = None
            else:
                yield from self.value()
            more = yield from self.has_more("}")
        if name is None or (known and arguments is None):
            raise NoCallError
        if not begun:
            self._begin_call(name, id_, known)
            self._add_arguments(arguments or "{}")

    def _read_named(self, form: CallFormat, known: bool) -> Waiting[None]:
        """Read the name, perhaps an id, and the arguments, with marks between them."""
        before_id, before_arguments = map(self._rules.marks.written, form.named)
        yield from self.peek()
        name = yield from self._known_name() if known else self.run(NAME)
        id_ = None
        if before_id and (yield from self.take(before_id)):
            id_ = yield from self.run(NAME)
        yield from self.expect(before_arguments)
        if (yield from self.peek()) != "{":
            raise NoCallError
        self._begin_call(name, id_, known)
        self._from = self.at
        yield from self.value()
        self._take_arguments()
        self._from = None

    def _known_name(self) -> Waiting[str]:
        """Go past the name of a tool that there is, and return it."""
        for name in sorted(self._rules.tools, key=len, reverse=True):
            if (yield from self.take(name)):
                return name
        raise NoCallError

    def _read_xml(self) -> Waiting[None]:
        """Read an element of the function with one for each argument."""
        yield from self.peek()
        yield from self.expect("<function=")
        name = yield from self.until(">")
        self._begin_call(name, None, known=False)
        schema = self._rules.tools.get(name)
        before, keys = "{", set[str]()
        while True:
            yield from self.peek()
            if (yield from self.take("</function>")):
                break
            yield from self.expect("<parameter=")
            key = self._spelled((yield from self.until(">")))
            value = self._spelled((yield from self.until("</parameter>")))
            if key in keys:
                raise NoCallError
            keys.add(key)
            value = value.removeprefix("\n").removesuffix("\n")
            self._add_arguments(before + typed(key, value, schema))
            before = ", "
        self._add_arguments("}" if keys else "{}")

    def _begin_call(self, name: str, id_: str | None, known: bool) -> None:
        if not name or (known and name not in self._rules.tools) or not _is_text(name):
            raise NoCallError
        id_ = id_ if id_ and _is_text(id_) else self._rules.call_id(self._count)
        self._call = ToolCallDelta(self._count, id_, name, "")
        self._count += 1
        self._tried.append(self._call)

    def _add_arguments(self, arguments: str) -> None:
        self._tried.append(replace(self._call, arguments=self._spelled(arguments)))

    def _take_arguments(self) -> None:
        """Take what was read of arguments that are taken as they are written."""
        if self._from is not None and self._from < self.at:
            self._add_arguments(self.text[self._from : self.at])
            self._from = self.at

    def _give_calls(self) -> None:
        self._calls += self._tried
        self._tried.clear()

    def _give_text(self, length: int) -> None:
        self._text.append(self._spelled(self.drop(length)))

    def _give_back(self, length: int, count: int) -> None:
        """Give up a call: its first characters are text, what follows is read again."""
        if self._rules.certain and self._count > count:
            # Nothing but an end can have cut it off: what came of it stays, and an unfinished mark
            # or value without quotes is left out.
            if self.ended:
                self.at = len(self.text)
            self._take_arguments()
            self.drop(self.at)
        else:
            self._tried.clear()
            self._count = count
            self._give_text(length)
        self._from = None

    def _spelled(self, text: str) -> str:
        return self._rules.marks.spelled(text)


def _is_text(word: str) -> bool:
    """Whether there is no half of a surrogate pair, which stands for a mark or cannot be sent."""
    return not any("\ud800" <= character <= "\udfff" for character in word)
