"""The shape of the project: sizes, import arrows, unsafe code, light import, README."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUST = ROOT / "rust"
PYTHON = ROOT / "python" / "specrs"

MAX_LINES = 420

# Every module of the package in the order of the flow: each imports only those before it.
PYTHON_ORDER = [
    "_specrs",
    "arguments",
    "sampling",
    "verify",
    "drafters",
    "suffix_decoding",
    "draft_model",
    "length",
    "fidelity",
    "patterns",
    "attention",
    "costs",
    "adaptive",
    "generate",
    "stats",
    "trace",
    "replay",
    "text",
    "chat",
    "models",
    "llama",
    "bench",
    "__init__",
    "display",
    "options",
    "cli",
    "__main__",
]

# Loaded when they are needed, never by `import specrs`.
HEAVY_MODULES = ["gguf", "huggingface_hub", "jinja2", "platformdirs", "rich", "typer"]


def sources() -> list[Path]:
    """List every source file of the project."""
    folders = {"rust": "*.rs", "python": "*.py*", "tests": "*.py", "benches": "*.*"}
    found = [path for folder, glob in folders.items() for path in (ROOT / folder).rglob(glob)]
    return [path for path in found if path.suffix in {".rs", ".py", ".pyi"}]


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in sources()}
    assert len(lengths) > 20, "the project's sources were not found"
    too_long = {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > MAX_LINES}
    assert not too_long


def imported_modules(path: Path) -> set[str]:
    """Name the modules of the package that `path` imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = "specrs" if node.level else ""
            module = ".".join(filter(None, [origin, node.module]))
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    names = {name.removeprefix("specrs.") for name in found if name.startswith("specrs")}
    return {("__init__" if name == "specrs" else name).split(".")[0] for name in names}


def python_modules() -> list[Path]:
    """List the modules of the package."""
    return sorted(PYTHON.glob("*.py"))


def test_every_python_module_has_its_place() -> None:
    unknown = {path.stem for path in python_modules()} - set(PYTHON_ORDER)
    assert not unknown, "add the module to PYTHON_ORDER, where the data passes it"


@pytest.mark.parametrize("path", python_modules(), ids=lambda path: path.stem)
def test_python_modules_import_one_way(path: Path) -> None:
    place = PYTHON_ORDER.index(path.stem)
    known = imported_modules(path) & set(PYTHON_ORDER)
    # `from . import x` names the package too; only the modules it asks for count.
    later = known - set(PYTHON_ORDER[:place]) - ({"__init__"} if len(known) > 1 else set())
    assert not later, f"{path.stem} imports what stands after it"


def rust_order() -> list[str]:
    """List the crate's modules in the order in which lib.rs declares them, those of tests apart."""
    declared = re.sub(r"#\[cfg\(test\)\]\nmod \w+;", "", (RUST / "lib.rs").read_text())
    return re.findall(r"^(?:pub(?:\([^)]*\))? )?mod (\w+);", declared, re.M)


def test_rust_modules_import_one_way() -> None:
    order = rust_order()
    assert "error" in order
    for module in order:
        files = [*RUST.glob(f"{module}.rs"), *(RUST / module).rglob("*.rs")]
        assert files, module
        code = [path for path in files if path.name != "tests.rs"]
        text = "\n".join(without_tests(path.read_text()) for path in code)
        direct = re.findall(r"\bcrate::(\w+)", text)
        grouped = re.findall(r"\bcrate::\{([^;]*)\};", text)
        named = {*direct, *(name for group in grouped for name in re.findall(r"\w+", group))}
        later = named & set(order[order.index(module) + 1 :])
        assert not later, f"rust/{module} imports what stands after it"


def without_tests(rust: str) -> str:
    """Cut comments and the test module that ends a Rust file: both may look anywhere."""
    code = re.sub(r"//.*", "", rust)
    # A module of tests in a file of its own is only named; one that stands here ends the file.
    code = re.sub(r"#\[cfg\(test\)\]\s*mod \w+;", "", code)
    return re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", code)[0]


def test_unsafe_stays_in_its_places() -> None:
    allowed = [RUST / "kernels", RUST / "workers", RUST / "gguf" / "mapping.rs"]
    using = set()
    for path in [*RUST.rglob("*.rs"), *(ROOT / "benches").rglob("*.rs")]:
        code = re.sub(r"//.*|\"(?:[^\"\\]|\\.)*\"", "", path.read_text())
        if re.search(r"\bunsafe\b", code):
            using.add(path)
    outside = {path for path in using if not any(path.is_relative_to(place) for place in allowed)}
    assert using, "no unsafe code was found at all: this test looks in the wrong place"
    assert not outside


def run_python(code: str) -> str:
    """Run `code` in a new interpreter, away from the sources."""
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    return finished.stdout.strip()


def test_import_is_light() -> None:
    loaded = run_python("import specrs, sys; print(*sys.modules)").split()
    assert "specrs" in loaded
    assert not set(HEAVY_MODULES) & set(loaded)


def test_import_is_quick() -> None:
    """`import specrs` takes under 150 ms, numpy included (median of 7; the interpreter apart)."""
    timed = "from time import perf_counter as t; a = t(); import specrs; print(t() - a)"
    run_python(timed)  # byte code and file cache
    assert statistics.median(float(run_python(timed)) for _ in range(7)) < 0.150


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_import_starts_no_threads() -> None:
    count = "import {}, os; print(len(os.listdir('/proc/self/task')))"
    assert int(run_python(count.format("specrs"))) <= int(run_python(count.format("numpy")))


def test_imports_are_seen_after_the_name_of_a_test_module() -> None:
    named = "#[cfg(test)]\nmod tests;\nuse crate::late;"
    inside = "use crate::early;\n#[cfg(test)]\nmod tests {\n use crate::late;\n}"
    assert "late" in without_tests(named)
    assert "early" in without_tests(inside)
    assert "late" not in without_tests(inside)


@pytest.mark.parametrize(
    "command", ["pip install . && specrs demo", "pip install -e '.[test]' && pytest"]
)
def test_readme_has_the_two_commands(command: str) -> None:
    assert command in (ROOT / "README.md").read_text().splitlines()


def readme_blocks() -> list[str]:
    """List the Python blocks of README.md."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_readme_code_runs(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert smollm2.exists()
    names: dict[str, object] = {}
    blocks = readme_blocks()
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    assert "tokens per call" in capsys.readouterr().out
