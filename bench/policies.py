"""Every eviction policy on every recorded set, where plain LRU falls short of the optimum.

    python -m bench.policies [SET...]

Requests are served one after another by the real cache, answers are kept where recorded, and a
request for n answers is n calls. No scheduler and no clock: what differs is eviction alone. A table
in markdown goes to stdout; each row is one more line in bench/results/policies.jsonl.

Orders: `file`; `mix`, one random merge of all sessions (seed 0); `8` and `32`, so many users in
turn, each playing whole sessions. Two sets joined by + are a chat of 16 users in turn and a sweep:
after each of the chat's requests come two of the other set in random order, as if from a batch job.
Optimum: the clairvoyant of the simulator. No recorded request has a priority, so `priority` is LRU.
"""

import argparse
import random
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.record import RESULTS, append, entry
from bench.workloads import DATA, TRACES
from radixserve.cache import POLICIES, PagePool, PrefixCache, RadixTree
from radixserve.messages import INT32_BYTES, Namespace
from radixserve.simulate import optimum
from radixserve.simulate.clients import serial
from radixserve.simulate.tokens import Call, Encoder
from radixserve.simulate.workloads import Blocks, Recorded, read

PAGE = 16  # tokens; a block of a trace is shrunk to one page
RECORDED = {"mooncake_conversation": 512, "mooncake_synthetic": 512, "agentic_code": 64}
LONGEST = 64 * 1024  # agentic_code: sessions with no prompt over so many tokens
CHAT_USERS, SWEEP = 16, 2
KI = 1024

# set -> order -> three sizes of the cache in Ki tokens of the recording
CASES: dict[str, dict[str, tuple[int, int, int]]] = {
    "mmlu_val": {"mix": (4, 8, 16), "8": (3, 4, 6), "32": (4, 8, 16)},
    "bbh": {"mix": (4, 8, 16), "8": (4, 6, 8), "32": (8, 16, 24)},
    "gsm8k": {"file": (2, 3, 4)},
    "tot_game24": {"mix": (2, 3, 4)},
    "tot_text": {"mix": (16, 64, 128), "32": (16, 32, 64)},
    "react_hotpotqa": {"mix": (4, 8, 16), "32": (4, 8, 16)},
    "generative_agents": {"file": (1, 2, 4)},
    "llm_judge": {"mix": (4, 8, 16), "8": (3, 4, 6)},
    "tau_airline": {"mix": (32, 128, 256), "8": (16, 24, 32), "32": (32, 64, 96)},
    "bfcl_multi_turn": {"mix": (16, 32, 64), "8": (8, 12, 16), "32": (16, 32, 48)},
    "bfcl_long_context": {"8": (80, 128, 192), "32": (256, 384, 512)},
    "oasst_trees": {"mix": (16, 32, 64), "8": (4, 8, 12), "32": (8, 16, 32)},
    "oasst_val": {"mix": (16, 32, 64), "32": (4, 8, 16)},
    "mt_bench": {"32": (4, 8, 16)},
    "mooncake_conversation": {"file": (1024, 4096, 8192)},
    "mooncake_synthetic": {"file": (1024, 2048, 4096)},
    "agentic_code": {"8": (128, 256, 384), "32": (256, 512, 1024)},
    "oasst_trees+mmlu_val": {"sweep": (8, 16, 32)},
    "oasst_trees+tot_text": {"sweep": (8, 16, 32)},
    "tau_airline+tot_text": {"sweep": (64, 96, 128)},
    "bfcl_multi_turn+tot_text": {"sweep": (32, 64, 96)},
}


@dataclass(frozen=True, slots=True)
class Stream:
    """Calls in order, and which of them are a chat's beside a sweep."""

    calls: list[Call]
    chat: list[bool]


@dataclass(slots=True)
class Hits:
    """Tokens: of all calls and of the chat's."""

    prompt: int = 0
    cached: int = 0
    chat_prompt: int = 0
    chat_cached: int = 0


# ---- orders --------------------------------------------------------------------------------------


def in_turn(sessions: Iterable[list[Recorded]], users: int) -> Iterator[Recorded]:
    """So many users in turn; who has finished a session begins the next one."""
    waiting = iter(sessions)
    open_now = deque(map(iter, islice(waiting, users)))
    while open_now:
        user = open_now.popleft()
        request = next(user, None)
        while request is None and (session := next(waiting, None)) is not None:
            user = iter(session)
            request = next(user, None)
        if request is not None:
            yield request
            open_now.append(user)


def merged(sessions: Sequence[list[Recorded]]) -> Iterator[Recorded]:
    """One random merge of all sessions."""
    turns = [number for number, session in enumerate(sessions) for _ in session]
    random.Random(0).shuffle(turns)
    left = [iter(session) for session in sessions]
    return (next(left[number]) for number in turns)


def ordered(requests: Sequence[Recorded], order: str) -> Iterable[Recorded]:
    if order == "file":
        return requests
    sessions = serial(requests)
    return merged(sessions) if order == "mix" else in_turn(sessions, int(order))


