"""The plain part of the API on three real processes."""

import concurrent.futures
import json
import re

import httpx
import pytest

from tests.process.conftest import Server, eventually, start

pytestmark = pytest.mark.process

TEXT = "When a request arrives the tree is walked from its root; " * 3


def cached(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    tokens: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_tokens_are_those_that_are_computed(server: Server) -> None:
    messages: dict[str, object] = {"messages": [{"role": "user", "content": TEXT}]}
    counted = server.post("/tokenize", messages).json()
    rendered = server.post("/v1/chat/completions/render", messages).json()
    asked = server.post("/v1/chat/completions", messages | {"max_tokens": 1}).json()
    assert counted["tokens"] == rendered["token_ids"]
    assert counted["count"] == asked["usage"]["prompt_tokens"]
    assert server.post("/detokenize", {"tokens": counted["tokens"]}).json()["prompt"].count(TEXT)
    ids: dict[str, object] = {"prompt": counted["tokens"], "max_tokens": 1}
    assert cached(server.post("/v1/completions", ids)) == counted["count"] - 1


def test_the_emptied_cache_hits_nothing_while_requests_run(server: Server) -> None:
    salted: dict[str, object] = {"prompt": TEXT, "max_tokens": 4, "cache_salt": "s"}
    plain: dict[str, object] = {"prompt": TEXT, "max_tokens": 4, "temperature": 0}
    running = plain | {"max_tokens": 200, "ignore_eos": True, "prompt": f"again {TEXT}"}
    alone = server.post("/v1/completions", running).json()["choices"][0]["text"]
    for body in (salted, plain):
        server.post("/v1/completions", body)
        assert cached(server.post("/v1/completions", body)) > 0
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        beside = pool.submit(server.post, "/v1/completions", running)
        assert eventually(lambda: server.http.get("/load").json()["server_load"] == 1)
        flushed = server.http.post("/flush_cache").json()
        assert flushed["invalidated_tokens"] > 0
        for body in (salted, plain):
            assert cached(server.post("/v1/completions", body)) == 0
        assert beside.result(60).json()["choices"][0]["text"] == alone
    assert cached(server.post("/v1/completions", plain)) > 0, "stored again"
    assert server.http.post("/reset_prefix_cache").status_code == 200


def test_a_request_is_aborted_by_its_id(server: Server) -> None:
    body = {"prompt": TEXT, "max_tokens": 400, "ignore_eos": True, "stream": True}
    headers = {"x-request-id": "to-be-aborted"}
    with server.http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        assert answer.headers["x-request-id"] == "to-be-aborted"
        lines = answer.iter_lines()
        next(lines)
        aborted = httpx.post(f"{server.url}/abort_request", json={"request_id": "to-be-aborted"})
        assert aborted.json() == {"aborted": 1}
        rest = [line for line in lines if line]
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
    assert eventually(lambda: server.metric("radixserve_requests_running") == 0)
    assert server.http.get("/load").json() == {"server_load": 0}


def test_what_the_server_tells_of_itself(server: Server) -> None:
    assert server.http.head("/").status_code == 200 and server.http.get("/").status_code == 200
    info = server.http.get("/server_info").json()
    (model,) = server.http.get("/v1/models").json()["data"]
    assert info["max_model_len"] == model["max_model_len"] == 512
    assert info["settings"]["worker"]["max_total_tokens"] == 4096
    assert info["max_total_num_tokens"] == info["num_pages"] * info["page_size"] == 4096
    assert info["version"] == server.http.get("/version").json()["version"]
    assert eventually(lambda: server.http.get("/v1/loads").json()["aggregate"]["total_reqs"] == 0)
    assert server.http.get("/ready").status_code == 200
    assert "/v1/completions" in server.http.get("/openapi.json").json()["paths"]
    assert server.http.get("/docs").text.startswith("<!doctype html>")


def test_flags_of_the_surface(checkpoint: object) -> None:
    other = start(
        checkpoint,  # type: ignore[arg-type]
        *("--max-total-tokens", "1024", "--api-key", "k3y", "--default-max-tokens", "5"),
        *("--max-body-bytes", "4096", "--cors-origins", "https://a.example"),
    )
    try:
        headers = {"authorization": "Bearer k3y", "origin": "https://a.example"}
        body = {"prompt": "a secret", "ignore_eos": True}
        answer = other.http.post(
            "/v1/completions", json=body, headers=headers | {"x-request-id": "r-7"}
        )
        assert answer.json()["usage"]["completion_tokens"] == 5
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        long = other.http.post("/v1/completions", json={"prompt": "x" * 5000}, headers=headers)
        assert long.status_code == 413
        assert other.post("/flush_cache", {}).status_code == 401
        assert "k3y" not in other.http.get("/server_info", headers=headers).text
    finally:
        other.stop()
    prompt = answer.json()["usage"]["prompt_tokens"]
    line = rf"POST /v1/completions 200 \d+ ms, {prompt} prompt tokens, 0 cached, r-7"
    assert len([said for said in other.log if re.search(line, said)]) == 1
    assert not any("secret" in said or "k3y" in said for said in other.log)
