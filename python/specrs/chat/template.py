"""Chat templates: from messages to the ids a model expects, by the template in its file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any, NoReturn

from .._specrs import Tokenizer
from ..arguments import checked_text

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, Any]

# Ceilings for one rendering: far above any real conversation, far below what would hang or fill
# memory.
MAX_ITERATIONS = 1_000_000
MAX_REPEATED = 10_000_000
MAX_EXPONENT = 64

# What fills text up to a width, and which of them take the width from the text itself.
FORMATTING = frozenset({"%", "format", "format_map"})
PADDING = FORMATTING | {"ljust", "rjust", "center", "zfill", "expandtabs"}

# A noncharacter, which no text for interchange contains: marks where a control token's spelling is
# broken.
_BREAK = "\ufdd0"


class TemplateError(ValueError):
    """The chat template is faulty, or it refuses the messages; carries the template's own words."""


class ChatFormat:
    """The chat template of a tokenizer, ready for use.

    What stands in a message stays text: if it spells a control token such as ``<|im_end|>``, it
    reaches the model as those characters and never as the token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        template = tokenizer.chat_template
        if template is None:
            raise ValueError(
                "the model file has no chat template (tokenizer.chat_template): it may be no chat "
                "model; write the prompt yourself and call generate() with it, or with "
                "tokenize(prompt, parse_special=True) if it contains control tokens"
            )
        self._tokenizer = tokenizer
        self._template = template
        self._control_tokens: re.Pattern[str] | None = None

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation, up to where the assistant's reply begins.

        A beginning-of-sequence token is there once if template or file want one, else not at all.
        Raises TypeError or ValueError for malformed messages and TemplateError for the template's
        refusals.
        """
        check_messages(messages)
        tokenizer = self._tokenizer
        text = render(
            self._template,
            [self._plain_message(i, message) for i, message in enumerate(messages)],
            bos_token="" if tokenizer.bos is None else tokenizer.token(tokenizer.bos),
            eos_token="" if tokenizer.eos is None else tokenizer.token(tokenizer.eos),
        )
        ids: list[int] = []
        for part in text.split(_BREAK):
            ids += tokenizer.encode(part, add_bos=False, parse_special=True)
        if tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
            ids.insert(0, tokenizer.bos)
        return ids

    def _plain_message(self, i: int, message: Message) -> Any:
        """Copy a message with every control token's spelling broken up."""
        where = f"messages[{i}]"
        try:
            return self._as_plain_text(where, message)
        except RecursionError:
            raise ValueError(f"{where} contains itself, or is nested too deeply") from None

    def _as_plain_text(self, where: str, value: Any) -> Any:
        """Copy a part of a message, in the same way."""
        if isinstance(value, str):
            pattern = self._control_pattern()
            text = checked_text(where, value).replace(_BREAK, "")
            # Again, because a break may uncover a shorter one: the `<b>` in `<a<b>`.
            while pattern.search(text):
                text = pattern.sub(lambda match: match[0][0] + _BREAK + match[0][1:], text)
            return text
        if isinstance(value, Mapping):
            return {
                self._as_plain_text(where, key): self._as_plain_text(where, item)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._as_plain_text(where, item) for item in value]
        return value

    def _control_pattern(self) -> re.Pattern[str]:
        if self._control_tokens is None:
            tokenizer = self._tokenizer
            control = [i for i in range(tokenizer.n_vocab) if tokenizer.is_control(i)]
            # A spelling of one character cannot be broken.
            spellings = [text for text in map(tokenizer.token, control) if len(text) > 1]
            # Text is cut at breaks, so one that contains a break never arises.
            spellings = [text for text in spellings if _BREAK not in text]
            longest_first = sorted(spellings, key=len, reverse=True)
            nothing = r"(?!)"
            self._control_tokens = re.compile("|".join(map(re.escape, longest_first)) or nothing)
        return self._control_tokens