@cache
def recorded(name: str, data: Path) -> list[Recorded]:
    requests = list(read(data / TRACES.get(name, name), PAGE if name in RECORDED else 0))
    if name != "agentic_code":
        return requests
    most = LONGEST * PAGE // RECORDED[name]
    too_long = {r.session for r in requests if isinstance(r, Blocks) and r.length > most}
    return [request for request in requests if request.session not in too_long]


def one_off(encoder: Encoder, batch: Sequence[Recorded]) -> Iterator[Call]:
    """Without end, in random order; a second round shares nothing with the first."""
    shuffled = random.Random(1).sample(batch, len(batch))
    for number in count():
        for request in shuffled:
            yield replace(encoder.call(request), namespace=Namespace(salt=str(number)))


def stream(name: str, order: str, data: Path) -> Stream:
    encoder = Encoder(outputs=True, samples=True)
    if order != "sweep":
        calls = list(encoder.stream(ordered(recorded(name, data), order)))
        return Stream(calls, [True] * len(calls))
    chat, sweep = name.split("+")
    batch = one_off(encoder, recorded(sweep, data))
    both = Stream([], [])
    for request in ordered(recorded(chat, data), str(CHAT_USERS)):
        mine = encoder.calls(request)
        others = list(islice(batch, SWEEP))
        both.calls.extend(mine + others)
        both.chat.extend([True] * len(mine) + [False] * len(others))
    return both


# ---- runs ----------------------------------------------------------------------------------------


def serve(stream: Stream, policy: str, pages: int) -> Hits:
    """All calls that fit into the cache, one after another."""
    tree = RadixTree(PAGE, POLICIES[policy])
    kept = PrefixCache(PagePool(pages), tree, copy_pages=False)  # whole pages, as the optimum has
    hits = Hits()
    for call, chat in zip(stream.calls, stream.chat, strict=True):
        tokens = call.kept
        if kept.num_pages(len(tokens) // INT32_BYTES) > pages:
            continue
        lease = kept.acquire(call.namespace, call.prompt)
        assert lease is not None, "alone, what fits is admitted"
        cached = lease.num_tokens
        for end in (call.prompt_tokens, len(tokens) // INT32_BYTES):
            fits = kept.append(lease, end)
            assert fits, "alone, what fits can be computed"
            kept.commit(lease, tokens, end)
        kept.release(lease)
        hits.prompt += call.prompt_tokens
        hits.cached += cached
        hits.chat_prompt += call.prompt_tokens * chat
        hits.chat_cached += cached * chat
    return hits


def result(name: str, order: str, size: int, stream: Stream) -> dict[str, Any]:
    """Rates in percent. `chat`: those of the chat alone, where there is a sweep beside it."""
    pages = size * KI // RECORDED.get(name, PAGE)
    hits = {policy: serve(stream, policy, pages) for policy in POLICIES}
    rates = {policy: percent(h.cached, h.prompt) for policy, h in hits.items()}
    rates["optimum"] = round(100 * optimum.optimum(stream.calls, PAGE, pages).rate, 2)
    found: dict[str, Any] = {"set": name, "order": order, "tokens": size * KI, "hit %": rates}
    if order == "sweep":
        chat = {policy: percent(h.chat_cached, h.chat_prompt) for policy, h in hits.items()}
        found["chat hit %"] = chat
    return found


def percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


def rows(found: dict[str, Any]) -> Iterator[str]:
    for which, kind in (("hit %", ""), ("chat hit %", ", chat alone")):
        if rates := found.get(which):
            cells = [found["set"] + kind, found["order"], f"{found['tokens'] // KI:,}"]
            cells += [f"{rates[p]:.1f}" if p in rates else "" for p in (*POLICIES, "optimum")]
            yield f"| {' | '.join(cells)} |"


def summary(all_found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What each policy wins and loses against LRU, in points over all rows."""
    yield "\n| policy | mean | least | most | rows more than 0.3 below LRU |"
    yield "|---|---:|---:|---:|---:|"
    for policy in (*POLICIES, "optimum"):
        gains = [found["hit %"][policy] - found["hit %"]["lru"] for found in all_found]
        below = sum(gain < -0.3 for gain in gains)
        mean = sum(gains) / len(gains)
        yield f"| {policy} | {mean:+.2f} | {min(gains):+.1f} | {max(gains):+.1f} | {below} |"


def main(argv: Sequence[str] | None = None, show: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.policies", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "sets", nargs="*", metavar="SET", help=f"default: all of {', '.join(CASES)}"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="default: ../shared/data")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of policies.jsonl")
    args = parser.parse_args(argv)
    if unknown := set(args.sets).difference(CASES):
        parser.error(f"no set {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    headings = ["set", "order", "Ki tokens", *POLICIES, "optimum"]
    show(f"| {' | '.join(headings)} |\n|---|---{'|---:' * (len(headings) - 2)}|")
    all_found = []
    chosen = [(name, order) for name in args.sets or CASES for order in CASES[name]]
    for name, order in tqdm(chosen, unit="order", disable=None, file=sys.stderr):
        calls = stream(name, order, args.data)
        for size in CASES[name][order]:
            all_found.append(result(name, order, size, calls))
            command = shlex.join(["python", "-m", "bench.policies", name])
            append("policies", entry(command, all_found[-1]), args.results)
            for row in rows(all_found[-1]):
                show(row)
    for row in summary(all_found):
        show(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
