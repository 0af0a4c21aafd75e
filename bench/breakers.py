"""What clients do to a conversation between two turns, and what the second turn still hits.

    python -m bench.breakers

Starts a server twice, without and with what keeps prefixes whole (`--history-tokens`, dropped
nonces), and plays each breaker as its clients were seen to do: two turns, and of the second one the
cached tokens. At most the first prompt and its answer can be. Answers are forced by grammars, so
that the model at hand does not matter.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

TEMPLATE = Path(__file__).with_name("breakers.jinja")
OFF = ("--history-tokens", "0", "--keep-known-nonces")
THOUGHT = r"<think>\n[a-z ]{60,80}\n</think>\n\n[a-z ]{30,40}"
PLAIN = r"[a-z ]{60,80}"
NONCE = "x-anthropic-billing-header: cc_version=2.1.197.{}; cc_entrypoint=cli;"
RULES = "Answer in short and simple words. Say only what you know, and say so if you do not. " * 4
LOOK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[a-z]{12}$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"name": "look_up_the_weather", "description": "The weather of some days."}
AHEAD_SECONDS = 20.0  # longest that computing ahead may take

Message = dict[str, Any]


@dataclass(frozen=True)
class Turns:
    """Tokens: of the first prompt and its answer, then of the second prompt, and its hits."""

    prompt: int
    answer: int
    second: int
    cached: int

    @property
    def whole(self) -> int:
        """All but the token that was sampled last, whose K/V may not be computed."""
        return self.prompt + self.answer - 1


class Api:
    """One server, asked as clients do."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self.model: str = self._http.get("/v1/models").json()["data"][0]["id"]

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        response = self._http.post(path, json=body)
        if response.status_code != 200:
            raise SystemExit(f"{path} answered {response.status_code}: {response.text}")
        answer: dict[str, Any] = response.json()
        return answer

    def chat(self, messages: list[Message], **fields: Any) -> tuple[Message, dict[str, int]]:
        """The message, and the tokens of prompt and answer and those that were cached."""
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": 1.2,
            "seed": 7,
            "max_tokens": 200,
        } | fields
        answer = self.post("/v1/chat/completions", body)
        usage = answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["message"], {
            "prompt": usage["prompt_tokens"],
            "answer": usage["completion_tokens"],
            "cached": cached,
        }

    def idle(self) -> None:
        """Waits until nothing runs; what is computed ahead begins when an answer has ended."""
        time.sleep(0.3)
        deadline = time.monotonic() + AHEAD_SECONDS
        while time.monotonic() < deadline:
            if not self._http.get("/load").json()["server_load"]:
                return
            time.sleep(0.05)


def turns(first: Mapping[str, int], second: Mapping[str, int]) -> Turns:
    return Turns(first["prompt"], first["answer"], second["prompt"], second["cached"])


def opening(name: str) -> list[Message]:
    """A conversation of its own for each breaker."""
    return [
        {"role": "system", "content": f"{name}. {RULES}"},
        {"role": "user", "content": "How will the week be?"},
    ]


def two_chats(name: str, change: Callable[[Message], Message], **fields: Any) -> "Play":
    """Two turns of a chat; `change` makes what the client sends back of what it got."""

    def play(api: Api) -> Turns:
        messages = opening(name)
        message, first = api.chat(messages, **fields)
        api.idle()
        behind = {"role": "user", "content": "And then?"}
        if message.get("tool_calls"):
            id = message["tool_calls"][0]["id"]
            behind = {"role": "tool", "tool_call_id": id, "content": "rain"}
        _, second = api.chat([*messages, change(message), behind], **fields)
        return turns(first, second)

    return play


def as_it_is(message: Message) -> Message:
    return message


def spaced(message: Message) -> Message:
    """As LangChain and llm write arguments, whose keys others sort or indent."""
    (call,) = message["tool_calls"]
    arguments = json.dumps(json.loads(call["function"]["arguments"]), indent=2)
    return message | {
        "tool_calls": [call | {"function": call["function"] | {"arguments": arguments}}]
    }


def without_reasoning(message: Message) -> Message:
    return {"role": "assistant", "content": message["content"]}


def other_name(message: Message) -> Message:
    return without_reasoning(message) | {"reasoning": message["reasoning_content"]}


def in_parts(message: Message) -> Message:
    return {"role": "assistant", "content": [{"type": "text", "text": message["content"]}]}


def trimmed(message: Message) -> Message:
    return {"role": "assistant", "content": message["content"].strip()}


