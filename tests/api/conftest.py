"""One tokenizer folder for all API tests, and asyncio for the async ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.fakes import Server
from tests.api.remembering import KEEPS
from tests.tokenizer import folders


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.byte_level(tmp_path_factory.mktemp("model"))


@pytest.fixture
def serve(folder: Path, tmp_path: Path) -> Callable[..., Server]:
    def made(source: str = KEEPS, **config: Any) -> Server:
        path = tmp_path / "template.jinja"
        path.write_text(source)
        return Server(folder, chat_template=str(path), **{"tool_call_parser": "hermes"} | config)

    return made
