"""Responses as places to go on from: prompts of chains, the store's bounds, what is read back."""

from pathlib import Path
from typing import Any

import pytest

from radixserve.api.responses.store import OVERHEAD, ResponseStore, Stored
from tests.api.fakes import Server
from tests.api.responding import RESPONSES, respond, stream

pytestmark = pytest.mark.anyio

USER, ASSISTANT = "<|im_start|>user\n", "<|im_start|>assistant\n"
END = "<|im_end|>\n"
GO: dict[str, Any] = {"type": "function", "name": "go"}
CALL = '<tool_call>{"name":"go","arguments":{"a": 1}}</tool_call>'


@pytest.fixture
def server(folder: Path) -> Server:
    return Server(folder, "Yes", tool_call_parser="hermes", reasoning_parser="hermes")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_is_continued_twice(server: Server, streamed: bool) -> None:
    async with server.client() as client:
        if streamed:
            first = (await stream(client, "one", instructions="Brief."))[-1]["response"]
        else:
            first = await respond(client, "one", instructions="Brief.")
        second = await respond(client, "two", previous_response_id=first["id"])
        trunk = f"{USER}one{END}{ASSISTANT}Yes{END}"
        assert server.prompt == f"<s>{trunk}{USER}two{END}{ASSISTANT}"
        await respond(client, "other", previous_response_id=first["id"], instructions="Long.")
        told = f"<|im_start|>system\nLong.{END}"
        assert server.prompt == f"<s>{told}{trunk}{USER}other{END}{ASSISTANT}"
        await respond(client, "three", previous_response_id=second["id"])
        more = f"{USER}two{END}{ASSISTANT}Yes{END}{USER}three{END}{ASSISTANT}"
        assert server.prompt == f"<s>{trunk}{more}"
    assert second["previous_response_id"] == first["id"]


async def test_calls_and_results_go_on_in_one_conversation(server: Server) -> None:
    server.say(CALL)
    async with server.client() as client:
        first = await respond(client, "go", tools=[GO])
        (call,) = first["output"]
        server.say("Gone")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
        await respond(client, [result], tools=[GO], previous_response_id=first["id"])
        by_chain = server.prompt
        whole = [{"role": "user", "content": "go"}, call, result]
        await respond(client, whole, tools=[GO])
    assert by_chain == server.prompt
    assert f'{ASSISTANT}{{"a": 1}}{END}<|im_start|>tool\nok{END}' in by_chain


async def test_what_is_stored_is_read_again(server: Server) -> None:
    async with server.client() as client:
        made = await respond(client, "one", metadata={"k": "v"})
        path = f"{RESPONSES}/{made['id']}"
        assert (await client.get(path)).json() == made
        assert (await client.head(path)).status_code == 200
        (item,) = (await client.get(f"{path}/input_items")).json()["data"]
        assert (item["role"], item["content"][0]["text"]) == ("user", "one")
        cancelled = await client.post(f"{path}/cancel")
        assert cancelled.status_code == 400
        assert (await client.get(path, params={"stream": "true"})).status_code == 400
        gone = await client.delete(path)
        assert gone.json() == {"id": made["id"], "object": "response", "deleted": True}
        for method, at in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel")):
            missing = await client.request(method, at)
            assert missing.status_code == 404
            assert missing.json()["error"]["code"] == "response_not_found"


async def test_what_is_not_to_be_stored_is_not_there(server: Server) -> None:
    async with server.client() as client:
        made = await respond(client, store=False)
        assert (await client.get(f"{RESPONSES}/{made['id']}")).status_code == 404
        fields = {"input": "x", "previous_response_id": made["id"]}
        for streamed in (False, True):
            got = await client.post(RESPONSES, json=fields | {"stream": streamed})
            error = got.json()["error"]
            assert (got.status_code, error["code"], error["param"]) == (
                404,
                "previous_response_not_found",
                "previous_response_id",
            )


async def test_what_continues_a_deleted_response_stays_whole(server: Server) -> None:
    async with server.client() as client:
        first = await respond(client, "one")
        second = await respond(client, "two", previous_response_id=first["id"])
        await client.delete(f"{RESPONSES}/{first['id']}")
        await respond(client, "three", previous_response_id=second["id"])
        assert f"{USER}one{END}{ASSISTANT}Yes{END}{USER}two" in server.prompt
        got = await client.post(RESPONSES, json={"input": "x", "previous_response_id": first["id"]})
        assert got.status_code == 404


