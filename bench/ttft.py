"""Time to first token, cold and hot: what prefix reuse is worth on one server.

    python -m bench.ttft --base-url http://127.0.0.1:30000/v1

Every round sends three prompts of 2,000 shared and 50 own tokens, one at a time, one token out:
`cold` (a fresh prefix), `hot` (the same prefix again) and `back` (the prefix of the round before,
after others). Medians over the rounds; the server's own count of cached tokens is checked.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from bench.client import Outcome, body_of, connect, first_model, send
from bench.workloads import IDS

KINDS = ("cold", "hot", "back")
Draw = Callable[[int], Any]  # number of tokens -> that many fresh ones, as ids or as text


class Unexpected(Exception):
    """The server did not do what the experiment supposes; the message says what."""


def ids(seed: int) -> Draw:
    """Fresh token ids, for servers that take them as a prompt."""
    rng = random.Random(seed)
    return lambda count: rng.choices(IDS, k=count)


def words(folder: Path, seed: int) -> Draw:
    """Fresh text of words that are one token each in this folder's tokenizer.json."""
    from tokenizers import Tokenizer  # only this option needs it

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [tokenizer.decode([number]) for number in sorted(tokenizer.get_vocab().values())]
    plain = [t for t in texts if t[:1] == " " and t[1:].isascii() and t[1:].isalpha()]
    known = [t for t in plain if len(tokenizer.encode(t, add_special_tokens=False).ids) == 1]
    if len(known) < 1000:
        raise Unexpected(f"{folder} has only {len(known)} one-token words; 1,000 are needed")
    rng = random.Random(seed)
    return lambda count: "".join(rng.choices(known, k=count))


async def ask(client: httpx.AsyncClient, model: str, prompt: Any, tokens: int) -> Outcome:
    """One token for a prompt that has to be `tokens` long (one more where a server adds a BOS)."""
    outcome = await send(client, *body_of(model, prompt, 1))
    if outcome.error:
        raise Unexpected(outcome.error)
    if outcome.prompt_tokens not in (tokens, tokens + 1):
        raise Unexpected(f"sent {tokens} tokens, the server counted {outcome.prompt_tokens}")
    return outcome


async def measure(args: argparse.Namespace) -> dict[str, list[Outcome]]:
    """The outcomes by kind, after one uncounted round."""
    draw = words(args.tokenizer, args.seed) if args.tokenizer else ids(args.seed)
    outcomes: dict[str, list[Outcome]] = {kind: [] for kind in KINDS}
    tokens = args.shared + args.own
    async with connect(args.base_url, args.api_key, 1) as client:
        model = args.model or await first_model(client)
        earlier = draw(args.shared)
        await ask(client, model, earlier + draw(args.own), tokens)
        await ask(client, model, earlier + draw(args.own), tokens)
        for _ in range(args.rounds):
            fresh = draw(args.shared)
            for kind, prefix in zip(KINDS, (fresh, fresh, earlier), strict=True):
                outcomes[kind].append(await ask(client, model, prefix + draw(args.own), tokens))
            earlier = fresh
    return outcomes


def check(outcomes: dict[str, list[Outcome]], shared: int) -> None:
    """Raises `Unexpected` unless cold requests were cold and the others hit nine tenths."""
    for kind, all_ in outcomes.items():
        for cached in (o.cached_tokens for o in all_ if o.cached_tokens is not None):
            if cached > shared // 10 if kind == "cold" else cached < shared * 9 // 10:
                raise Unexpected(f"a {kind} request had {cached} of {shared} shared tokens cached")


def cached_of(outcomes: list[Outcome]) -> float | None:
    """Median of the cached tokens; None if the server does not report them."""
    counts = [o.cached_tokens for o in outcomes if o.cached_tokens is not None]
    return median(counts) if len(counts) == len(outcomes) else None


def result_of(outcomes: dict[str, list[Outcome]], shared: int) -> dict[str, Any]:
    times = {kind: median(outcome.ttft for outcome in all_) for kind, all_ in outcomes.items()}
    return {
        **{f"{kind}_s": times[kind] for kind in KINDS},
        "ratio": times["cold"] / times["hot"],
        "prompt_tokens": outcomes["hot"][0].prompt_tokens,
        "shared_tokens": shared,
        "rounds": len(outcomes["hot"]),
        **{f"{kind}_cached": cached_of(outcomes[kind]) for kind in KINDS},
    }


def table(result: dict[str, Any]) -> str:
    rows = [f"{'':6}{'TTFT, s':>10}{'cached':>10}  of {result['prompt_tokens']:,} tokens"]
    for kind in KINDS:
        cached = result[f"{kind}_cached"]
        count = "?" if cached is None else f"{cached:,.0f}"
        rows.append(f"{kind:6}{result[f'{kind}_s']:10.3f}{count:>10}")
    return "\n".join([*rows, f"cold / hot: {result['ratio']:.1f}, {result['rounds']} rounds"])


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.ttft", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--base-url", default="http://127.0.0.1:30000/v1", help="ends in /v1")
    add("--api-key", default="")
    add("--model", default="", help="default: the first that the server lists")
    add("--rounds", type=int, default=5)
    add("--shared", type=int, default=2000, help="tokens that prompts have in common")
    add("--own", type=int, default=50, help="tokens of each prompt's own")
    add("--seed", type=int, default=0, help="another one for a server that has seen these prompts")
    add("--tokenizer", type=Path, help="send text, not ids: one-token words of this folder")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    try:
        outcomes = asyncio.run(measure(args))
        check(outcomes, args.shared)
    except (Unexpected, httpx.HTTPError) as error:
        print(f"{args.base_url}: {error}", file=sys.stderr)
        return 1
    result = result_of(outcomes, args.shared)
    print(table(result))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
