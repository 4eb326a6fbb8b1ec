"""Engines that the tests of a module share: compiling one takes seconds."""

from pathlib import Path

import pytest

from jpaged import LLM
from tests.engine.tiny import tiny_llm
from tests.engine.tiny_text import write_text_model


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny checkpoint with a tokenizer and a chat template."""
    return write_text_model(tmp_path_factory.mktemp("text") / "model")


@pytest.fixture(scope="module")
def shared_llm(text_model: Path) -> LLM:
    """An engine that reads and writes text: 8 sequences of 64 tokens, 40 pages of 4."""
    return tiny_llm(str(text_model), num_pages=40, page_size=4)


@pytest.fixture
def llm(shared_llm: LLM):
    """The module's engine; whatever a test does, it must leave it idle and whole."""
    yield shared_llm
    assert not shared_llm.engine.has_unfinished
    assert shared_llm.stats()["pages_free"] == shared_llm.stats()["pages_total"]
    shared_llm.engine.scheduler.check()
