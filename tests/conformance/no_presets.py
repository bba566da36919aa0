"""Plugin for llama.cpp's tests of its server: no downloads, and one test that is not skipped."""

from __future__ import annotations

import pytest


def pytest_configure() -> None:
    """Leave out the start of every preset, whose models are on Hugging Face."""
    import utils  # type: ignore[import-not-found]  # that of the tests

    utils.ServerPreset.load_all = staticmethod(lambda: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what is skipped there because texts differ with a cache: here they must not."""
    for item in items:
        if item.name == "test_cache_vs_nocache_prompt":
            item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]
