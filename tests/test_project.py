"""The shape of the project: sizes, import arrows, unsafe code, light import, README."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUST = ROOT / "rust"
PYTHON = ROOT / "python" / "specrs"

MAX_LINES = 420

# The modules of the package and of its folders in the order of the flow: each imports only those
# before it, and what it imports from another folder stands in a folder before its own.
PYTHON_ORDER = {
    "": [
        "_specrs",
        "arguments",
        "keywords",
        "files",
        "structured",
        "sampling",
        "attention",
        "speculation",
        "decoding",
        "text",
        "completion",
        "chat",
        "models",
        "options",
        "scoring",
        "serving",
        "llama",
        "__init__",
        "server",
        "cli",
        "__main__",
    ],
    "structured": ["grammar", "constraint", "compiler", "__init__"],
    "attention": ["patterns", "choice", "fidelity", "compare", "__init__"],
    "decoding": ["verify", "step", "loop", "generate", "stats", "trace", "replay", "__init__"],
    "chat": [
        "origin",
        "sandbox",
        "rendering",
        "worker",
        "process",
        "template",
        "messages",
        "tools",
        "formats",
        "cursor",
        "parameters",
        "reading",
        "forced",
        "tokens",
        "format",
        "__init__",
    ],
    "scoring": ["score", "texts", "evaluate", "methods", "__init__"],
    "serving": [
        "pages",
        "memory",
        "cost",
        "prefixes",
        "sequence",
        "caches",
        "drafts",
        "scheduler",
        "step",
        "request",
        "batch",
        "many",
        "texts",
        "__init__",
    ],
    "models": ["known", "cache", "packages", "hub", "__init__"],
}
# fmt: off
PYTHON_ORDER["speculation"] = [
    "drafters", "suffix", "draft_model", "forced", "length", "propose", "costs",
    "adaptive", "__init__",
]
PYTHON_ORDER["cli"] = [
    "display", "options", "decoding", "conversation", "chat", "files", "lines",
    "generate", "score", "demo", "bench", "measure", "serve", "app", "__init__",
]
PYTHON_ORDER["server"] = [
    "settings", "errors", "parameters", "metrics", "engine", "exchange", "logprobs",
    "replies", "choices", "options", "structured", "chat", "completions", "tokens",
    "native", "access", "app", "connections", "process", "__init__",
]
# fmt: on

# Of the standard library: loaded when they are needed, never by `import specrs`.
HEAVY_MODULES = {"asyncio", "email", "hashlib", "http.client", "importlib.metadata", "subprocess"}
HEAVY_MODULES |= {"tempfile", "zipfile"}


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


# A module by its folder, "" for the package itself, and its name, "__init__" for the first file.
Place = tuple[str, str]


def python_place(name: str) -> Place:
    """Find the module, or the module of the object, that a dotted name within the package names."""
    first, _, rest = name.partition(".")
    if first in PYTHON_ORDER:
        inner = rest.partition(".")[0]
        return first, inner if inner in PYTHON_ORDER[first] else "__init__"
    return "", first if first in PYTHON_ORDER[""] else "__init__"


def imported_modules(source: str, folder: str) -> set[Place]:
    """Name the modules of the package that a file in `folder` imports, anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = ["specrs", folder] if folder else ["specrs"]
            origin = inside[: len(inside) + 1 - node.level] if node.level else []
            module = [*origin, *filter(None, [node.module])]
            names += [".".join([*module, alias.name]) for alias in node.names]
    own = [name for name in names if name.split(".")[0] == "specrs"]
    return {python_place(name.removeprefix("specrs").removeprefix(".")) for name in own}


def stands_before(imported: Place, place: Place) -> bool:
    """Whether the module at `place` may import the other."""
    if imported[0] == place[0]:
        order, a, b = PYTHON_ORDER[place[0]], imported[1], place[1]
    else:
        order, a, b = PYTHON_ORDER[""], imported[0] or imported[1], place[0] or place[1]
    return order.index(a) < order.index(b)


def python_modules() -> list[Path]:
    """List the modules of the package."""
    return sorted(PYTHON.rglob("*.py"))


def test_every_python_module_has_its_place() -> None:
    found: dict[str, set[str]] = {"": {"_specrs", *(set(PYTHON_ORDER) - {""})}}
    for path in python_modules():
        folder = ".".join(path.relative_to(PYTHON).parent.parts)
        found.setdefault(folder, set()).add(path.stem)
    assert found == {folder: set(names) for folder, names in PYTHON_ORDER.items()}, (
        "give the module its place in PYTHON_ORDER, where the data passes it"
    )


