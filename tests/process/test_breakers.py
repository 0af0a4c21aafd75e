"""What clients do between two turns, on a real server: the cached tokens before and after."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import breakers
from bench.breakers import OFF, TEMPLATE, Turns
from tests.checkpoints import tiny_checkpoint
from tests.process.conftest import start

FLAGS = ("--chat-template", str(TEMPLATE), "--reasoning-parser", "hermes")
HARMLESS = (  # to any server that renders and reuses exactly
    "cache marker that moves (Claude Code)",
    "content as a list of parts (Qwen Code)",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("breakers"), max_position_embeddings=4096)


def measured(folder: Path, *flags: str) -> Iterator[dict[str, Turns]]:
    server = start(folder, "--max-total-tokens", "65536", *FLAGS, *flags)
    try:
        yield breakers.measure(server.url)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def before(folder: Path) -> Iterator[dict[str, Turns]]:
    yield from measured(folder, *OFF)


@pytest.fixture(scope="module")
def after(folder: Path) -> Iterator[dict[str, Turns]]:
    yield from measured(folder)


@pytest.mark.parametrize("name", breakers.BREAKERS)
def test_a_breaker_breaks_nothing(
    name: str, before: dict[str, Turns], after: dict[str, Turns]
) -> None:
    """Without what is done about it each but the harmless ones costs the answer, or all."""
    now, then = after[name], before[name]
    stripped = name == "reasoning stripped by the template"
    assert now.cached >= (now.second - 16 if stripped else now.whole)
    assert name in HARMLESS or then.cached < now.cached
    assert then.second >= now.prompt