def anthropic(name: str, *, nonce: bool) -> "Play":
    """A coding agent: a header that differs by request, or a cache marker that moves."""

    def play(api: Api) -> Turns:
        said: list[Message] = [{"role": "user", "content": [_text("How will the week be?")]}]
        found = []
        for turn in range(2):
            header = [_text(NONCE.format(f"{turn}e2"))] if nonce else []
            marked = [*said[:-1], said[-1] | {"content": _marked(said[-1]["content"], not nonce)}]
            body = {
                "system": [*header, _text(f"{name}. {RULES}")],
                "messages": marked,
                "max_tokens": 30,
                "model": api.model,
            }
            answer = api.post("/v1/messages", body)
            api.idle()
            usage = answer["usage"]
            cached = usage["cache_read_input_tokens"]
            found.append(
                {
                    "prompt": usage["input_tokens"] + cached,
                    "answer": usage["output_tokens"],
                    "cached": cached,
                }
            )
            said += [
                {"role": "assistant", "content": answer["content"]},
                {"role": "user", "content": [_text("And then?")]},
            ]
        return turns(*found)

    return play


def _text(text: str) -> Message:
    return {"type": "text", "text": text}


def _marked(blocks: list[Message], marked: bool) -> list[Message]:
    return (
        [block | {"cache_control": {"type": "ephemeral"}} for block in blocks] if marked else blocks
    )


def other_item_ids(api: Api) -> Turns:
    """As Codex: items with ids of their own, nothing stored."""
    tool = {"type": "function", "parameters": LOOK} | TOOL
    items: list[Message] = [
        {"type": "message", "role": "developer", "content": f"Item ids. {RULES}", "id": "msg_1"},
        {"type": "message", "role": "user", "content": "How will the week be?", "id": "msg_2"},
    ]
    found = []
    for turn in range(2):
        body = {"model": api.model, "input": items, "tools": [tool], "store": False} | ONE_CALL
        answer = api.post("/v1/responses", body)
        usage = answer["usage"]
        found.append(
            {
                "prompt": usage["input_tokens"],
                "answer": usage["output_tokens"],
                "cached": usage["input_tokens_details"]["cached_tokens"],
            }
        )
        api.idle()
        call = answer["output"][-1]
        items = [
            *(item | {"id": f"{item['id']}_{turn}"} for item in items),
            call | {"id": "fc_other"},
            {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": "rain",
                "id": "x",
            },
        ]
    return turns(*found)


def routed(api: Api) -> Turns:
    """As routers send it on: default fields added, JSON written anew."""
    added = {"logprobs": False, "separate_reasoning": True, "stream_reasoning": True, "n": 1}
    return two_chats("Routed", spaced, **CALLED, **added)(api)


Play = Callable[[Api], Turns]
ONE_CALL: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
CALLED = ONE_CALL | {"tools": [{"type": "function", "function": TOOL | {"parameters": LOOK}}]}
THINKING = {"guided_regex": THOUGHT}
STRIPPING = THINKING | {"chat_template_kwargs": {"strip_reasoning": True}}
BREAKERS: dict[str, Play] = {
    "sent back as it is": two_chats("As it is", as_it_is, guided_regex=PLAIN),
    "header that differs (Claude Code)": anthropic("Header", nonce=True),
    "cache marker that moves (Claude Code)": anthropic("Marker", nonce=False),
    "tool arguments re-serialised (LangChain, llm)": two_chats("Tools", spaced, **CALLED),
    "re-encoded by a router, fields added": routed,
    "reasoning dropped (openai-agents, LangChain)": two_chats(
        "Dropped", without_reasoning, **THINKING
    ),
    "reasoning under its other name": two_chats("Name", other_name, **THINKING),
    "reasoning stripped by the template": two_chats("Template", as_it_is, **STRIPPING),
    "content as a list of parts (Qwen Code)": two_chats("Parts", in_parts, guided_regex=PLAIN),
    "whitespace cut": two_chats("Trimmed", trimmed, guided_regex=PLAIN + r"[ \n]{3}"),
    "other ids of items (Codex)": other_item_ids,
}


def measure(url: str) -> dict[str, Turns]:
    with httpx.Client(base_url=url, timeout=300) as http:
        api = Api(http)
        return {name: play(api) for name, play in BREAKERS.items()}


@contextmanager
def server(*flags: str) -> Iterator[str]:
    """The URL of a server on any free port."""
    command = [sys.executable, "-m", "radixserve.launch", "--port", "0", "--log-level", "warning"]
    command += ["--chat-template", str(TEMPLATE), "--reasoning-parser", "hermes", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait(30)


def table(before: Mapping[str, Turns], after: Mapping[str, Turns]) -> str:
    head = "| between two turns | first prompt + answer | hit before | hit now |"
    rows = [
        f"| {name} | {now.prompt} + {now.answer} | {before[name].cached} | {now.cached} |"
        for name, now in after.items()
    ]
    return "\n".join([head, "|---|---|---|---|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="What breaks prefixes between two turns.")
    parser.add_argument("--model-path", default="", help="default: the embedded model")
    given = parser.parse_args()
    model = ("--model-path", given.model_path) if given.model_path else ()
    with server(*model, *OFF) as url:
        before = measure(url)
    with server(*model) as url:
        print(table(before, measure(url)))


if __name__ == "__main__":
    main()
