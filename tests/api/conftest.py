"""One tokenizer folder for all API tests, and asyncio for the async ones."""

from pathlib import Path

import pytest

from tests.tokenizer import folders


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.byte_level(tmp_path_factory.mktemp("model"))
