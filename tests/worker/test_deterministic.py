"""--enable-deterministic-inference: the logits' bits of a token depend on its prefix alone.

In the interpreter, repaired where its matrix products depend on the place of a row.
"""

import pytest

from radixserve.messages import RunStep, Sampling
from tests.kernels.interpreter_repair import repaired
from tests.worker.requests import Request, free, step
from tests.worker.test_exactness import OTHER, PAGES, PROMPT

LOGPROBS = Sampling(seed=0, temperature=0.0, top_logprobs=8)
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0")


@pytest.fixture(scope="module", autouse=True)
def repaired_interpreter():
    with repaired():
        yield


SETTINGS = [{"kv_cache_dtype": "fp8_e4m3", "disable_cuda_graph": True}, {"dtype": "bfloat16"}]


def request(slot, prompt, pages, computed=0):
    return Request(slot, prompt, pages, sampling=LOGPROBS, computed=computed)


def first(done):
    return done.logprobs[0]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_same_bits_hot_cold_chunked_batched_and_decoded(make_runner, settings):
    runner = make_runner("triton", enable_deterministic_inference=True, **settings)
    cold = request(0, PROMPT, PAGES)
    want = [first(step(runner, cold.prefill(), admits=[cold.admit]))]
    tokens = [want[0].top[0][0]]
    for _ in range(3):
        want.append(first(step(runner, cold.decode())))
        tokens.append(want[-1].top[0][0])

    for computed in (1, 17):  # hot: the cold run's pages
        hot = request(1, PROMPT, PAGES, computed)
        assert first(step(runner, hot.prefill(), admits=[hot.admit])) == want[0], computed
        free(runner, 1)

    for end in (1, 3):  # what was decoded is now a prompt; nothing of it was computed before
        prompt = PROMPT + tokens[:end]
        again = request(2, prompt, [30, 31, 32, 33])
        assert first(step(runner, again.prefill(), admits=[again.admit])) == want[end], end
        free(runner, 2)

    chunked = request(3, PROMPT, [20, 21, 23, 24])  # in chunks, beside others
    beside = request(4, OTHER, [60, 9, 33, 34])
    step(runner, chunked.prefill(3), admits=[chunked.admit])
    step(runner, beside.prefill(), chunked.prefill(11), cold.decode(), admits=[beside.admit])
    done = step(runner, beside.decode(), chunked.prefill(), cold.decode())
    assert done.logprobs[1] == want[0]
    for place in (1, 2, 3):
        done = step(runner, cold.decode(), chunked.decode(), beside.decode())
        assert done.logprobs[1] == want[place]
    free(runner, 0, 3, 4)


def test_shared_pages_give_the_bits_of_own_ones(make_runner):
    runner = make_runner("triton", enable_deterministic_inference=True)
    prompts = [PROMPT * 2 + [last] for last in (3, 5, 8)]
    alone = []
    for slot, prompt in enumerate(prompts):
        own = request(slot, prompt, [slot * 6 + page for page in range(6)])
        alone.append([first(step(runner, own.prefill(), admits=[own.admit]))])
        alone[-1].append(first(step(runner, own.decode())))
        free(runner, slot)
    trunk = [40, 41, 42, 43]
    rows = [
        request(slot, prompt, [*trunk, 50 + slot, 55 + slot]) for slot, prompt in enumerate(prompts)
    ]
    together = [step(runner, rows[0].prefill(), admits=[rows[0].admit]).logprobs[0]]
    for row in rows[1:]:
        row.computed = 32
    done = step(
        runner, *(row.prefill() for row in rows[1:]), admits=[row.admit for row in rows[1:]]
    )
    assert [*together, *done.logprobs] == [pair[0] for pair in alone]
    done = step(runner, *(row.decode() for row in rows))
    assert list(done.logprobs) == [pair[1] for pair in alone]
    plan = runner._attention._planner
    assert max(len(group.slots) for group in plan._known.values()) == 3, "they share a read"
    runner.run(RunStep(step=0, rows=(), frees=(0, 1, 2)))