@pytest.mark.parametrize(
    "path", python_modules(), ids=lambda path: str(path.relative_to(PYTHON).with_suffix(""))
)
def test_python_modules_import_one_way(path: Path) -> None:
    folder = ".".join(path.relative_to(PYTHON).parent.parts)
    place = folder, path.stem
    imported = imported_modules(path.read_text(), folder) - {place}
    later = [other for other in sorted(imported) if not stands_before(other, place)]
    assert not later, f"{path.stem} imports what stands after it"


@pytest.mark.parametrize(
    ("place", "code", "allowed"),
    [
        (("decoding", "replay"), "from .stats import Stats", True),
        (("decoding", "stats"), "from .replay import replay", False),
        (("decoding", "stats"), "from . import replay", False),
        (("decoding", "verify"), "from ..speculation.length import FixedLength", True),
        (("speculation", "length"), "from ..decoding.verify import verify", False),
        (("speculation", "length"), "def f():\n    import specrs.decoding.verify", False),
        (("speculation", "length"), "from ..sampling import Sampling", True),
        (("", "sampling"), "from .speculation.length import FixedLength", False),
        (("", "llama"), "from . import attention", True),
        (("attention", "compare"), "from . import Pattern", False),
        (("", "llama"), "import specrs", False),
        (("cli", "app"), "import specrs", True),
    ],
)
def test_imports_against_the_order_are_seen(place: Place, code: str, allowed: bool) -> None:
    (imported,) = imported_modules(code, place[0])
    assert stands_before(imported, place) == allowed


# A module of tests in a file of its own.
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:pub\S* )?mod (\w+);")


def rust_module(path: Path, root: Path) -> tuple[str, ...]:
    """Return the path of a file's module in the crate; lib.rs and mod.rs stand for their folder."""
    parts = path.relative_to(root).with_suffix("").parts
    return parts[:-1] if parts[-1] in ("lib", "mod") else parts


def imported_paths(code: str) -> Iterator[tuple[str, ...]]:
    """List the paths from `crate`, `self` or `super` in Rust code, those in braces spelled out."""
    for used in re.findall(r"\b(?:crate|self|super)(?:::\w+)*(?:::\{[^;]*\};)?", code):
        opened: list[tuple[str, ...]] = [()]  # what each open brace continues
        path = opened[-1]
        for word in re.findall(r"\w+|[{},]", used):
            if word == "{":
                opened.append(path)
            elif word in "},":
                yield path
                path = opened.pop() if word == "}" else opened[-1]
            else:
                path = (*path, word)
        yield path


def resolved(path: tuple[str, ...], module: tuple[str, ...]) -> tuple[str, ...]:
    """Return `path`, as it stands in `module`, from the top of the crate."""
    base = () if path[0] == "crate" else module
    for word in path:
        if word == "super":
            base = base[:-1]
    return base + tuple(word for word in path if word not in ("crate", "self", "super"))


def rust_imports_against_the_order(root: Path) -> list[str]:
    """Name every import of what lib.rs, or the mod.rs of a folder, declares later.

    Modules of tests may import anything.
    """
    sources = {rust_module(path, root): path.read_text() for path in root.rglob("*.rs")}
    tests = {
        (*module, name) for module, text in sources.items() for name in TEST_MODULE.findall(text)
    }
    folders = {rust_module(path, root) for path in root.rglob("mod.rs")} | {()}
    order = {
        folder: re.findall(r"^(?:pub\S* )?mod (\w+);", without_tests(sources[folder]), re.M)
        for folder in folders
    }
    wrong = set()
    for module, text in sources.items():
        if any(module[:depth] in tests for depth in range(len(module) + 1)):
            continue
        for path in imported_paths(without_tests(text)):
            imported = resolved(path, module)
            shared = next(
                (i for i, (a, b) in enumerate(zip(module, imported, strict=False)) if a != b), None
            )
            if shared is None:  # the module itself, or a folder that it stands in
                continue
            declared, own = order.get(module[:shared], []), module[shared]
            later = declared[declared.index(own) + 1 :] if own in declared else []
            if imported[shared] in later:
                wrong.add(f"{'::'.join(module)} imports {'::'.join(imported[: shared + 1])}")
    return sorted(wrong)


def test_rust_modules_import_one_way() -> None:
    assert not rust_imports_against_the_order(RUST)