async def test_the_oldest_response_makes_room(folder: Path) -> None:
    server = Server(folder, "Yes", max_stored_responses=2)
    async with server.client() as client:
        made = [await respond(client, str(i)) for i in range(2)]
        assert (await client.get(f"{RESPONSES}/{made[0]['id']}")).status_code == 200
        made.append(await respond(client, "2"))
        found = [(await client.get(f"{RESPONSES}/{r['id']}")).status_code for r in made]
    assert found == [200, 404, 200]


async def test_items_are_referred_to(server: Server) -> None:
    async with server.client() as client:
        made = await respond(client, "one")
        message = {"type": "item_reference", "id": made["output"][0]["id"]}
        one, two = ({"role": "user", "content": text} for text in ("one", "two"))
        await respond(client, [one, message, two])
        assert f"{USER}one{END}{ASSISTANT}Yes{END}{USER}two{END}" in server.prompt
        await client.delete(f"{RESPONSES}/{made['id']}")
        got = await client.post(RESPONSES, json={"input": [one, message, two]})
    assert got.status_code == 404 and got.json()["error"]["param"] == "input[1].id"


async def test_pages_of_input_items(server: Server) -> None:
    async with server.client() as client:
        made = await respond(client, [{"role": "user", "content": t} for t in "abcde"])
        path = f"{RESPONSES}/{made['id']}/input_items"

        async def page(**query: Any) -> tuple[str, bool, str]:
            got = (await client.get(path, params=query)).json()
            said = "".join(item["content"][0]["text"] for item in got["data"])
            return said, got["has_more"], got["last_id"]

        assert (await page())[:2] == ("edcba", False)
        said, more, last = await page(limit=2, order="asc")
        assert (said, more) == ("ab", True)
        assert (await page(limit=3, order="asc", after=last))[:2] == ("cde", False)
        wrong = [{"limit": 0}, {"limit": "x"}, {"limit": 101}, {"order": "up"}, {"after": "no"}]
        for query in wrong:
            got = await client.get(path, params=query)
            assert got.status_code == 400 and got.json()["error"]["param"] in query


def stored(id: str, parent: Stored | None = None, text: str = "") -> Stored:
    output = [{"id": f"msg_{id}", "type": "message", "text": text}]
    return Stored({"id": id, "output": output}, [{"text": id}], parent)


def test_a_chain_costs_its_own_items_and_goes_with_its_last() -> None:
    store = ResponseStore(3)
    nodes: list[Stored] = []
    for i in range(6):
        nodes.append(stored(f"r{i}", nodes[-1] if nodes else None))
        store.add(nodes[-1])
    assert len(store) == 3
    heads = sum(len(node.head) for node in nodes)
    bodies = sum(len(node.input) + len(node.output) + OVERHEAD for node in nodes)
    assert store.num_bytes == heads + bodies and not nodes[0].head and nodes[5].head
    assert [item.get("text") for item in nodes[5].items][::2] == [f"r{i}" for i in range(6)]
    for i in (3, 4):
        assert store.delete(f"r{i}") and not store.delete(f"r{i}")
        assert store.num_bytes > bodies
    with store.hold(nodes[5]):
        assert store.delete("r5")
        assert store.num_bytes == bodies and len(nodes[5].items) == 12
    assert (store.num_bytes, len(store), store.item("msg_r5")) == (0, 0, None)


def test_the_bytes_have_a_bound() -> None:
    store = ResponseStore(100, most_bytes=5 * OVERHEAD)
    root = stored("root")
    store.add(root)
    for i in range(9):
        store.add(stored(f"r{i}", root, "x" * 300))
        assert store.num_bytes <= 5 * OVERHEAD
    assert store.find("root") is None and store.find("r8") is not None
    store.add(stored("huge", None, "x" * 9999))
    assert (len(store), store.num_bytes) == (0, 0)


def test_a_request_keeps_what_it_continues() -> None:
    store = ResponseStore(1)
    first = stored("a")
    store.add(first)
    with store.hold(first):
        store.add(stored("b"))
        assert store.find("a") is None
        store.add(stored("c", first))
    found = store.find("c")
    assert found is not None and len(found.items) == 4
    assert store.num_bytes == first.size + found.size


def test_long_chains_end_without_depth() -> None:
    store = ResponseStore(1)
    last = None
    for i in range(20_000):
        last = stored(str(i), last)
        store.add(last)
    del last
    store.delete("19999")
    assert store.num_bytes == 0
