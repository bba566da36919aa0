"""Names: what the package exports, what other engines call an argument, models by their names."""

from __future__ import annotations

import pydoc
import types
from pathlib import Path
from typing import Any

import pytest

import specrs
from fake_engine import toy_llama
from specrs import Llama, Sampling
from specrs.keywords import PEERS
from specrs.options import PLACES

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_llama(monkeypatch, tmp_path / "toy", chat_template="{{ messages[0].content }}")


def test_all_names_are_exported_and_nothing_else() -> None:
    modules = {name for name, value in vars(specrs).items() if isinstance(value, types.ModuleType)}
    public = {name for name in vars(specrs) if not name.startswith("_")} - {"TYPE_CHECKING"}
    late = {"ForcedTokens", "Grammar", "__version__"}  # loaded when they are asked for
    assert public - modules | {"attention"} | late == set(specrs.__all__)
    for name in specrs.__all__:
        assert getattr(specrs, name) is not None
    assert issubclass(specrs.TemplateError, ValueError)


def test_help_shows_what_is_public() -> None:
    shown = pydoc.plain(pydoc.render_doc(specrs))
    assert "__getattr__" not in shown
    for name in ("class Llama", "class Grammar", "class TemplateError", "pull(name"):
        assert name in shown


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("response_format", "'response_format'; it is grammar= here"),
        ("max_new_tokens", "'max_new_tokens'; it is max_tokens= here"),
        ("stop_sequences", "it is stop= here"),
        ("assistant_model", "it is drafter= here"),
        ("repeat_penalty", r"it belongs to sampling=specrs.Sampling\(repetition_penalty=...\)"),
        ("temperature", r"it belongs to sampling=specrs.Sampling\(temperature=...\)"),
        ("n_threads", r"it belongs to specrs.Llama\(threads=...\)"),
        ("enable_thinking", r"it belongs to chat\(template_variables=...\) and its like"),
        ("never_heard_of", r"'never_heard_of'$"),
    ],
)
@pytest.mark.parametrize("method", ["generate", "stream"])
def test_a_keyword_of_another_engine_gets_ours(
    llm: Llama, method: str, name: str, words: str
) -> None:
    with pytest.raises(TypeError, match=rf"^{method}\(\) got an unexpected .*{words}"):
        getattr(llm, method)("abc", **{name: 1})


def test_keywords_of_chats_and_of_loading_get_ours_too(llm: Llama) -> None:
    options: dict[str, Any] = {"chat_template_kwargs": {}}
    with pytest.raises(TypeError, match=r"^chat\(\) .* it is template_variables= here"):
        llm.chat(HI, **options)
    options = {"n_threads": 4}
    with pytest.raises(TypeError, match=r"^Llama\(\) got .* 'n_threads'; it is threads= here"):
        Llama(llm.path, **options)
    options = {"max_tokens": 4}
    with pytest.raises(TypeError, match=r"it belongs to generate\(max_tokens=...\) and its like"):
        Llama(llm.path, **options)
    options = {"max_new_tokens": 4}
    with pytest.raises(TypeError, match=r"^generate_many\(\) .* it is max_tokens= here"):
        llm.generate_many(["abc"], **options)


def test_no_name_of_ours_is_taken_for_one_of_others() -> None:
    ours = {name for names in PLACES.values() for name in names}
    own = ours - {"draft_length"}
    assert not own & set(PEERS)


def test_settings_of_the_draw_at_temperature_0_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="so top_k and seed will do nothing") as caught:
        Sampling(top_k=5, seed=3)
    assert caught[0].filename == __file__
    Sampling(top_k=5, seed=3, temperature=0.5)
    Sampling(seed=None, repetition_penalty=1.1)
    with pytest.warns(UserWarning, match="so min_p will"):
        fresh = Sampling(min_p=0.1, seed=None)
    assert fresh.seeded().seed is not None  # and no second warning


def test_a_name_loads_the_model_that_pull_knows(
    llm: Llama, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[object] = []

    def pull(name: object) -> Path:
        asked.append(name)
        return llm.path

    monkeypatch.setattr("specrs.llama.pull", pull)
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2-135m", "hf:owner/repo:Q4_0"):
        assert Llama(name).path == llm.path
    assert asked == ["smollm2-135m", "hf:owner/repo:Q4_0"]
    assert Llama(llm.path).path == llm.path
    assert len(asked) == 2  # a file is not asked for
    monkeypatch.undo()
    with pytest.raises(ValueError, match="unknown model 'gpt-9'; known names are smollm2-135m"):
        Llama("gpt-9")
    with pytest.raises(FileNotFoundError, match=r"missing\.gguf: no such file"):
        Llama("missing.gguf")


def test_a_closed_model_says_so(llm: Llama) -> None:
    session = llm.session()
    stream = llm.stream("abc", max_tokens=5)
    with llm as same:
        assert same is llm
        text = llm.generate("abc", max_tokens=5).text
    for call in (lambda: llm.generate("abc"), llm.session, lambda: llm.score("abc")):
        with pytest.raises(RuntimeError, match=r"Llama\(.*\) is closed; load it again"):
            call()
    # What runs goes on.
    assert stream.collect().text == text
    session.forward([5, 6])
    llm.close()