@pytest.mark.parametrize(
    ("file", "code", "allowed"),
    [
        ("b.rs", "use crate::a::x;", True),
        ("a/mod.rs", "fn f() { crate::b::x() }", False),
        ("a/early.rs", "use crate::{b::x, error};", False),
        ("a/late.rs", "use super::early::x;", True),
        ("a/early.rs", "use super::late::x;", False),
        ("a/early.rs", "use crate::a::{late::{x, y}, z};", False),
        ("a/early.rs", "use super::{z, late};", False),
        ("a/early.rs", "use super::z;", True),
        ("a/inner/first.rs", "use super::super::early::x;", True),
        ("a/inner/first.rs", "use super::super::late::x;", False),
        ("a/inner/first.rs", "use super::second::x;", False),
        ("a/early.rs", "#[cfg(test)]\nmod tests {\n use super::super::late::x;\n}", True),
        ("a/early.rs", "#[cfg(test)]\nmod tests;\nuse super::late::x;", False),
        ("a/early/tests.rs", "use crate::a::late::x;", True),
        ("a/early.rs", "// As [`super::late`].", True),
    ],
)
def test_rust_imports_against_the_order_are_seen(
    tmp_path: Path, file: str, code: str, allowed: bool
) -> None:
    crate = {
        "lib.rs": "pub mod error;\npub mod a;\npub mod b;",
        "a/mod.rs": "pub(crate) mod early;\n#[cfg(unix)]\nmod inner;\nmod late;\nfn z() {}",
        "a/inner/mod.rs": "mod first;\nmod second;",
        "a/early.rs": "#[cfg(test)]\nmod tests;",
    }
    for name, text in {**crate, file: crate.get(file, "") + "\n" + code}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (not rust_imports_against_the_order(tmp_path)) == allowed


def without_tests(rust: str) -> str:
    """Cut comments and tests from a Rust file: both may look anywhere."""
    code = TEST_MODULE.sub("", re.sub(r"//.*", "", rust))
    # One that stands here ends the file.
    return re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", code)[0]


def test_tensors_are_named_in_one_place() -> None:
    """In Rust and in Python one file has the names; all but tests of messages ask it."""
    stem = r"token_embd|output_norm|output(?=\.weight)|rope_freqs"
    stem += r"|attn_(?:norm|q|k|v|output)|ffn_(?:norm|gate|up|down)"
    quoted = re.compile(rf"[\"`](?:[^\"`\n]*\.)?(?:{stem})(?:\.weight)?[\"`]")
    benches = ROOT / "benches"
    rust = [*RUST.rglob("*.rs"), *benches.rglob("*.rs"), *(ROOT / "tests").rglob("*.rs")]
    rust = [path for path in rust if path.name != "tests.rs"]
    python = [*benches.glob("*.py"), *(ROOT / "tests").glob("*.py")]
    python = [path for path in python if path.name not in {"fake_engine.py", "test_gguf.py"}]
    naming = {path for path in (*rust, *python) if quoted.search(without_tests(path.read_text()))}
    assert naming == {RUST / "arch/roles.rs", ROOT / "tests/tensors.py"}


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
    """What `import specrs` loads is what it costs: no other package, little of the library."""
    new = "import sys; old = {*sys.modules}; import specrs; print(*{*sys.modules} - old)"
    loaded = set(run_python(new).split())
    packages = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert packages == {"specrs"}
    assert not loaded & HEAVY_MODULES
    assert len({name for name in loaded if name.partition(".")[0] != "specrs"}) < 75


def test_help_is_light() -> None:
    """`specrs --help` loads neither numpy nor what draws in a terminal."""
    asked = (
        "import sys; sys.argv = ['specrs', '--help']\n"
        "from specrs import cli\n"
        "try: cli.main()\n"
        "except SystemExit: print(*sys.modules)"
    )
    loaded = set(run_python(asked).splitlines()[-1].split())
    assert "specrs.cli" in loaded
    assert not loaded & {"jinja2", "numpy", "platformdirs", "rich"}
    assert len(loaded) < 260


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_import_starts_no_threads() -> None:
    count = "import {}, os; print(len(os.listdir('/proc/self/task')))"
    assert int(run_python(count.format("specrs"))) <= int(run_python(count.format("numpy")))


@pytest.mark.parametrize(
    "command", ["pip install . && specrs demo", "pip install -e '.[test]' && pytest"]
)
def test_readme_has_the_two_commands(command: str) -> None:
    assert command in (ROOT / "README.md").read_text().splitlines()
