"""Names on the Hugging Face hub: which files they mean, and fetching them from a local server."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import specrs
from specrs.models.hub import parts, quantised

COMMIT = "0123456789abcdef0123456789abcdef01234567"

FILES = [
    "README.md",
    "mmproj-F16.gguf",
    "imatrix_Q4_K_M.gguf",
    "Big-BF16/Big-BF16-00001-of-00003.gguf",
    "Big-BF16/Big-BF16-00002-of-00003.gguf",
    "Big-BF16/Big-BF16-00003-of-00003.gguf",
    "Big-F16.gguf",
    "Big-Q4_0.gguf",
    "Big-Q4_0_4_4.gguf",
    "Big-Q4_K_M.gguf",
    "Big-UD-Q4_K_XL.gguf",
    "big.q8_0.gguf",
    "Q6_K/Big.gguf",
    "Big-Q5_K_M-pruned.gguf",
    "Big-Q5_K_M.gguf",
    "One-Q3_K_M.gguf",
    "Two-Q3_K_M.gguf",
]


@pytest.mark.parametrize(
    ("quantisation", "file"),
    [
        ("Q4_K_M", "Big-Q4_K_M.gguf"),
        ("q4_k_m", "Big-Q4_K_M.gguf"),
        ("Q4_0", "Big-Q4_0.gguf"),
        ("Q4_K_XL", "Big-UD-Q4_K_XL.gguf"),
        ("UD-Q4_K_XL", "Big-UD-Q4_K_XL.gguf"),
        ("Q8_0", "big.q8_0.gguf"),
        ("F16", "Big-F16.gguf"),
        ("Q6_K", "Q6_K/Big.gguf"),
        ("Q5_K_M", "Big-Q5_K_M.gguf"),
        ("BF16", "Big-BF16/Big-BF16-00001-of-00003.gguf"),
    ],
)
def test_a_quantisation_names_one_model(quantisation: str, file: str) -> None:
    assert quantised(FILES, "o/r", quantisation) == file
    assert quantised(FILES[::-1], "o/r", quantisation) == file


def test_none_or_several_are_listed() -> None:
    with pytest.raises(LookupError, match=r"2 models .* Q3_K_M .*One-Q3_K_M.*Two.*hf:o/r/FILE"):
        quantised(FILES, "o/r", "Q3_K_M")
    with pytest.raises(
        LookupError, match=r"no IQ2_M in .*has Big-BF16-?.*Big-Q4_K_M.gguf"
    ) as error:
        quantised(FILES, "o/r", "IQ2_M")
    assert "mmproj" not in str(error.value)
    with pytest.raises(LookupError, match=r"has no \.gguf file"):
        quantised(["model.safetensors"], "o/r", "Q4_0")


def test_any_part_of_a_split_model_names_all() -> None:
    wanted = [f"a/m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for part in wanted:
        assert parts(part) == wanted
    assert parts("m-Q8_0.gguf") == ["m-Q8_0.gguf"]


@pytest.mark.parametrize(
    "name", ["hf:", "hf:owner", "hf:owner/file.gguf", "hf:owner/repo:", "hf:/r:Q4_0", "hf:o/:Q4_0"]
)
def test_other_forms_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"hf:owner/repo/file\.gguf or hf:owner/repo:Q4_K_M"):
        specrs.pull(name)


def test_without_its_package_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(OSError, match="pip install huggingface_hub"):
        specrs.pull("hf:owner/repo/file.gguf")


class Hub(BaseHTTPRequestHandler):
    """What of the hub's interface a download needs: a listing, and each file with its digest."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        body = self.answer()
        if body is not None:
            self.wfile.write(body)

    def answer(self) -> bytes | None:
        path = self.path.partition("?")[0]
        body = None
        if path in ("/api/models/owner/repo", "/api/models/owner/repo/revision/main"):
            siblings = [{"rfilename": file} for file in FILES]
            body = json.dumps({"id": "owner/repo", "sha": COMMIT, "siblings": siblings}).encode()
        if path == "/api/models/owner/repo/tree/main":
            tree = [{"type": "file", "path": file, "size": 1, "oid": COMMIT} for file in FILES]
            body = json.dumps(tree).encode()
        _, found, file = path.partition("/resolve/main/")
        if path.startswith("/owner/repo/") and found and file in FILES:
            body = f"content of {file}".encode()
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        if body is not None:
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.end_headers()
        return body

    def log_message(self, *_: object) -> None:
        """Be silent."""


# The hub's package reads its environment when it is imported, so each pull has its own process.
PULL = """
import sys, specrs
try:
    print(specrs.pull(sys.argv[1]))
except OSError as error:
    print("refused:", error)
"""


class Puller:
    """Pulls from the local server into a cache of the hub's package."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.offline = False
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __call__(self, name: str) -> str:
        environment = {
            **os.environ,
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(self.cache),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "1" if self.offline else "0",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        command = [sys.executable, "-c", PULL, name]
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def pull(tmp_path: Path) -> Iterator[Puller]:
    pytest.importorskip("huggingface_hub")
    puller = Puller(tmp_path)
    yield puller
    puller.stop()


def test_files_come_from_the_hub_and_then_from_its_cache(pull: Puller) -> None:
    names = {
        "hf:owner/repo/Big-Q4_0.gguf": "Big-Q4_0.gguf",
        "hf:owner/repo:Q4_K_M": "Big-Q4_K_M.gguf",
    }
    found = {name: Path(pull(name)) for name in names}
    for name, file in names.items():
        assert found[name].name == file
        assert found[name].read_text() == f"content of {file}"
    pull.offline = True
    assert {name: Path(pull(name)) for name in names} == found


@pytest.mark.parametrize(
    ("name", "number"), [(":BF16", 1), ("/Big-BF16/Big-BF16-00002-of-00003.gguf", 2)]
)
def test_all_parts_of_a_split_model_are_fetched(pull: Puller, name: str, number: int) -> None:
    path = Path(pull(f"hf:owner/repo{name}"))
    assert path.name == f"Big-BF16-0000{number}-of-00003.gguf"
    assert sorted(part.name for part in path.parent.iterdir()) == [
        f"Big-BF16-0000{i}-of-00003.gguf" for i in (1, 2, 3)
    ]


def test_what_the_hub_lacks_is_an_error(pull: Puller) -> None:
    assert "refused: hf:owner/repo:IQ2_M: there is no IQ2_M in" in pull("hf:owner/repo:IQ2_M")
    assert "could not be fetched" in pull("hf:owner/repo/missing.gguf")
    assert "could not be fetched" in pull("hf:owner/other:Q4_K_M")
    pull.offline = True
    assert "could not be fetched" in pull("hf:owner/repo:Q4_K_M")  # it was not fetched before
