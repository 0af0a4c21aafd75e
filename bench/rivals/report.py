"""From what the stick measured to medians, a table, and how far the goals are."""

from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from bench.rivals.servers import OURS

Figures = dict[str, float]
Runs = dict[str, list[Figures]]  # by server, one for each round that it answered

CHATS = ("branch", "agent")  # and their columns
RATES = ("decode", "single")
GOAL = 0.5  # of the best rival's time on branch and agent
COLUMNS = {  # figure -> its title and form
    "cold_s": ("cold s", ".2f"),
    "hot_s": ("hot s", ".3f"),
    "back_s": ("back s", ".3f"),
    "cold_over_hot": ("cold/hot", ".1f"),
    **{
        f"{chat}_{part}": (f"{chat} {title}", form)
        for chat in CHATS
        for part, title, form in (
            ("s", "s", ".1f"),
            ("ttft_p50_s", "p50", ".2f"),
            ("ttft_p95_s", "p95", ".2f"),
            ("cached", "cached", ",.0f"),
        )
    },
    "decode_tok_s": ("decode tok/s", ".1f"),
    "single_tok_s": ("single tok/s", ".1f"),
    "startup_s": ("start s", ".1f"),
    "memory_gib": ("GiB", ".2f"),
}


def figures(result: dict[str, Any]) -> Figures:
    """The columns of one run of the stick. A workload in which a request failed has none."""
    found: dict[str, float | None] = {"startup_s": result.get("startup_s")}
    memory = result.get("pss_end_mib") or result.get("rss_peak_mib")
    found["memory_gib"] = memory / 1024 if memory else None
    whole = {name: part for name, part in parts(result) if not part.get("errors")}
    for kind in ("cold", "hot", "back"):
        found[f"{kind}_s"] = whole.get(f"ttft {kind}", {}).get("ttft_p50_s")
    if found["cold_s"] and found["hot_s"]:
        found["cold_over_hot"] = found["cold_s"] / found["hot_s"]
    for chat in CHATS:
        part = whole.get(chat, {})
        found[f"{chat}_s"], found[f"{chat}_cached"] = part.get("wall_s"), part.get("cached_tokens")
        for share in ("ttft_p50_s", "ttft_p95_s"):
            found[f"{chat}_{share}"] = part.get(share)
    for rate in RATES:
        found[f"{rate}_tok_s"] = whole.get(rate, {}).get("out_tok_s")
    return {name: value for name, value in found.items() if value is not None}


def parts(result: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """(name, summary) of every workload that was run."""
    for kind, part in result.get("ttft", {}).items():
        if isinstance(part, dict):
            yield f"ttft {kind}", part
    for name in (*CHATS, *RATES):
        if name in result:
            yield name, result[name]


def remarks(result: dict[str, Any], length: dict[str, int]) -> list[str]:
    """What makes figures of one run unequal: failed requests, answers shorter than `length`."""
    said = []
    for name, part in parts(result):
        wanted = length[name.split()[0]] * (part["requests"] - part["errors"])
        if part["errors"]:
            said.append(f"{name}: {part['errors']} requests failed: {part['first_error']}")
        elif part["out_tokens"] != wanted:
            said.append(f"{name}: {part['out_tokens']} tokens came, {wanted} were asked for")
    return said


def medians(runs: Runs) -> dict[str, Figures]:
    """Of each figure over the rounds that have it."""
    result: dict[str, Figures] = {}
    for server, rounds in runs.items():
        names = [name for name in COLUMNS if any(name in one for one in rounds)]
        result[server] = {
            name: median(one[name] for one in rounds if name in one) for name in names
        }
    return result


def table(rows: dict[str, Figures], versions: dict[str, str]) -> str:
    """A row per figure, a column per server; a dash where it has none."""
    width = max([13, *(len(server) + 2 for server in rows)])
    lines = [f"{'':16}" + "".join(f"{server:>{width}}" for server in rows)]
    for name, (title, form) in COLUMNS.items():
        cells = [f"{row[name]:{form}}" if name in row else "-" for row in rows.values()]
        if any(cell != "-" for cell in cells):
            lines.append(f"{title:16}" + "".join(f"{cell:>{width}}" for cell in cells))
    lines += [f"version of {server}: {versions.get(server) or 'not told'}" for server in rows]
    return "\n".join(lines)


def goals(rows: dict[str, Figures]) -> dict[str, dict[str, Any]]:
    """Each figure that has a goal: ours, the best rival's and whose, and ours as a share of it."""
    wanted: dict[str, Callable[[Iterable[float]], float]] = {
        **{f"{chat}_s": min for chat in CHATS},
        **{f"{rate}_tok_s": max for rate in RATES},
        "cold_s": min,
        "cold_over_hot": max,
    }
    found = {}
    for name, best_of in wanted.items():
        rivals = {s: row[name] for s, row in rows.items() if s != OURS and name in row}
        ours = rows.get(OURS, {}).get(name)
        if ours is None or not rivals:
            continue
        best = best_of(rivals.values())
        whose = next(server for server, value in rivals.items() if value == best)
        found[name] = {"ours": ours, "best": best, "whose": whose, "share": ours / best}
    return found


def goal_lines(found: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, goal in found.items():
        title, form = COLUMNS[name]
        line = f"{title}: {goal['ours']:{form}}, the best rival ({goal['whose']}) "
        line += f"{goal['best']:{form}}, ratio {goal['share']:.2f}"
        if name in [f"{chat}_s" for chat in CHATS]:
            line += f"; goal {GOAL}: {'reached' if goal['share'] <= GOAL else 'not reached'}"
        lines.append(line)
    return "\n".join(lines) or "no goal can be told: radixserve and a rival have to answer"