def check_messages(messages: Sequence[Message]) -> None:
    """Raise TypeError or ValueError unless `messages` is a list of dicts with role and content."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(f"messages must be a list of dicts, not {type(messages).__name__}")
    if not messages:
        raise ValueError('messages is empty; give at least {"role": "user", "content": "..."}')
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"messages[{i}] must be a dict, not {type(message).__name__}")
        if not isinstance(message.get("role"), str):
            raise ValueError(f'messages[{i}] has no "role" such as "user", "assistant" or "system"')
        content = message.get("content", "")
        # A message that only calls tools has no text.
        if content is None and message.get("tool_calls"):
            continue
        if not isinstance(content, (str, list, tuple)):
            raise TypeError(
                f'messages[{i}]["content"] must be text or a list of parts, '
                f"not {shortened(content)}"
            )


def render(
    template: str,
    messages: Sequence[Message],
    *,
    bos_token: str,
    eos_token: str,
    add_generation_prompt: bool = True,
) -> str:
    """Render a Hugging Face chat template in a sandbox.

    Raises TemplateError when the template is faulty, too laborious, or raises by itself.
    """
    try:
        return _compiled(template).render(
            messages=messages,
            bos_token=bos_token,
            eos_token=eos_token,
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            _meter=_Meter(),
        )
    except TemplateError:
        raise
    except Exception as error:  # a template can make any operation of Python fail
        raise TemplateError(f"the chat template failed: {error}") from error


def check_width(name: str, text: Any, args: Iterable[Any]) -> None:
    """Refuse to pad `text` to a huge width, which is among `args` or written in the format `text`.

    Other uses of these names are not touched.
    """
    widths = [arg for arg in args if isinstance(arg, int)] if not isinstance(text, int) else []
    if isinstance(text, str) and name in FORMATTING:
        # A number that is only shown may be large; one that fills a `*` or a `{}` in a width not.
        nested = re.search(r"%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{", text)
        written = " ".join(re.findall(r"%[^a-zA-Z%]*|\{[^{}]*:[^{}]*", text))
        widths = (widths if nested else []) + [
            int(digits) for digits in re.findall(r"[0-9]{1,30}", written)
        ]
    if any(abs(width) > MAX_REPEATED for width in widths):
        raise TemplateError(f"the chat template makes something huge with {name}")


class _Meter:
    """Counts the loop iterations of one rendering."""

    def __init__(self) -> None:
        self.iterations = 0

    def count(self, items: Any) -> Any:
        for item in items:
            self.iterations += 1
            if self.iterations > MAX_ITERATIONS:
                raise TemplateError(f"the chat template loops more than {MAX_ITERATIONS} times")
            yield item


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    import json
    from datetime import datetime

    import jinja2
    from jinja2 import ext, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """``{% generation %}`` … ``{% endgeneration %}``: marks training text, renders its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Environment(ImmutableSandboxedEnvironment):
        """A sandbox: jinja2 keeps templates off files and attributes, this bounds their work."""

        intercepted_binops = frozenset({"*", "**", "%"})

        # Every template passes here between parsing and compiling; there is no public place.
        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            tree = super()._parse(source, name, filename)
            for loop in tree.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, "metered", [], [], None, None)
            return tree

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "%":
                check_width("%", left, right if isinstance(right, tuple) else (right,))
                return super().call_binop(context, operator, left, right)
            sized, times = (left, right) if hasattr(left, "__len__") else (right, left)
            too_long = hasattr(sized, "__len__") and len(sized) * times > MAX_REPEATED
            if too_long or (operator == "**" and abs(right) > MAX_EXPONENT):
                raise TemplateError(f"the chat template makes something huge with {operator}")
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
            original = getattr(method, "__wrapped__", method)  # jinja2 wraps str.format
            name = getattr(original, "__name__", "")
            if name in PADDING:
                check_width(name, getattr(original, "__self__", ""), (*args, *kwargs.values()))
            return super().call(context, method, *args, **kwargs)

    def bounded(name: str, original: Any) -> Any:
        def bounded_filter(value: Any, *args: Any, **kwargs: Any) -> Any:
            check_width(name, value, (*args, *kwargs.values()))
            return original(value, *args, **kwargs)

        return bounded_filter

    @jinja2.pass_context
    def metered(context: Any, items: Any) -> Any:
        return context.parent["_meter"].count(items)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: Any, **options: Any) -> str:
        # jinja2's own escapes for HTML, which chat templates do not expect.
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, Generation]
    )
    environment.filters["tojson"] = tojson
    environment.filters["metered"] = metered
    for name in ("center", "format", "indent"):
        environment.filters[name] = bounded(name, environment.filters[name])
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)
