"""Who runs when, in which pieces and with how much memory; on a toy, with time as the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from fake_engine import Model, Session, toy_llama
from schedules import Costs, Schedule, Wish
from specrs import Completion, Llama, PromptLookup
from specrs.serving.memory import available
from specrs.serving.pages import PAGE, Pages, Table
from specrs.serving.prefixes import Prefixes

ENDLESS: dict[str, Any] = {"ignore_eos": True}


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_llama(monkeypatch, tmp_path / "toy", n_ctx=4000, order=2)


def prompt(length: int, first: int = 5) -> list[int]:
    return [first] + [2 + i * i % 27 for i in range(length - 1)]


def wish(length: int, max_tokens: int | None, first: int = 5, **more: Any) -> Wish:
    return Wish(prompt(length, first), {"max_tokens": max_tokens, **ENDLESS}, **more)


def rows(schedule: Schedule) -> Iterator[int]:
    """Give the rows of each pass."""
    before = 0
    for _ in schedule:
        after = schedule.steps.rows
        yield after - before
        before = after


def test_alone_a_prompt_gets_whole_passes(llm: Llama) -> None:
    assert list(rows(Schedule(llm, [wish(600, 3)], rows=30))) == [256, 256, 88, 1, 1]


def test_beside_a_running_reply_it_gets_what_time_allows(llm: Llama) -> None:
    """A pass may cost as much as four without a prompt: here that of 38 rows."""
    schedule = Schedule(llm, [wish(5, 20), wish(100, 1, 6, arrives=2)], rows=30)
    assert list(rows(schedule))[:7] == [5, 1, 38, 38, 27, 1, 1]
    assert schedule.chunks[0][2:5]  # it went on meanwhile
    assert len(schedule.chunks[0]) == 20


def test_the_shortest_rest_of_a_prompt_goes_first(llm: Llama) -> None:
    wishes = [wish(5, 60), wish(400, 1, 6, arrives=1), wish(90, 1, 7, arrives=2)]
    schedule = Schedule(llm, wishes, rows=30, tick=0.0)
    schedule.run()
    assert schedule.ended[:2] == [2, 1]


def test_but_who_waits_long_enough_gets_its_turn(llm: Llama) -> None:
    """A short prompt comes at every step; by its age alone the long one is served."""
    wishes = [wish(5, 200), wish(300, 1, 6, arrives=1)]
    wishes += [wish(40, 1, 7 + i % 20, arrives=2 + i) for i in range(60)]
    for tick, patient in ((0.0, False), (5.0, True)):
        schedule = Schedule(llm, wishes, rows=30, tick=tick, max_requests=99, prefixes=False)
        schedule.run()
        assert (schedule.ended.index(1) < 40) == patient


def test_no_more_run_than_may(llm: Llama) -> None:
    schedule = Schedule(llm, [wish(5, 9, 4 + i) for i in range(7)], max_requests=3)
    most = 0
    for _ in schedule:
        most = max(most, len(schedule.steps.scheduler.running))
    assert most == 3
    assert schedule.ended == list(range(7))


def test_memory_is_promised_before_it_is_needed(llm: Llama) -> None:
    """64 requests where a few fit: never more than the budget, nobody is paused, all finish."""
    wishes = [wish(100 + i, 100, 4 + i % 20) for i in range(64)]
    schedule = Schedule(llm, wishes, pages=21, max_requests=64)
    most = 0
    for _ in schedule:
        assert schedule.pages.used <= 21
        most = max(most, len(schedule.steps.scheduler.running))
    assert most == 4  # of five pages each
    assert schedule.steps.scheduler.paused == 0
    assert len(schedule.ended) == 64
    assert all(isinstance(result, Completion) for result in schedule.results.values())


def test_a_shared_prefix_counts_once(llm: Llama) -> None:
    """Beside ten pages of a common prefix there is room for all five; else only for one."""
    wishes = [Wish([*prompt(640), 5 + i], {"max_tokens": 20, **ENDLESS}) for i in range(5)]
    for prefixes, most_running in ((True, 5), (False, 1)):
        schedule = Schedule(llm, wishes, pages=22, prefixes=prefixes)
        most = 0
        for _ in schedule:
            most = max(most, len(schedule.steps.scheduler.running))
        assert most == most_running


def test_what_many_begin_with_is_evaluated_once(llm: Llama) -> None:
    wishes = [Wish([*prompt(1000), 5 + i], {"max_tokens": 4, **ENDLESS}) for i in range(16)]
    schedule = Schedule(llm, wishes)
    schedule.run()
    assert schedule.steps.prefill_rows < 1001 + 16
    assert [schedule.streams[i].stats.cached_tokens for i in range(16)] == [0] + [1000] * 15


def test_a_salt_keeps_texts_apart(llm: Llama) -> None:
    wishes = [wish(200, 4, salt=salt) for salt in ("a", "b", "a")]
    schedule = Schedule(llm, wishes)
    schedule.run()
    assert [schedule.streams[i].stats.cached_tokens for i in range(3)] == [0, 0, 199]


def test_replies_are_kept_for_the_next_turn(llm: Llama) -> None:
    first = llm.generate(prompt(100), max_tokens=30, ignore_eos=True).tokens
    second = [*prompt(100), *first, 7, 8]
    schedule = Schedule(llm, [wish(100, 30), Wish(second, {"max_tokens": 2}, arrives=40)])
    schedule.run()
    assert schedule.streams[1].stats.cached_tokens == 100 + 30 - 1


def test_without_prefixes_nothing_is_kept(llm: Llama) -> None:
    schedule = Schedule(llm, [wish(100, 5), wish(100, 5, arrives=9)], prefixes=False)
    schedule.run()
    assert schedule.streams[1].stats.cached_tokens == 0
    assert schedule.pages.used == 0


def test_cancelling_frees_memory_at_the_next_step(llm: Llama) -> None:
    wishes = [wish(300, 1000, cancelled=8), wish(300, 5, 6)]
    schedule = Schedule(llm, wishes, pages=24, prefixes=False)
    schedule.run()
    first = schedule.results[0]
    assert isinstance(first, Completion)
    assert first.finish_reason == "cancelled"
    assert (
        first.tokens
        == llm.generate(prompt(300), max_tokens=len(first.tokens), ignore_eos=True).tokens
    )
    assert schedule.ended == [0, 1]


def test_who_waits_can_be_cancelled(llm: Llama) -> None:
    schedule = Schedule(llm, [wish(5, 30), wish(5, 30, 6, cancelled=3)], max_requests=1)
    schedule.run()
    second = schedule.results[1]
    assert isinstance(second, Completion)
    assert (second.tokens, second.text, second.finish_reason) == ([], "", "cancelled")


def test_who_outgrows_all_memory_alone_fails(llm: Llama) -> None:
    schedule = Schedule(llm, [wish(5, None), wish(6, 20, 6, arrives=3)], pages=7)
    results = schedule.run()
    assert isinstance(results[0], MemoryError)
    assert "outgrown" in str(results[0])
    assert isinstance(results[1], Completion)


@pytest.mark.parametrize("drafter", [None, PromptLookup()], ids=["plain", "drafts"])
def test_the_same_schedule_goes_the_same_way(llm: Llama, drafter: PromptLookup | None) -> None:
    wishes = [wish(20 + 9 * i, 30, 4 + i, arrives=i) for i in range(9)]
    for one in wishes:
        one.options["drafter"] = drafter
    first, second = (list(rows(Schedule(llm, wishes, pages=20))) for _ in range(2))
    assert first == second


def test_a_paused_prompt_that_others_computed_meanwhile_goes_on(llm: Llama) -> None:
    """Nothing is left to evaluate of the part of it that has a report of progress."""
    told: list[tuple[int, int]] = []
    progress = {"progress": lambda *done: told.append(done), "max_tokens": 3, **ENDLESS}
    text = prompt(600)
    # The first outgrows what it was promised, and the other is paused in the middle of its prompt,
    # of which a row fits into a pass. Another one computes that prompt before it goes on.
    wishes = [wish(5, None), Wish(text, progress, arrives=2)]
    schedule = Schedule(llm, wishes, pages=18, cost=TwoRows(0))
    steps = iter(schedule)
    while not schedule.steps.scheduler.paused:
        next(steps)
    paused = schedule.sequences[1]
    assert paused.wanted is not None
    assert len(told) > 0
    _keep(schedule, text)
    schedule.sequences[0].cancelled = True
    for _ in steps:
        pass
    result = schedule.results[1]
    assert isinstance(result, Completion)
    assert result.tokens == llm.generate(text, max_tokens=3, ignore_eos=True).tokens


class TwoRows(Costs):
    def __call__(self, rows: int, seen: int = 0) -> float:
        return 1.0 if rows <= 2 else 9.0


def _keep(schedule: Schedule, tokens: list[int]) -> None:
    """Keep a text as if another request had computed it."""
    caches, session = schedule.steps._caches, schedule.llm.session()
    table: Table = []
    session.forward(tokens)
    schedule.pages.grow(table, 0, len(tokens))
    schedule.pages.idle(table)
    assert caches._prefixes is not None
    caches._prefixes.keep(tokens, session, table)


# Pages


@hypothesis.given(data=st.data())
def test_pages_are_counted_as_the_engine_shares_them(data: st.DataObject) -> None:
    """Against a model in which every cache is a list of objects."""
    pages = Pages(10_000)
    caches: list[tuple[Table, list[object], int]] = []  # table, objects, length
    for _ in range(data.draw(st.integers(1, 30))):
        kinds = ["new", "grow", "fork", "cut", "drop"] if caches else ["new"]
        kind = data.draw(st.sampled_from(kinds))
        i = data.draw(st.integers(0, len(caches) - 1)) if caches else 0
        if kind == "new":
            caches.append(([], [], 0))
            continue
        table, objects, length = caches[i]
        if kind == "grow":
            count = data.draw(st.integers(1, 200))
            before, needed = pages.used, pages.missing(table, length, count)
            pages.grow(table, length, count)
            assert pages.used == before + needed
            for index in range(length // PAGE, -(-(length + count) // PAGE)):
                shared = index < len(objects) and sum(
                    any(page is objects[index] for page in other) for _, other, _ in caches
                )
                if index == len(objects):
                    objects.append(object())
                elif shared > 1:
                    objects[index] = object()
            caches[i] = table, objects, length + count
        elif kind == "fork":
            cut = data.draw(st.integers(0, length))
            copy = pages.share(table, cut)
            pages.use(copy)
            caches.append((copy, objects[: -(-cut // PAGE) + 1], cut))
        elif kind == "cut":
            cut = data.draw(st.integers(1, max(1, length)))
            pages.cut(table, cut)
            del objects[-(-cut // PAGE) + 1 :]
            caches[i] = table, objects, min(cut, length)
        else:
            pages.cut(table, 0)
            del caches[i]
        distinct = {id(page) for _, objects, _ in caches for page in objects}
        assert pages.used == pages.busy == len(distinct)


# Prefixes


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Prefixes, Pages, Callable[[list[int]], None]]:
    (tmp_path / "model").write_text("{}")
    model, pages = Model(tmp_path / "model"), Pages(1000)
    prefixes = Prefixes(pages)

    def keep(tokens: list[int], salt: object = None) -> None:
        table: Table = []
        pages.grow(table, 0, len(tokens))
        pages.idle(table)
        prefixes.keep(tokens, Session(model, tokens), table, salt)  # type: ignore[arg-type]

    return prefixes, pages, keep


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    texts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12),
    asked=st.lists(st.integers(0, 2), max_size=10),
    evicted=st.integers(0, 20),
)
def test_the_longest_common_prefix_is_found(
    kept: Any, texts: list[list[int]], asked: list[int], evicted: int
) -> None:
    prefixes, pages, keep = kept
    while prefixes.evict():
        pass
    for text in texts:
        keep(text)
    wanted = max(
        next(
            (i for i, (a, b) in enumerate(zip(text, asked, strict=False)) if a != b),
            min(len(text), len(asked)),
        )
        for text in texts
    )
    found, node = prefixes.find(asked)
    assert found == wanted
    if node is not None:
        session, table = prefixes.take(node, found)
        assert session.tokens == asked[:found]
        pages.cut(table, 0)
    lengths = []
    for _ in range(evicted):
        prefixes.evict()
        lengths.append(prefixes.find(asked)[0])
    assert all(a >= b for a, b in pairwise(lengths))
    while prefixes.evict():
        pass
    assert pages.used == 0


def test_what_was_used_longest_ago_goes_first(kept: Any) -> None:
    prefixes, _, keep = kept
    for text in ([1, 2, 3], [1, 2, 4], [5]):
        keep(text)
    prefixes.find([1, 2, 3])
    for gone in ([1, 2, 4], [5], [1, 2, 3]):
        assert prefixes.find(gone, salt="nobody's") == (0, None)
        assert prefixes.evict()
        left = [t for t in ([1, 2, 3], [1, 2, 4], [5]) if t in _texts(prefixes)]
        assert gone not in left


def _texts(prefixes: Prefixes) -> list[list[int]]:
    """List the leaves of the tree."""
    found: list[list[int]] = []

    def walk(node: Any, before: list[int]) -> None:
        for child in node.children.values():
            walk(child, before + child.tokens)
        if not node.children and before:
            found.append(before)

    for root in prefixes._roots.values():
        walk(root, [])
    return found


# Memory


def test_memory_obeys_control_groups(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 800 kB\n")
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    (groups / "a" / "b").mkdir(parents=True)
    assert available(proc, groups) == 800 * 1024
    (groups / "a" / "memory.max").write_text("500000\n")
    (groups / "a" / "memory.current").write_text("300000\n")
    (groups / "a" / "memory.stat").write_text("anon 1\ninactive_file 50000\n")
    (groups / "a" / "b" / "memory.max").write_text("max\n")
    assert available(proc, groups) == 250_000
    (groups / "memory.max").write_text("1000\n")  # as in a container, where the path is the host's
    (groups / "memory.current").write_text("2000\n")
    assert available(proc, groups) == 0


def test_memory_of_old_control_groups(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("5:cpu:/x\n4:memory,other:/c\n")
    folder = groups / "memory" / "c"
    folder.mkdir(parents=True)
    assert available(proc, groups) == 1 << 30
    (folder / "memory.limit_in_bytes").write_text("9000\n")
    (folder / "memory.usage_in_bytes").write_text("4000\n")
    assert available(proc, groups) == 5000
