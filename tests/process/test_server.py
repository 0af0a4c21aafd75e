"""Three real processes under real clients: hits, streams, clients that leave, a full pool."""

import concurrent.futures
import json
from pathlib import Path

import openai
import pytest

from tests.process.conftest import Server, eventually, start

pytestmark = pytest.mark.process

TEXT = "When a request arrives the tree is walked from its root; " * 4


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_the_second_turn_hits_the_first(server: Server) -> None:
    with client(server) as api:
        model = api.models.list().data[0].id
        messages = [{"role": "user", "content": TEXT}]
        first = api.chat.completions.create(
            model=model,
            messages=messages,  # type: ignore[arg-type]
            temperature=0,
            max_tokens=40,
            extra_body={"ignore_eos": True},
        )
        assert first.usage and first.usage.prompt_tokens_details
        again = api.chat.completions.create(
            model=model,
            messages=messages,  # type: ignore[arg-type]
            temperature=0,
            max_tokens=40,
            extra_body={"ignore_eos": True},
        )
        assert again.choices[0].message.content == first.choices[0].message.content
        assert again.usage and again.usage.prompt_tokens_details
        cached = again.usage.prompt_tokens_details.cached_tokens
        assert cached == first.usage.prompt_tokens - 1


def test_token_ids_hit_prompt_and_answer(server: Server) -> None:
    prompt = [(7 * i) % 200 + 10 for i in range(45)]
    body = {"prompt": prompt, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    first = server.post("/v1/completions", body).json()
    assert first["usage"]["completion_tokens"] == 30
    longer = body | {"prompt": [*prompt, *prompt]}
    usage = server.post("/v1/completions", longer).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 45


def test_stream_and_whole_answer_agree(server: Server) -> None:
    with client(server) as api:
        model = api.models.list().data[0].id
        ask = {
            "model": model,
            "messages": [{"role": "user", "content": "Write a short story"}],
            "max_tokens": 60,
            "seed": 7,
            "temperature": 1.5,
        }
        whole = api.chat.completions.create(**ask)  # type: ignore[call-overload]
        stream = api.chat.completions.create(  # type: ignore[call-overload]
            **ask, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens >= 0


def test_many_streams_at_once_are_each_right(server: Server) -> None:
    prompts = [f"{i} {TEXT}" for i in range(12)]

    def ask(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 24, "temperature": 0}
        text: str = server.post("/v1/completions", body).json()["choices"][0]["text"]
        return text

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(ask, prompts))
    assert together == [ask(prompt) for prompt in prompts]


def test_a_client_that_leaves_is_noticed(server: Server) -> None:
    aborted = server.metric("radixserve_scheduler_aborted_requests_total")
    body = {"prompt": TEXT, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    assert eventually(
        lambda: server.metric("radixserve_scheduler_aborted_requests_total") == aborted + 1
    )
    assert eventually(lambda: server.metric("radixserve_requests_running") == 0)
    assert server.metric("radixserve_scheduler_aborted_requests_total") == aborted + 1


def test_a_prompt_beyond_the_context_is_refused(server: Server) -> None:
    answer = server.post("/v1/completions", {"prompt": [5] * 600, "max_tokens": 1})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_usage_and_metrics_count_the_same(server: Server) -> None:
    names = ("radixserve_cached_tokens_total", "radixserve_scheduler_cached_tokens_total")
    before = [server.metric(name) for name in names]
    body = {"prompt": [9] * 50, "max_tokens": 2}
    answers = [server.post("/v1/completions", body).json() for _ in range(3)]
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]
    assert cached == [0, 49, 49]
    assert server.metric(names[0]) == before[0] + 98
    assert eventually(lambda: server.metric(names[1]) == before[1] + 98)


def test_at_the_end_all_pages_are_free_or_reclaimable(server: Server) -> None:
    total = server.metric("radixserve_kv_pages")

    def all_back() -> bool:
        free = server.metric("radixserve_kv_pages_free")
        return free + server.metric("radixserve_kv_pages_evictable") == total

    assert eventually(all_back)


def test_the_triton_backend_answers_the_same_end_to_end(checkpoint: Path, server: Server) -> None:
    """Three processes with the kernels in the interpreter: hot = cold = the torch backend."""
    prompt = [(11 * i) % 300 + 7 for i in range(37)]
    body: dict[str, object] = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 0}
    other = start(checkpoint, "--attention-backend", "triton", "--max-total-tokens", "1024")
    try:
        cold, hot = (other.post("/v1/completions", body).json() for _ in range(2))
    finally:
        other.stop()
    torch = server.post("/v1/completions", body).json()
    assert any("triton attention" in line for line in other.log)
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (cold, hot)]
    assert cached == [0, 36]
    for answer in (hot, torch):
        assert answer["choices"][0]["text"] == cold["choices"][0]["text"]
        ours, theirs = (a["choices"][0]["logprobs"]["token_logprobs"] for a in (answer, cold))
        assert ours == pytest.approx(theirs, abs=1e-3)


