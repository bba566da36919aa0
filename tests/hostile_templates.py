"""Templates that mean harm: they compute for ever, fill memory, or reach for the system."""

from __future__ import annotations

# What makes more of `ns.x`, a text or a list, each time.
_GROWING = [
    "ns.x ~ ns.x",
    "ns.x + ns.x",
    "ns.x * 2",
    "ns.x.replace('a', 'aa') + 'a'",
    "ns.x | replace('', 'ab')",
    "ns.x | indent(9, true)",
    "(ns.x ~ '\n') | indent(ns.x | length, true)",
    "ns.x | wordwrap(1) ~ ns.x",
    "ns.x.join(ns.x)",
    "[ns.x, ns.x] | join(ns.x)",
    "ns.x.translate({97: 'aaaa'})",
    "ns.x.center(ns.x | length * 2)",
    "ns.x | center(ns.x | length * 2)",
    "ns.x.ljust(ns.x | length * 3)",
    "ns.x.zfill(ns.x | length * 2)",
    "ns.x.expandtabs(99999) ~ '\t\t'",
    "'%s%s' % (ns.x, ns.x)",
    "'%s%s' | format(ns.x, ns.x)",
    "'{0}{0}'.format(ns.x)",
    "'{:>{}}'.format(ns.x, ns.x | length * 2)",
    "'%*s' % (ns.x | length * 2, ns.x)",
    "ns.x | tojson | tojson ~ ns.x",
    "(ns.x ~ '&') | escape ~ ns.x",
    "ns.x | urlize ~ ns.x",
    "ns.x | list + ns.x | list",
    "(ns.x, ns.x)",
    "[ns.x, ns.x] | string",
    "{'a': ns.x, 'b': ns.x} | tojson",
    "{ns.x: ns.x} | pprint",
    "ns.x.splitlines() + [ns.x] | list",
    "ns.x.encode() + ns.x.encode()",
    "(ns.x ~ 'a b') | title ~ ns.x",
    "ns.x | urlencode ~ '%%'",
    "ns.x | upper ~ ns.x | lower",
    "ns.x.split('a') | join('aaa')",
    "ns.x | batch(2, 'aaaa') | list | string",
    "ns.x | slice(9999, 'a') | list | string",
    "namespace(a=ns.x, b=ns.x).a ~ ns.x",
    "ns.x | xmlattr ~ ns.x",
    "messages[0].content * 99 ~ ns.x",
]
_LOOP = (
    "{{% set ns = namespace(x='ab') %}}{{% for i in range({n}) %}}"
    "{{% set ns.x = {expression} %}}{{% endfor %}}{{{{ ns.x {shown} }}}}"
)

# A template, with a number in it.
_LABORIOUS = [
    "{{% for a in range({n}) %}}{{% for b in range({n}) %}}{{% for c in range({n}) %}}"
    "{{% endfor %}}{{% endfor %}}{{% endfor %}}",
    "{{% macro f() %}}{{{{ f() }}}}{{% endmacro %}}{{{{ f() }}}}{n}",
    "{{% macro f(n) %}}{{{{ f(n - 1) ~ f(n - 1) if n }}}}{{% endmacro %}}{{{{ f({n}) }}}}",
    "{{% macro f(n) %}}{{{{ g(n) }}}}{{% endmacro %}}{{% macro g(n) %}}{{{{ f(n + 1) }}}}"
    "{{% endmacro %}}{{{{ g({n}) }}}}",
    "{{% macro f(x) %}}{{% call f(x ~ x) %}}{{{{ caller() }}}}{{% endcall %}}{{% endmacro %}}"
    "{{{{ f('a' * {n}) }}}}",
    "{{% block a %}}{n}{{{{ self.a() }}}}{{% endblock %}}",
    "{{% for x in [[[1]]] * {n} recursive %}}{{{{ loop([x] * {n}) }}}}{{% endfor %}}",
    "{{{{ range({n}) | list | length }}}}{{{{ (range(99999) | list * {n}) | length }}}}",
    "{{{{ lipsum({n}) }}}}",
    "{{{{ lipsum(n={n}, min={n}, max={n} + 1, html=false) }}}}",
    "{{{{ 9 ** {n} ** 3 }}}}",
    "{{{{ (2 ** {n}) ** {n} % 7 }}}}",
    "{{{{ (10 ** {n} | int) // 3 | string | length }}}}",
    "{{{{ 'x'.ljust({n} ** 4) }}}}",
    "{{{{ 'x' | center({n} ** 4) }}}}",
    "{{{{ '%0{n}{n}d' % 1 }}}}",
    "{{{{ '%.{n}{n}f' % 1.5 }}}}",
    "{{{{ '{{:>{n}{n}}}'.format('x') }}}}",
    "{{{{ ('a' * {n} ** 3) | length }}}}",
    "{{{{ [0] * {n} ** 3 }}}}",
    "{{{{ ('<' * {n} * 99) | striptags }}}}",
    "{{{{ ('a.' * {n} * 99) | urlize }}}}",
    "{{{{ (range(99999) | list * {n}) | sort | unique | list | length }}}}",
    "{{{{ (range(9999) | map('string') | join(' ') * {n}) | wordwrap(3) | length }}}}",
    "{{{{ [range(9999)] * {n} | sum(start=[]) }}}}",
    "{{% set ns = namespace(d={{}}) %}}{{% for i in range({n}) %}}"
    "{{% set ns.d = {{'a': ns.d, 'b': ns.d}} %}}{{% endfor %}}{{{{ ns.d }}}}",
    "{{% set c = cycler(*range(999)) %}}{{% for i in range({n}) %}}{{% for j in range({n}) %}}"
    "{{{{ c.next() }}}}{{% endfor %}}{{% endfor %}}",
    "{{% for i in range({n}) %}}{{% filter upper %}}{{% for j in range({n}) %}}"
    "{{% set x %}}{{{{ lipsum() }}}}{{% endset %}}{{{{ x }}}}{{% endfor %}}{{% endfilter %}}"
    "{{% endfor %}}",
    "{{{{ 'a' in ('b' * {n} * 9999) }}}}{{% for i in range({n}) %}}"
    "{{{{ ('b' * 99999) in ('b' * 999999 ~ 'a') }}}}{{% endfor %}}",
    "{{{{ messages | tojson(indent={n} ** 3) }}}}",
    "{{{{ messages | map('tojson') | list * {n} ** 2 | join }}}}",
]

