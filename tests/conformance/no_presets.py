"""Plugin for llama.cpp's tests of its server: nothing is downloaded before they begin."""

from __future__ import annotations


def pytest_configure() -> None:
    """Leave out the start of every preset, whose models are on Hugging Face."""
    import utils  # type: ignore[import-not-found]  # that of the tests

    utils.ServerPreset.load_all = staticmethod(lambda: None)
