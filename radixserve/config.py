"""All settings: one frozen struct per room, built once by the launcher and passed in parts.

Flags, their help and the README's table are derived from the fields. A value of 0 or "" or "auto"
means "chosen by the room that owns it, and logged". No other file reads flags or the environment.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta, Struct


class ServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the tokenizer process and the HTTP surface need."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="port to listen on", ge=0, le=65535)] = 30000
    api_key: Annotated[
        str, Meta(description="key that all routes but probes and documentation ask for")
    ] = ""
    served_model_name: Annotated[
        str, Meta(description="model id in the API; default: the folder or file name")
    ] = ""
    chat_template: Annotated[
        str, Meta(description="file with a Jinja chat template that replaces the model's own")
    ] = ""
    tool_call_parser: Annotated[
        str,
        Meta(description="how the model writes tool calls: auto (by its template), none, a format"),
    ] = "auto"
    reasoning_parser: Annotated[
        str, Meta(description="whose marks of reasoning it writes: auto, none, a format")
    ] = "auto"
    keep_known_nonces: Annotated[
        bool,
        Meta(description="keep what clients put before prompts only to tell requests apart"),
    ] = False
    sampling_defaults: Annotated[
        str,
        Meta(
            description="temperature, top_p, top_k, min_p, repetition_penalty where a request says"
            " none: model (its generation_config.json), openai (1, 1, off), or a JSON object that"
            " goes before the model's"
        ),
    ] = "model"
    default_max_tokens: Annotated[
        int,
        Meta(
            description="most tokens of an answer that asks for no limit; 0: what the context has"
            " left",
            ge=0,
        ),
    ] = 0
    history_tokens: Annotated[
        int,
        Meta(
            description="tokens of answers that are remembered, so that a turn is found again"
            " however its client writes it; 0: none",
            ge=0,
        ),
    ] = 1 << 20
    unreadable_parts: Annotated[
        str,
        Meta(
            description="images, audio and files in messages, which a model of text cannot see:"
            " refuse them, or put a placeholder there that tells the model"
        ),
    ] = "refuse"
    strict_fields: Annotated[
        bool,
        Meta(description="refuse unknown fields and requests that name no model, to test clients"),
    ] = False
    max_stored_responses: Annotated[
        int,
        Meta(description="answers of /v1/responses kept to be continued, 256 MiB at most", ge=0),
    ] = 1024
    max_body_bytes: Annotated[
        int, Meta(description="longest request body; longer ones get 413", ge=1)
    ] = 64 << 20
    cors_origins: Annotated[
        str,
        Meta(
            description="origins, with commas between, whose pages may call the API from a browser;"
            " * for all"
        ),
    ] = ""
    drain_seconds: Annotated[
        float,
        Meta(
            description="seconds for running requests to end in after SIGTERM or SIGINT; 0: none",
            ge=0,
        ),
    ] = 30.0


class SchedulerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Policies. What the machine can hold comes from the worker."""

    max_queued_requests: Annotated[
        int, Meta(description="waiting requests beyond which new ones get 503", ge=1)
    ] = 1024
    max_queued_tokens: Annotated[
        int,
        Meta(description="uncached tokens of waiting requests beyond which new ones get 503", ge=0),
    ] = 0
    schedule_policy: Annotated[str, Meta(description="order of the waiting requests")] = "default"
    max_overtaking_seconds: Annotated[
        float,
        Meta(description="longest that later arrivals may delay a request by going first", ge=0),
    ] = 10.0
    radix_eviction_policy: Annotated[str, Meta(description="which cached leaf goes first")] = "lru"
    disable_radix_cache: Annotated[bool, Meta(description="never reuse a prefix")] = False
    disable_page_copy: Annotated[
        bool, Meta(description="reuse whole pages only, never a part of one by copying it")
    ] = False
    pin_budget: Annotated[
        float, Meta(description="share of the K/V pool that pins may hold", ge=0, lt=1)
    ] = 0.25
    tenant_quotas: Annotated[
        str, Meta(description="floor and ceiling in tokens, as NAME=FLOOR:CEILING,...")
    ] = ""
    ledger_pages: Annotated[
        int,
        Meta(
            description="evicted pages that are remembered (200 bytes each), to explain misses",
            ge=0,
        ),
    ] = 262144
    record_trace: Annotated[
        str, Meta(description="file for a trace of all requests, without text, to simulate with")
    ] = ""


class WorkerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model and the memory it lives in."""

    model_path: Annotated[
        str,
        Meta(
            description="Hugging Face checkpoint folder or GGUF file; default: the embedded SmolLM2"
        ),
    ] = ""
    model_impl: Annotated[
        str,
        Meta(
            description="whose code computes the model: auto (radixserve's where it knows the"
            " architecture), radixserve, or transformers"
        ),
    ] = "auto"
    load_format: Annotated[
        str,
        Meta(
            description="auto (safetensors), safetensors, or dummy: random weights for the folder's"
            " config.json"
        ),
    ] = "auto"
    dtype: Annotated[
        str,
        Meta(description="auto (float32 on a CPU, bfloat16 on a GPU), float32, bfloat16, float16"),
    ] = "auto"
    device: Annotated[str, Meta(description="auto, cpu or cuda")] = "auto"
    attention_backend: Annotated[
        str,
        Meta(
            description="auto (triton on a GPU; on a CPU cpu, or torch where its C code cannot be"
            " built or numbers are not float32), cpu, torch or triton"
        ),
    ] = "auto"
    kv_cache_dtype: Annotated[
        str,
        Meta(
            description="auto (as --dtype), float16 (cpu backend: half the bytes of float32), or"
            " fp8_e4m3 (triton backend): 8 bits a number, with a scale per token and head"
        ),
    ] = "auto"
    context_length: Annotated[
        int, Meta(description="longest prompt + answer; 0: what the model allows", ge=0)
    ] = 0
    page_size: Annotated[int, Meta(description="tokens per K/V page", ge=1, le=256)] = 16
    max_total_tokens: Annotated[
        int, Meta(description="tokens in the K/V pool; 0: from the free memory", ge=0)
    ] = 0
    mem_fraction_static: Annotated[
        float,
        Meta(
            description="share of free memory for weights and pool; 0: 0.85 on a GPU, 0.3 on a CPU",
            ge=0,
            lt=1,
        ),
    ] = 0.0
    max_running_requests: Annotated[
        int, Meta(description="requests that run at once; 0: 64 on a CPU, 256 on a GPU", ge=0)
    ] = 0
    chunked_prefill_size: Annotated[
        int,
        Meta(
            description="most tokens in one step, but a page beside a token per running request"
            " always fits; 0: 512 on a CPU, 4096 on a GPU",
            ge=0,
        ),
    ] = 0
    cuda_graph_max_bs: Annotated[
        int,
        Meta(
            description="steps of up to so many tokens run as CUDA graphs (triton backend); 0: 256,"
            " in the interpreter 8",
            ge=0,
        ),
    ] = 0
    disable_cuda_graph: Annotated[
        bool, Meta(description="launch each kernel of a step by itself")
    ] = False
    enable_deterministic_inference: Annotated[
        bool,
        Meta(
            description="the same bits whatever the batch, the chunks and the cache hits; needs the"
            " triton or the cpu backend (which does it anyway)"
        ),
    ] = False
    disable_packed_cache: Annotated[
        bool,
        Meta(
            description="on a CPU, pack the weights at each start; else they are kept packed in the"
            " cache folder and mapped from there"
        ),
    ] = False
    num_threads: Annotated[
        int, Meta(description="CPU threads of the worker; 0: the cores this process may use", ge=0)
    ] = 0


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything; each room receives its own part."""

    server: ServerConfig = ServerConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    worker: WorkerConfig = WorkerConfig()
    log_level: Annotated[str, Meta(description="debug, info, warning or error")] = "info"
    run_dir: str = ""  # folder of this run's sockets, made by the launcher
    launcher: int = 0  # the launcher's pid

    def encode(self) -> str:
        """As one command-line argument for a child process."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> "Config":
        return msgspec.json.decode(text, type=Config)


PARTS: dict[str, type[Struct]] = {
    "server": ServerConfig,
    "scheduler": SchedulerConfig,
    "worker": WorkerConfig,
}
CHOICES: dict[str, tuple[str, ...]] = {
    "model_impl": ("auto", "radixserve", "transformers"),
    "load_format": ("auto", "safetensors", "dummy"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "device": ("auto", "cpu", "cuda"),
    "attention_backend": ("auto", "cpu", "torch", "triton"),
    "kv_cache_dtype": ("auto", "float16", "fp8_e4m3"),
    "unreadable_parts": ("refuse", "placeholder"),
    "log_level": ("debug", "info", "warning", "error"),
}


def cache_home() -> Path:
    """Folder where converted models are kept: $RADIXSERVE_HOME, else the user's cache folder."""
    if home := os.environ.get("RADIXSERVE_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "radixserve"


def state_home() -> Path:
    """Folder of what a user leaves behind: $XDG_STATE_HOME or its usual place."""
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local/state")) / "radixserve"


def plain_terminal() -> bool:
    """Whether the user wants, or the terminal can show, nothing but text."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def notify_socket() -> str:
    """Where systemd wants to hear of this service ($NOTIFY_SOCKET); "" if it does not."""
    return os.environ.get("NOTIFY_SOCKET", "")


def worker_environment() -> dict[str, str]:
    """The environment of a worker process: its threads spin only briefly while they wait.

    OpenMP's default is to spin for long. With as many threads as cores, and three processes on
    them, a step of a small model then waits for the system's next time slice: ten times as long.
    """
    return {"GOMP_SPINCOUNT": "20000"} | os.environ


def quotas(text: str) -> list[tuple[str, int, int]]:
    """(tenant, floor, ceiling) of each `NAME=FLOOR:CEILING` in a comma-separated list.

    Tokens; an empty bound is none. Raises ValueError with a sentence.
    """
    found = []
    for part in filter(None, text.split(",")):
        name, _, bounds = part.rpartition("=")
        floor, colon, ceiling = bounds.partition(":")
        if not name or not colon or not all(b.isdecimal() or not b for b in (floor, ceiling)):
            raise ValueError(f"{part!r} is not NAME=FLOOR:CEILING in tokens")
        low, high = int(floor or 0), int(ceiling or 0)
        if high and low > high:
            raise ValueError(f"the floor of {name!r} is above its ceiling")
        found.append((name, low, high))
    return found


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def fields_of(part: type[Struct]) -> dict[str, tuple[type, str, Any]]:
    """Field name -> (type, help, default) of one part, in order."""
    hints = get_type_hints(part, include_extras=True)
    out = {}
    for field in msgspec.structs.fields(part):
        meta = next((m for m in getattr(hints[field.name], "__metadata__", ())), None)
        if meta is not None:
            out[field.name] = (hints[field.name].__origin__, meta.description or "", field.default)
    return out


def parser(choices: dict[str, tuple[str, ...]]) -> argparse.ArgumentParser:
    """The command line. `choices` adds the names that other rooms register (policies, orders)."""
    choices = CHOICES | choices
    p = argparse.ArgumentParser(
        prog="radixserve", description="LLM serving with an exact radix-tree prefix cache."
    )
    parts: tuple[type[Struct], ...] = (*PARTS.values(), Config)
    for part in parts:
        for name, (kind, text, default) in fields_of(part).items():
            if kind is bool:
                p.add_argument(flag(name), action="store_true", help=text)
                continue
            shown = f" (default: {default})" if default not in ("", 0, "auto") else ""
            p.add_argument(
                flag(name), type=kind, default=default, help=text + shown, choices=choices.get(name)
            )
    return p


def parse(argv: Sequence[str], choices: dict[str, tuple[str, ...]]) -> Config:
    """Command-line arguments as a `Config`. Ends the program with a message on a wrong one."""
    p = parser(choices)
    return chosen(p, p.parse_args(argv))


def chosen(p: argparse.ArgumentParser, parsed: argparse.Namespace) -> Config:
    """What `p`, made by `parser`, has read. Ends the program with a message on a wrong value."""
    args = vars(parsed)
    parts = {key: {name: args[name] for name in fields_of(part)} for key, part in PARTS.items()}
    try:
        quotas(args["tenant_quotas"])
    except ValueError as error:
        p.error(f"argument --tenant-quotas: {error}")
    try:
        return msgspec.convert(parts | {"log_level": args["log_level"]}, Config)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        p.error(f"argument {flag(where.strip('`').rpartition('.')[2])}: {what}")