# A piece of syntax, repeated.
_DEEP = [
    "(",
    "[",
    "{{'a':",
    "not ",
    "-",
    "x if ",
    "1+(",
    "'a'~(",
    "f(",
    "a.b[",
    "*",
    "1 if x else ",
]
_BLOCKS = [
    "{% if 1 %}",
    "{% for a in [1] %}",
    "{% macro f() %}",
    "{% set x %}",
    "{{ 1 }}",
    "{#",
    "{%",
]

_REACHING = [
    "''.__class__.__mro__[1].__subclasses__()",
    "messages.__class__.__base__",
    "messages[0].content.__class__",
    "messages[0].content._origin",
    "cycler.__init__.__globals__",
    "lipsum.__globals__['os'].popen('id').read()",
    "joiner.__init__.__globals__.__builtins__",
    "namespace.__init__.__globals__",
    "raise_exception.__globals__",
    "strftime_now.__closure__",
    "self.__init__.__globals__",
    "self._TemplateReference__context",
    "range.__self__",
    "''.format.__self__.__class__",
    "'{0.__class__.__mro__}'.format('')",
    "'{0.__globals__}'.format(lipsum)",
    "'{a.__class__}'.format_map({'a': ''})",
    "(messages[0].content[:0] + '{0.__class__.__mro__}').format('')",
    "(messages[0].content[:0] + '{0.__globals__}').format(lipsum)",
    "(messages[0].content[:0] + '{a.__class__}').format_map({'a': ''})",
    "('%s' % lipsum.__globals__)",
    "lipsum | attr('__globals__')",
    "[lipsum] | map(attribute='__globals__') | list",
    "messages.append(1)",
    "messages[0].update({'a': 1})",
    "messages.clear()",
    "messages[0].content.__add__.__self__",
    "(1).__class__.__base__.__subclasses__()",
    "loop.__class__",
    "caller.__globals__",
    "config",
    "request.application.__globals__",
    "get_flashed_messages.__globals__",
    "dict.__base__.__subclasses__()",
    "raise_exception('a' * 999999999)",
    "strftime_now('%Y' * 9999999)",
    "(messages | string).__class__",
    "messages[0].content.encode().__class__",
    "''.join.__self__.__class__",
]
_STATEMENTS = [
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.system('id') }}",
    "{% from 'os' import system %}",
    "{% extends '/etc/passwd' %}",
    "{% include messages %}",
    "{% extends messages[0].content %}",
    "{% do messages.append(1) %}",
    "{% debug %}",
]


def templates() -> list[str]:
    """Give 500 of them."""
    made = [
        _LOOP.format(n=n, expression=expression, shown=shown)
        for n in (24, 60, 99999)
        for shown in ("", "| length")
        for expression in _GROWING
    ]
    made += [text.format(n=n) for n in (9, 99, 9999, 99999) for text in _LABORIOUS]
    for times in (300, 30_000, 300_000):
        made += [f"{{{{ {piece.replace('{{', '{') * times} }}}}" for piece in _DEEP]
        made += [piece * times for piece in _BLOCKS]
    made += [f"{{{{ {expression} }}}}" for expression in _REACHING]
    made += [f"{{% set x = {expression} %}}{{{{ x }}}}" for expression in _REACHING]
    made += _STATEMENTS
    return made[:500]
