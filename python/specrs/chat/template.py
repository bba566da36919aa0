"""Rendering a chat template in a sandbox that bounds its work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

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


class TemplateError(ValueError):
    """The chat template is faulty, or it refuses the messages; carries the template's own words."""


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
