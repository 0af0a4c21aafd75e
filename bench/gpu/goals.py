"""What was to be reached, and what was."""

from bench.gpu.attention import decode_task, extend_task
from bench.gpu.check import Check
from bench.gpu.correct import layer_shape

FLASHINFER = "FlashInfer"


def section(check: Check) -> None:
    if not check.facts:
        check.row("goals", verdict="skipped", note="nothing was measured")
        return
    _decode(check)
    _extend(check)
    _engine(check)
    _rivals(check)


def goal(check: Check, name: str, value: float | None, bound: float, *, least: bool) -> None:
    """`value` is to be at least, or at most, `bound`; None if it was not measured."""
    word = "at least" if least else "at most"
    if value is None:
        check.row(name, verdict="not measured", note=f"{word} {bound:.3g}")
        return
    reached = value >= bound if least else value <= bound
    note = f"{word} {bound:.3g}"
    check.row(name, value=value, verdict="yes" if reached else "no", note=note)


def _ratio(check: Check, above: str, below: str) -> float | None:
    """Of two facts."""
    a, b = check.facts.get(above), check.facts.get(below)
    return a / b if a and b else None


def decode_case(check: Check, *, shared: bool) -> str:
    """The first case with or without shared tokens, as `attention` names it."""
    cases = [case for case in check.sizes.decode if (0 < case[2] < case[1]) == shared]
    return decode_task(layer_shape(check, check.sizes.page_sizes[0]), cases[0]).name


def extend_case(check: Check, *, cached: bool) -> str:
    """The first case behind cached tokens, or the last one without."""
    cases = [case for case in check.sizes.extend if (case[2] > 0) == cached]
    return extend_task(
        layer_shape(check, check.sizes.page_sizes[0]), cases[0 if cached else -1]
    ).name


def _decode(check: Check) -> None:
    plain, shared = (f"decode: {decode_case(check, shared=some)}" for some in (False, True))
    share = _ratio(check, f"{plain}: floor", f"{plain}: ours")
    goal(check, "decode, nothing shared: share of copy bandwidth", share, 0.9, least=True)
    times = _ratio(check, f"{shared}: ours", f"{shared}: floor")
    goal(check, "decode, half shared: times its unique bytes", times, 1.15, least=False)


def _extend(check: Check) -> None:
    short, whole = (f"extend: {extend_case(check, cached=some)}" for some in (True, False))
    times = _ratio(check, f"{short}: ours", f"{short}: floor")
    goal(check, "extend behind a prefix: times its floor", times, 3.0, least=False)
    share = _ratio(check, f"{whole}: floor", f"{whole}: ours")
    goal(check, "prefill attention: share of the peak", share, 0.6, least=True)


def _engine(check: Check) -> None:
    share = _ratio(check, "engine: cold floor", "engine: cold")
    goal(check, "first token, cold: share of its floor", share, 0.75, least=True)
    times = _ratio(check, "engine: hot", "engine: hot floor")
    goal(check, "first token, hot: times its floor", times, 1.5, least=False)
    batches = [case for case in check.sizes.batches if case[0] == check.sizes.batch]
    text = "{} x {}, {} shared".format(*batches[0])
    fact = f"engine: decode {text}: "
    times = _ratio(check, fact + "deterministic", fact + "as usual")
    goal(check, "deterministic: times the usual step", times, 1.2, least=False)
    idle = check.facts.get(f"engine: idle {text}: as usual")
    goal(check, "idle between steps: share of the period", idle, 0.03, least=False)


def _rivals(check: Check) -> None:
    """Against the best of FlashInfer's ways."""
    for case in (
        decode_case(check, shared=False),
        decode_case(check, shared=True),
        extend_case(check, cached=True),
        extend_case(check, cached=False),
    ):
        fact = f"rivals: {case}: "
        theirs = [us for name, us in check.facts.items() if name.startswith(fact + FLASHINFER)]
        ours = check.facts.get(fact + "ours")
        ratio = ours / min(theirs) if ours and theirs else None
        goal(check, f"times FlashInfer's, {case}", ratio, 1.0, least=False)
