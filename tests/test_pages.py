"""The Python of README and docs runs as it stands, on the real model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import specrs

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
# What a page's code prints, where it prints.
WORDS = {
    "README.md": "tokens per call",
    "docs/index.md": "Paris",
    "docs/chat.md": "bits per byte",
    "docs/batch.md": "passes for",
    "docs/structured.md": "tokens were forced",
    "docs/speculation.md": "tokens in the time of a plain step",
}
# Pages that tell of a model and texts of the reader's own are given them.
GIVEN = {"docs/speculation.md", "docs/sparse.md"}
# Pages whose code wants what this test does not have; other tests do the same.
NOT_HERE = {"docs/server.md": "a running server", "docs/models.md": "a mixture of experts"}


def blocks(page: str) -> list[str]:
    """Return the blocks of Python on a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)


@pytest.mark.once
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_code_of_pages_runs(
    smollm2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    page: str,
) -> None:
    if page in NOT_HERE:
        pytest.skip(f"the code of {page} needs {NOT_HERE[page]}")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    if page in GIVEN:
        llm = specrs.Llama(smollm2)
        prompt = "Once upon a time"
        names = {"specrs": specrs, "llm": llm, "prompt": prompt, "path": tmp_path / "corpus.json"}
        names |= {"long_prompt": "word " * 300, "session": llm.session()}
        names["tokens"] = llm.tokenize(prompt)
    for block in blocks(page):
        exec(block, names)
    assert WORDS.get(page, "") in capsys.readouterr().out


def test_pages_have_code() -> None:
    assert set(WORDS) | GIVEN | set(NOT_HERE) <= {page for page in PAGES if blocks(page)}
