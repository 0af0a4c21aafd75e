"""Hit rate over cache size, a curve for each policy and whatever else was varied."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radixserve.config import flag

X = "max_total_tokens"


class NoPlot(Exception):
    """matplotlib is not installed; the message says how to get it."""


def ready() -> None:
    """Find out before the runs whether `draw` can work. Raises `NoPlot`."""
    try:
        import matplotlib  # noqa: F401 - optional
    except ImportError:
        raise NoPlot("--plot wants matplotlib: pip install 'radixserve[simulate]'") from None


def curves(results: Sequence[dict[str, Any]], varied: Sequence[str]) -> dict[str, list[Any]]:
    """Name of each curve -> its (cache size in tokens, hit rate in %), by size."""
    others = [name for name in varied if name != X] or ["radix_eviction_policy"]
    found: dict[str, list[Any]] = {}
    for result in results:
        name = ", ".join(f"{flag(key)[2:]} {result[key]}" for key in others)
        found.setdefault(name, []).append((result[X], 100 * result["hit_rate"]))
        if "optimum" in result:
            rest = [key for key in others if key != "radix_eviction_policy"]
            name = ", ".join(["optimum", *(f"{flag(key)[2:]} {result[key]}" for key in rest)])
            best = found.setdefault(name, [])
            if result[X] not in dict(best):
                best.append((result[X], 100 * result["optimum"]))
    return {name: sorted(points) for name, points in found.items()}


def draw(results: Sequence[dict[str, Any]], varied: Sequence[str], title: str, file: Path) -> None:
    """Write the picture; its kind is that of the file's name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, points in curves(results, varied).items():
        style = "--" if name.startswith("optimum") else "-"
        axes.plot(*zip(*points, strict=True), style, marker="o", label=name)
    axes.axhline(100 * results[-1]["bound"], color="grey", linestyle=":", label="infinite cache")
    axes.set_xscale("log", base=2)
    axes.set(title=title, xlabel="cache size, tokens", ylabel="hit rate, %")
    axes.legend()
    figure.savefig(file, dpi=120)
