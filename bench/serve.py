"""Load generator for any OpenAI-compatible server: recorded workloads, closed or open loop.

    python -m bench.serve --base-url http://127.0.0.1:30000/v1 --set gsm8k --requests 64 --users 8

Closed loop: so many users, each sends its next request when the last one is answered. Open loop
(--rate): requests leave at their recorded times, so many times faster. Both honour `after`. Prints
a table for people and, last, one line of JSON. Bounded by --max-seconds.
"""

import argparse
import asyncio
import heapq
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
from tqdm import tqdm

from bench import bound
from bench.client import Outcome, body_of, connect, first_model, send
from bench.workloads import DATA, Request, load
from radixserve.simulate.workloads import Missing


class Run:
    """One measurement: what is to be sent, what is under way, what came back."""

    def __init__(self, requests: Sequence[Request], max_out: int, extra: dict[str, Any]) -> None:
        self.requests = {request.id: request for request in requests}
        self.outcomes: dict[int, Outcome] = {}
        self.sent: dict[int, bound.Prompt] = {}  # in the order of sending
        self._done = {request.id: asyncio.Event() for request in requests}
        self._max_out = max_out
        self._extra = extra
        self._bar = tqdm(total=len(requests), unit="req", disable=None, file=sys.stderr)

    def prompt(self, request: Request) -> bound.Prompt:
        """What is sent; the server's own answer stands in where the recording has none."""
        if not request.messages:
            return request.prompt
        answer = self.outcomes[request.after[0]].text if request.after else ""
        return [
            {"role": role, "content": answer if content is None else content}
            for role, content in request.messages
        ]

    async def one(self, client: httpx.AsyncClient, model: str, request: Request) -> int:
        """Sends one request and returns its id; those that wait for it go even if it failed."""
        prompt = self.prompt(request)
        max_out = min(request.max_out, self._max_out or request.max_out)
        path, body = body_of(model, prompt, max_out)
        if request.n > 1:
            body |= {"n": request.n, "temperature": 1}
        self.sent[request.id] = prompt
        self.outcomes[request.id] = await send(client, path, body | self._extra)
        self._done[request.id].set()
        self._bar.update()
        return request.id

    async def closed(self, client: httpx.AsyncClient, model: str, users: int) -> None:
        """So many under way; next comes the one that stands first of those that may go."""
        waits = {r.id: {k for k in r.after if k in self.requests} for r in self.requests.values()}
        followers: dict[int, list[int]] = {number: [] for number in self.requests}
        for number, open_ in waits.items():
            for other in open_:
                followers[other].append(number)
        ready = sorted(number for number, open_ in waits.items() if not open_)  # a heap
        under_way: set[asyncio.Task[int]] = set()
        async with asyncio.TaskGroup() as group:
            while ready or under_way:
                while ready and len(under_way) < users:
                    request = self.requests[heapq.heappop(ready)]
                    under_way.add(group.create_task(self.one(client, model, request)))
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for number in (task.result() for task in done):
                    for other in followers[number]:
                        waits[other].remove(number)
                        if not waits[other]:
                            heapq.heappush(ready, other)

    async def open(self, client: httpx.AsyncClient, model: str, rate: float) -> None:
        """Each leaves at its recorded time divided by `rate`, and not before its `after`."""
        first = min(request.at for request in self.requests.values())

        async def at_its_time(request: Request) -> None:
            await asyncio.sleep((request.at - first) / rate)
            for number in request.after:
                if number in self._done:
                    await self._done[number].wait()
            await self.one(client, model, request)

        await asyncio.gather(*map(at_its_time, self.requests.values()))

    def close(self) -> None:
        self._bar.close()


def percentile(values: list[float], percent: int) -> float | None:
    """Interpolated between neighbours; None of nothing."""
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def summary(run: Run, seconds: float) -> dict[str, Any]:
    """The measurements as one JSON object; times in seconds."""
    good = [outcome for outcome in run.outcomes.values() if not outcome.error]
    failed = [outcome.error for outcome in run.outcomes.values() if outcome.error]
    ttft = [outcome.ttft for outcome in good]
    itl = [outcome.itl for outcome in good if outcome.itl is not None]
    cached = [outcome.cached_tokens for outcome in good if outcome.cached_tokens is not None]
    output = sum(outcome.completion_tokens for outcome in good)
    return {
        "requests": len(run.requests),
        "ok": len(good),
        "failed": len(failed),
        "unfinished": len(run.requests) - len(run.outcomes),
        "first_error": failed[0] if failed else "",
        "total_s": seconds,
        "ttft_p50_s": percentile(ttft, 50),
        "ttft_p95_s": percentile(ttft, 95),
        "itl_p50_s": percentile(itl, 50),
        "itl_p95_s": percentile(itl, 95),
        "output_tokens": output,
        "output_tokens_per_s": output / seconds,
        "prompt_tokens": sum(outcome.prompt_tokens for outcome in good),
        "cached_tokens": sum(cached) if cached else None,
    }