def test_an_answer_fits_the_schema_that_was_asked_for(server: Server) -> None:
    """Cold, hot, streamed and n times; whoever shares the prefix chooses as before."""
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "n": {"enum": [1, 22, 333]}},
        "required": ["city", "n"],
        "additionalProperties": False,
    }
    named = {"name": "place", "schema": schema, "strict": True}
    body: dict[str, object] = {
        "messages": [{"role": "user", "content": "Where is it, and how many are there of them?"}],
        "max_tokens": 60,
        "seed": 5,
    }
    free = server.post("/v1/chat/completions", body).json()
    fitted = body | {"response_format": {"type": "json_schema", "json_schema": named}, "n": 3}
    answers = [server.post("/v1/chat/completions", fitted).json() for _ in range(2)]
    texts = [[choice["message"]["content"] for choice in a["choices"]] for a in answers]
    assert texts[0] == texts[1], "seeded"
    for text in texts[0]:
        found = json.loads(text)
        assert found["city"] in ("Paris", "Rome") and found["n"] in (1, 22, 333)
    assert {c["finish_reason"] for a in answers for c in a["choices"]} == {"stop"}
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    one = fitted | {"n": 1, "stream": True, "logprobs": True}
    lines = server.post("/v1/chat/completions", one).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    streamed = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert streamed == texts[0][0]
    assert server.post("/v1/chat/completions", body).json()["choices"] == free["choices"]
    wrong = body | {"guided_regex": "(?=a)"}
    assert server.post("/v1/chat/completions", wrong).status_code == 400


def test_loglikelihoods_as_lm_evaluation_harness_asks(server: Server) -> None:
    """Cold, hot, and after the same prompt was cached by an ordinary request."""
    context, rest = [(11 * i) % 400 + 20 for i in range(37)], [77, 78, 79]
    ask = {"temperature": 0, "seed": 1234, "logprobs": 1, "echo": True}
    plain = {"prompt": [*context, *rest], "max_tokens": 4, "temperature": 0}
    assert server.post("/v1/completions", plain).status_code == 200
    found = []
    for most in (0, 1, 1):
        body = ask | {"prompt": [[*context, *rest]] * 2, "max_tokens": most}
        choices = server.post("/v1/completions", body).json()["choices"]
        for choice in choices:
            columns = choice["logprobs"]
            end = len(context) + len(rest)
            assert len(columns["token_logprobs"]) == end + most
            assert columns["token_logprobs"][0] is None and columns["top_logprobs"][0] is None
            tops = columns["top_logprobs"][len(context) : end]
            logprobs = columns["token_logprobs"][len(context) : end]
            assert all(max(top.values()) >= p for top, p in zip(tops, logprobs, strict=True))
            found.append(logprobs)
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=2e-4)
    assert all(p < 0 for p in found[0])
