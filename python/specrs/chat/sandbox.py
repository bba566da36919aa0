"""Rendering a Hugging Face chat template with jinja2, whose sandbox keeps it off files and modules.

Nothing here bounds how much a template computes: `worker` does, a process with limits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import ext, meta, nodes
from jinja2.filters import make_attrgetter
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from .origin import Text, concatenated, is_plain, of_template

# Filters that only choose among what they are given.
CHOOSING = frozenset(
    {
        "attr",
        "batch",
        "d",
        "default",
        "dictsort",
        "first",
        "groupby",
        "items",
        "last",
        "list",
        "map",
        "max",
        "min",
        "random",
        "reject",
        "rejectattr",
        "reverse",
        "select",
        "selectattr",
        "slice",
        "sort",
        "unique",
    }
)
# Filters that change a text by methods of `str`, which `Text` has too.
CHANGING = frozenset({"capitalize", "lower", "replace", "string", "trim", "upper"})


class RefusalError(Exception):
    """What the template says with ``raise_exception``."""


@lru_cache(maxsize=8)
def compiled(source: str) -> tuple[jinja2.Template, frozenset[str]]:
    """Return the template of `source`, and the names of the variables that it reads.

    Rendered, it gives a `Text` where anything in it comes from a `Text`.
    """
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[ext.loopcontrols, _Generation],
        finalize=_shown,
    )
    environment.filters = {
        name: _aware(name, function) for name, function in environment.filters.items()
    }
    own = {"tojson": _aware("tojson", _tojson), "join": _join, "concatenated": _shown_together}
    environment.filters |= own
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    tree = environment.parse(source)
    names = frozenset(meta.find_undeclared_variables(tree))
    return environment.from_string(_Concatenations().visit(tree)), names


class _Generation(ext.Extension):
    """``{% generation %}`` … ``{% endgeneration %}``: marks training text, renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Concatenations(NodeTransformer):
    """Replaces ``~``, which has no hook, by a filter."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        items = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(items, "concatenated", [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, in which texts keep their origins."""

    intercepted_binops = frozenset({"%"})
    concat = staticmethod(concatenated)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any, /) -> Any:
        """Compute ``%``, which formats if `left` is a text."""
        result = super().call_binop(context, operator, left, right)
        return _told_apart(result, (left, right))

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call anything from a template."""
        # In loops and blocks jinja2 adds the variables there.
        named = [kwargs[name] for name in kwargs if name not in ("_loop_vars", "_block_vars")]
        given = (*args, *named)
        owner = getattr(function, "__self__", None)
        if type(owner) is str and not all(map(is_plain, given)):
            # The methods of a tracked text know what becomes of its arguments.
            function = getattr(of_template(owner), function.__name__)
        result = super().call(context, function, *args, **kwargs)
        if isinstance(function, (Macro, LoopContext)):  # they concatenate
            return result
        return _told_apart(result, (owner, *given) if isinstance(owner, bytes) else given)


def _told_apart(result: Any, arguments: tuple[Any, ...]) -> Any:
    """Return `result`, as a message's text if it may contain any."""
    if not isinstance(result, str) or type(result) is Text:
        return result
    # Not jinja2's Markup, whose methods know nothing of origins and escape for HTML.
    text = str.__str__(result)
    return text if all(map(is_plain, arguments)) else Text(text)


def _aware(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a filter one whose results have origins."""
    # Whether jinja2 puts something of its own before the value.
    passed = hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def filtered(*args: Any, **kwargs: Any) -> Any:
        if name in CHOOSING:
            return function(*args, **kwargs)
        if name in CHANGING:
            value = of_template(str(_shown(args[passed])))
            return function(*args[:passed], value, *args[passed + 1 :], **kwargs)
        # jinja2's other filters mix texts in ways of their own: all is a message's if any may be.
        result = function(*args, **kwargs)
        if type(result) is Text:
            result = str.__getitem__(result, slice(None))
        return _told_apart(result, (*args[passed:], *kwargs.values()))

    return filtered


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment, value: Any, d: str = "", attribute: str | int | None = None
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return of_template(str(d)).join(str(_shown(item)) for item in value)


def _shown(value: Any) -> Any:
    """Turn what stands in ``{{ }}`` into text."""
    if isinstance(value, (str, jinja2.Undefined)) or is_plain(value):
        return value
    return Text(str(value))


def _shown_together(values: list[Any]) -> str:
    return concatenated(str(_shown(value)) for value in values)


def _raise_exception(message: str) -> NoReturn:
    raise RefusalError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as it is, where jinja2's own filter has escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
