"""The environment of templates: features that published ones use, and limits on hostile ones."""

from __future__ import annotations

import datetime

import jinja2
import pytest

from kinfolk.text.sandbox import (
    BUDGET,
    MAX_CHARACTERS,
    MAX_STEPS,
    Budget,
    BudgetError,
    Refusal,
    compile_template,
)

NAMESPACE = "{% set ns = namespace(x='ab', n=3) %}"


def render(source: str, budget: Budget | None = None, **variables: object) -> str:
    return compile_template(source).render({**variables, BUDGET: budget or Budget()})


# -- features that templates use ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}"
         "{% if i == 2 %}{% break %}{% endif %}{% endfor %}", "02"),
        ("{% generation %}{{ 1 }}{% if true %}x{% endif %}{% endgeneration %}y", "1xy"),
        ("{{ d | tojson }}", '{"b": "<é&\'", "a": [1, null]}'),
        ("{{ d | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}",
         '{"a":[1,null],"b":"<\\u00e9&\'"}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ missing }}{% if missing is defined %}x{% endif %}", ""),
        ("{% for i in [1, 2] %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}"
         "{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}", "1/2False2 2/2True1 "),
        ("{% for i in missing %}{% else %}none{% endfor %}", "none"),
        ("{% for k, v in d.items() %}{{ k }}{% endfor %}{% for i in [1, 2, 3][::-1] if i > 1 %}"
         "{{ i }}{% endfor %}", "ba32"),
        ("{% for n in tree recursive %}{{ n.v }}({{ loop(n.c) }}){% endfor %}", "1(2())"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{% set y | upper %}b{% endset %}{{ y }}",
         "A1B"),
        ("{% macro f(a, b=2) %}{{ a ~ b }}{% endmacro %}{{ f(1) }}{{ f('x', b='y') }}", "12xy"),
        ("{{ 'a' + 'b' * 2 }}{{ '%s!' % 'c' }}{{ [1] + [2] }}{{ 2 ** 3 + 4 * 5 }}",
         "abbc![1, 2]28"),
        ("{% set ns = namespace(dict(b=1), self=2) %}{% set ns.a = ns.b %}{{ ns.a }}{{ ns.self }}",
         "12"),
        ("{{ '<b>' }}{{ None }}{{ true }}{{ 1.5 }}", "<b>NoneTrue1.5"),
    ],
)  # fmt: skip
def test_templates_render_as_published_ones_expect(source: str, text: str) -> None:
    variables = {
        "d": {"b": "<é&'", "a": [1, None]},
        "tree": [{"v": 1, "c": [{"v": 2, "c": []}]}],
    }
    assert render(source, **variables) == text


def test_templates_can_ask_for_the_date() -> None:
    before = datetime.date.today()
    assert before <= datetime.date.fromisoformat(render("{{ strftime_now('%Y-%m-%d') }}"))


def test_templates_can_refuse() -> None:
    with pytest.raises(Refusal, match=r"^no 3$"):
        render("{{ raise_exception('no ' ~ 3) }}")


# -- limits on hostile templates ------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set _ = messages.__setitem__(0, 1) %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ lipsum(5) }}",
        "{% include 'x' %}",
        "{% import 'x' as x %}",
        "{{ range(1000000) | length }}",
    ],
)
def test_templates_cannot_reach_out(source: str) -> None:
    messages = [0]
    with pytest.raises(Exception, match=r"unsafe|must not|loader|too big|undefined"):
        render(source, messages=messages)
    assert messages == [0]


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}text{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(99) }}",
        "{% for a in [[1]] recursive %}{% for b in range(99999) %}{{ loop }}{% endfor %}"
        "{{ loop([a] * 9) if loop.depth < 40 }}{% endfor %}",
        "{{ 'a' * 9999999999 }}",
        "{{ 9999999999 * [1] }}",
        "{{ 7 ** 9999999999 }}",
        NAMESPACE + "{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        NAMESPACE + "{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        NAMESPACE + "{% for a in range(99) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
        NAMESPACE + "{% for a in range(99) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
        NAMESPACE + "{% for a in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        NAMESPACE
        + "{% for a in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
        + "{% set ns.x = y %}{% endfor %}",
    ],
)
def test_templates_cannot_go_on_without_end(source: str) -> None:
    with pytest.raises(BudgetError):
        render(source, Budget(steps=100_000, characters=1_000_000))


def test_templates_cannot_replace_their_budget() -> None:
    for name in ("budget", "the_budget", "the budget"):
        tight = Budget(steps=10)
        with pytest.raises((BudgetError, jinja2.TemplateSyntaxError)):
            render(f"{{% set {name} = 1 %}}{{% for a in range(99) %}}{{% endfor %}}", tight)


def test_endless_recursion_ends() -> None:
    with pytest.raises(RecursionError):
        render("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(0) }}")


def test_a_long_conversation_is_far_from_the_budget() -> None:
    source = (
        "{% for m in messages %}{% for n in messages %}{% endfor %}"
        "{{ m.content | trim }}{% endfor %}"
    )
    messages = [{"content": "word " * 50}] * 300
    hundredth = Budget(steps=MAX_STEPS // 100, characters=MAX_CHARACTERS // 100)
    assert len(render(source, hundredth, messages=messages)) == 300 * 249
