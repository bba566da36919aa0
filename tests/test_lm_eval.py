"""`examples/lm_eval_specrs.py`: the harness gets what the model's own calls give."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specrs import Llama

EXAMPLE = Path(__file__).parent.parent / "examples" / "lm_eval_specrs.py"

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed"
    ),
    pytest.mark.filterwarnings("default"),  # of the harness and what it loads
]


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("lm_eval_specrs", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def model(example: ModuleType, tiny: Callable[..., Path], threads: int) -> Any:
    return example.SpecrsLM(str(tiny(n_ctx=64)), threads=threads, batch_size=1, max_gen_toks=8)


def requests(kind: str, *arguments: Any) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, one, i) for i, one in enumerate(arguments)]


def test_loglikelihoods_are_scores(model: Any) -> None:
    llm: Llama = model.llm
    asked = [("the cat", " sat"), ("the cat ", "sat"), ("the cat", " mat"), ("", "the cat")]
    answers = model.loglikelihood(requests("loglikelihood", *asked))
    for (context, continuation), (total, greedy) in zip(asked[:3], answers, strict=False):
        score = llm.score(context, continuation)
        assert (total, greedy) == (score.total, score.is_greedy)
    assert answers[0] == answers[1]
    assert answers[3][0] == llm.score([model.prefix_token_id], llm.tokenize("the cat")).total


def test_a_context_that_is_too_long_loses_its_beginning(model: Any) -> None:
    llm: Llama = model.llm
    context, continuation = "the cat sat on the mat and " * 20, "the world"
    ids, following = model.encode_pair(context, continuation)
    assert len(ids) > 64
    ((total, _),) = model.loglikelihood(requests("loglikelihood", (context, continuation)))
    assert total == llm.score(ids[-(65 - len(following)) :], following).total


def test_rolling_takes_every_token_once(model: Any) -> None:
    llm: Llama = model.llm
    short, long = "the cat sat", "the cat sat on the mat and the world " * 9
    first, second = model.loglikelihood_rolling(
        requests("loglikelihood_rolling", (short,), (long,))
    )
    assert first == llm.score([model.prefix_token_id], llm.tokenize(short)).total
    ids = llm.tokenize(long)
    assert len(ids) > 128
    begun = llm.score([model.prefix_token_id], ids[:64]).total
    begun += llm.score(ids[63:64], ids[64:128]).total
    rest = len(ids) - 128
    assert rest <= 64
    assert second == pytest.approx(begun + llm.score(ids[-65:-rest], ids[-rest:]).total)


def test_texts_end_at_their_stops(model: Any) -> None:
    llm: Llama = model.llm
    asked = [
        ("the cat", {"until": ["\n"], "max_gen_toks": 12}),
        ("the mat", {"until": [], "do_sample": False, "temperature": 0.7}),
        ("the cat", {"until": ["a", "e"], "max_gen_toks": 12}),
        ("on", {"until": [], "do_sample": True, "temperature": 0.7}),
    ]
    texts = model.generate_until(requests("generate_until", *asked))
    options: list[dict[str, Any]] = [
        {"max_tokens": 12, "stop": "\n"},
        {"max_tokens": 8},
        {"max_tokens": 12, "stop": ["a", "e"]},
    ]
    for (context, _), option, text in zip(asked, options, texts, strict=False):
        assert text == llm.generate(llm.tokenize(context), **option).text
    with pytest.raises(ValueError, match="num_beams, which specrs has not"):
        model.generate_until(requests("generate_until", ("a", {"num_beams": 4})))


def test_a_conversation_becomes_the_ids_of_its_template(model: Any) -> None:
    llm: Llama = model.llm
    messages = [{"role": "user", "content": "the cat"}]
    text = model.apply_chat_template(messages)
    assert model.encode(text) == llm.chat_tokens(messages)
    begun = [*messages, {"role": "assistant", "content": "the mat"}]
    assert model.apply_chat_template(begun, add_generation_prompt=False).endswith("the mat")


def test_the_harness_runs_a_task(model: Any, tmp_path: Path) -> None:
    """From a file of its own: two questions, of which scores of the choices decide."""
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    (tmp_path / "questions.jsonl").write_text(
        '{"question": "the cat sat on the", "choices": ["mat", "world"], "answer": 0}\n'
        '{"question": "the world and the", "choices": ["mat", "cat"], "answer": 1}\n'
    )
    (tmp_path / "task.yaml").write_text(
        f"""
task: two_questions
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path}/questions.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
    )
    found = lm_eval.simple_evaluate(
        model=model,
        tasks=["two_questions"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    llm: Llama = model.llm
    right = 0
    for question, choices, answer in (
        ("the cat sat on the", ["mat", "world"], 0),
        ("the world and the", ["mat", "cat"], 1),
    ):
        scores = llm.score(question, [f" {choice}" for choice in choices])
        right += max(range(2), key=lambda i: scores[i].total) == answer
    assert found["results"]["two_questions"]["acc,none"] == right / 2
