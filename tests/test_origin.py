"""Text that knows where its characters come from: the same text as ever, and nothing forged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrs.chat.origin import CONTINUED, MESSAGE, TEMPLATE, Text, concatenated, origin_of, tracked
from specrs.chat.sandbox import compiled

# Methods of `str` that give texts, with arguments.
CALLS: dict[str, list[tuple[Any, ...]]] = {
    "capitalize": [()],
    "casefold": [()],
    "center": [(9,), (40, "x")],
    "expandtabs": [(3,)],
    "format": [(1,)],
    "format_map": [({},)],
    "join": [(["a", "b"],), ([],)],
    "ljust": [(40,)],
    "lower": [()],
    "lstrip": [(), (" <a",)],
    "partition": [("a",), ("zz",)],
    "removeprefix": [(" <",), ("zz",), ("",)],
    "removesuffix": [("ß ",), ("zz",), ("",)],
    "replace": [("a", "--"), ("a", ""), ("a", "b", 1), ("", "-"), ("zz", "y")],
    "rjust": [(40,)],
    "rpartition": [("a",), ("zz",)],
    "rsplit": [(), ("a",), (None, 1), ("a", 1), ("zz",)],
    "rstrip": [(), ("ß ",)],
    "split": [(), ("a",), (None, 1), ("a", 1), ("zz",)],
    "splitlines": [(), (True,)],
    "strip": [(), ("ß <",)],
    "swapcase": [()],
    "title": [()],
    "translate": [({97: "xyz"},)],
    "upper": [()],
    "zfill": [(40,)],
    "__getitem__": [(0,), (-1,), (slice(2, 9, 2),), (slice(None, None, -1),)],
    "__mul__": [(3,), (0,)],
    "__rmul__": [(2,)],
    "__add__": [("a",)],
    "__mod__": [((),)],
    "__str__": [()],
}
SAMPLES = [" <a>ba\tbcaa\r\n\nxÄa ß ", "", "a", "aaaa", " \n "]


def texts(result: Any) -> list[str]:
    return [result] if isinstance(result, str) else list(result)


@pytest.mark.parametrize("name", CALLS)
def test_methods_give_what_those_of_str_give_and_know_origins(name: str) -> None:
    for sample in SAMPLES:
        for args in CALLS[name]:
            if name == "__getitem__" and isinstance(args[0], int) and not sample:
                continue
            plain = getattr(sample, name)(*args)
            for letter in (TEMPLATE, MESSAGE):
                result = getattr(Text(sample, letter * len(sample)), name)(*args)
                assert type(result) is type(plain) or type(result) is Text
                assert texts(result) == texts(plain), (sample, args)
                for text in texts(result):
                    assert type(text) is Text
                    assert len(origin_of(text)) == len(text)
                    given_by_template = "ab-" if name in ("join", "replace", "__add__") else ""
                    if letter == MESSAGE:  # what it brought is never taken for the template's
                        own = "".join(
                            char for char, of in zip(text, origin_of(text), strict=True) if not of
                        )
                        assert set(own) <= set(given_by_template), (name, args, own)


def test_every_method_of_str_that_gives_texts_is_covered() -> None:
    covered = set(CALLS)
    args: tuple[Any, ...]
    for name in dir(str):
        if name.startswith("__") or name in covered:
            continue
        for args in ((), ("a",), (["a"],), (3,), ({},)):
            try:
                result = getattr("a", name)(*args)
            except (LookupError, TypeError, ValueError):
                continue
            assert not isinstance(result, (str, list, tuple)), f"{name} gives text"


PIECES = st.lists(st.tuples(st.text("ab \n<", max_size=4), st.booleans()), max_size=6)


def text_of(pieces: list[tuple[str, bool]]) -> Text:
    made = concatenated(
        Text(text, (TEMPLATE if own else MESSAGE) * len(text)) for text, own in pieces
    )
    return Text(made, origin_of(made))


@given(PIECES, st.sampled_from(["a", " ", "ab", "\n"]), st.integers(-1, 3))
def test_pieces_keep_the_origins_of_their_places(
    pieces: list[tuple[str, bool]], sep: str, count: int
) -> None:
    text = text_of(pieces)
    for parts in (
        text.split(sep, count),
        text.rsplit(sep, count),
        text.split(None, count),
        text.rsplit(None, count),
        text.splitlines(True),
        [text.strip()],
        text.partition(sep),
    ):
        at = 0
        for part in parts:
            # Where it stands: the places of its letters are those of its origins.
            at = next(
                start
                for start in range(at, len(text) + 1)
                if text[start : start + len(part)] == part
                and origin_of(text)[start : start + len(part)] == origin_of(part)
            ) + len(part)  # fmt: skip
    with_new = text.replace(sep, "-", count)
    assert with_new == str.replace(text[:], sep, "-", count)
    assert [of for char, of in zip(with_new, origin_of(with_new), strict=True) if char == "-"] == [
        0
    ] * with_new.count("-")


@pytest.mark.parametrize(
    ("expression", "pieces"),
    [
        ("'<' ~ x ~ '>'", [("<", 0), ("Ab c", 1), (">", 0)]),
        ("'<' + x + '>'", [("<", 0), ("Ab c", 1), (">", 0)]),
        ("x + 'a' + x", [("Ab c", 1), ("a", 0), ("Ab c", 1)]),
        ("['<', x, '>'] | join('|')", [("<|", 0), ("Ab c", 1), ("|>", 0)]),
        ("'|'.join(['<', x])", [("<|", 0), ("Ab c", 1)]),
        ("'<>'.replace('>', x)", [("<", 0), ("Ab c", 1)]),
        ("'<>' | replace('>', x)", [("<", 0), ("Ab c", 1)]),
        ("x.split(' ') | join('-')", [("Ab", 1), ("-", 0), ("c", 1)]),
        ("x | upper", [("AB C", 1)]),
        ("x | trim | first ~ '!'", [("A", 1), ("!", 0)]),
        ("[x]", [("['Ab c']", 1)]),
        ("{'k': x}", [("{'k': 'Ab c'}", 1)]),
        ("[x] | string", [("['Ab c']", 1)]),
        ("x | tojson", [('"Ab c"', 1)]),
        ("{'k': [x]} | tojson", [('{"k": ["Ab c"]}', 1)]),
        ("'%s>' % x", [("Ab c>", 1)]),
        ("'%s>' % (x,)", [("Ab c>", 1)]),
        ("'%s>' | format(x)", [("Ab c>", 1)]),
        ("'{}>'.format(x)", [("Ab c>", 1)]),
        ("x | indent", [("Ab c", 1)]),
        ("x | safe", [("Ab c", 1)]),
        ("('<' | safe) + x", [("<", 0), ("Ab c", 1)]),
        ("('<' | safe) ~ x", [("<", 0), ("Ab c", 1)]),
        ("('<' | safe) ~ '&'", [("<&", 0)]),
        ("lipsum(n=1)[:3] + x", [("<p>", 0), ("Ab c", 1)]),
        ("('%s>' | safe) % x", [("Ab c>", 1)]),
        ("x | escape", [("Ab c", 1)]),
        ("x | e ~ '>'", [("Ab c", 1), (">", 0)]),
        ("x.encode().decode()", [("Ab c", 1)]),
        ("'a' | center(3)", [(" a ", 0)]),
        ("y", [("<user>", 0)]),
        ("'%s' % y", [("<user>", 0)]),
        ("x | length", [("4", 0)]),
        ("'<a>'.replace('a', 'b') ~ '<a>'.upper()", [("<b><A>", 0)]),
        ("x[1:] ~ x[0]", [("b cA", 1)]),
        ("x | reverse", [("c bA", 1)]),
        ("[x, '<'] | map('upper') | join", [("AB C", 1), ("<", 0)]),
        ("x | default('d')", [("Ab c", 1)]),
        ("none | default(x, true)", [("Ab c", 1)]),
    ],
)
def test_expressions_of_templates_keep_origins(
    expression: str, pieces: list[tuple[str, int]]
) -> None:
    variables = {"x": tracked("Ab c"), "y": "<user>"}
    for template in (
        f"{{{{ {expression} }}}}",
        f"{{% set z = {expression} %}}{{{{ z }}}}",
        f"{{% set z %}}{{{{ {expression} }}}}{{% endset %}}{{{{ z }}}}",
        f"{{% macro f(x) %}}{{{{ {expression} }}}}{{% endmacro %}}{{{{ f(x) }}}}",
        f"{{% macro f() %}}{{{{ caller() }}}}{{% endmacro %}}"
        f"{{% call f() %}}{{{{ {expression} }}}}{{% endcall %}}",
        f"{{% block b %}}{{{{ {expression} }}}}{{% endblock %}}",
        f"{{% for i in [1] %}}{{{{ {expression} }}}}{{% endfor %}}",
    ):
        text = compiled(template)[0].render(variables)
        expected = b"".join((MESSAGE if of else TEMPLATE) * len(piece) for piece, of in pieces)
        assert (text, origin_of(text)) == ("".join(piece for piece, _ in pieces), expected)


def test_what_is_to_be_continued_is_known_to_its_end() -> None:
    template = "{{ x | trim }}<end>{{ x.split(' ')[0] }}<end>"
    text = compiled(template)[0].render(x=tracked(" a b ", CONTINUED))
    assert text == "a b<end><end>"
    assert origin_of(text).rfind(CONTINUED) + 1 == 3