def best_possible(run: Run, folder: str) -> dict[str, Any]:
    """What an infinite cache would have hit of the answered prompts, in tokens or, lacking a
    tokenizer, in words."""
    encode = bound.tokenizer(Path(folder)) if folder else bound.words
    prefixes, total, hits = bound.Prefixes(), 0, 0
    for number, prompt in run.sent.items():
        tokens = encode(prompt)
        hit = prefixes.add(tokens)
        if number in run.outcomes and not run.outcomes[number].error:
            total += len(tokens)
            hits += hit
    only_ids = all(isinstance(p, list) and isinstance(p[0], int) for p in run.sent.values())
    exact = bool(folder) or only_ids
    return {
        "bound_unit": "tokens" if exact else "words",
        "bound_prompt": total,
        "bound_cached": hits,
        "bound_share": hits / total if total else 0.0,
    }


def table(result: dict[str, Any]) -> str:
    """For people: one fact a line."""

    def cell(value: Any) -> str:
        if value is None:
            return "not reported"
        return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"

    rows = {name: cell(v) for name, v in result.items() if not isinstance(v, str)}
    rows |= {name: v for name, v in result.items() if isinstance(v, str) and v}
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows.items())


async def measure(args: argparse.Namespace, requests: list[Request]) -> dict[str, Any]:
    connections = args.users if not args.rate else len(requests)
    async with connect(args.base_url, args.api_key, connections) as client:
        model = args.model or await first_model(client)
        run = Run(requests, args.max_out, args.extra)
        started = time.perf_counter()
        load_ = (
            run.open(client, model, args.rate)
            if args.rate
            else run.closed(client, model, args.users)
        )
        try:
            await asyncio.wait_for(load_, args.max_seconds)
        except TimeoutError:
            print(f"stopped after --max-seconds {args.max_seconds}", file=sys.stderr)
        finally:
            run.close()
        result = summary(run, time.perf_counter() - started)
    result |= best_possible(run, args.tokenizer)
    if result["cached_tokens"] is not None and result["prompt_tokens"]:
        result["cached_share"] = result["cached_tokens"] / result["prompt_tokens"]
    return {"set": args.set, "model": model, "users": args.users, "rate": args.rate} | result


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--base-url", default="http://127.0.0.1:30000/v1", help="ends in /v1")
    add("--api-key", default="")
    add("--model", default="", help="default: the first that the server lists")
    add("--set", default="gsm8k", help="folder or trace in --data; see its README")
    add("--data", type=Path, default=DATA, help="default: ../shared/data")
    add("--requests", type=int, default=64, help="the first so many of the set; 0: all")
    add("--longest", type=int, default=0, help="leave out longer ones (words or ids; 0: none)")
    add("--block", type=int, default=0, help="tokens per recorded block of a trace; 0: as recorded")
    add("--users", type=int, default=8, help="closed loop: requests under way")
    add("--rate", type=float, default=0.0, help="open loop: so many times the recorded speed")
    add("--max-out", type=int, default=0, help="limit of output tokens; 0: the set's own")
    add("--max-seconds", type=float, default=600, help="stop then, whatever is under way")
    add("--tokenizer", default="", help="checkpoint folder, for a bound in tokens")
    add(
        "--extra",
        type=json.loads,
        default={},
        help='JSON added to every request, such as {"ignore_eos": true}',
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    try:
        requests = load(
            args.set, data=args.data, limit=args.requests, longest=args.longest, block=args.block
        )
    except Missing as error:
        print(f"skipped: {error}")
        return 0
    result = asyncio.run(measure(args, requests))
    print(table(result))
    print(json.dumps(result))
    return int(bool(result["failed"]))


if __name__ == "__main__":
    sys.exit(main())
