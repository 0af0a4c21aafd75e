"""Constrained rows choose what their grammar allows and nothing else, over all samplers."""

import json
from collections.abc import Iterator

import pytest
import torch
from llguidance import LLMatcher

from radixserve.messages import Admit, Sampling, pack
from radixserve.worker.sampling import SAMPLERS, Grammars, Sampler
from tests.checkpoints import END_OF_TEXT, IM_END, VOCAB_SIZE

CPU = torch.device("cpu")
AB = LLMatcher.grammar_from_regex("(a|b){3}")
OBJECT = LLMatcher.grammar_from_json_schema(
    {
        "type": "object",
        "properties": {"n": {"enum": [1, 22]}, "on": {"type": "boolean"}},
        "required": ["n", "on"],
        "additionalProperties": False,
    },
    defaults={"whitespace_flexible": False},
)


@pytest.fixture(scope="module")
def grammars(checkpoint) -> Grammars:
    return Grammars(checkpoint, VOCAB_SIZE, (END_OF_TEXT,))


@pytest.fixture(scope="module")
def text_of(checkpoint):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    return lambda tokens: tokenizer.decode(tokens, skip_special_tokens=False)


@pytest.fixture(params=SAMPLERS)
def sampler(request, grammars) -> Iterator[Sampler]:
    yield SAMPLERS[request.param](4, VOCAB_SIZE, CPU, grammars)


def admit(sampler, slot, grammar, answer=(), **sampling):
    asked = Sampling(seed=slot, grammar=grammar, stop_ids=(END_OF_TEXT, IM_END), **sampling)
    sampler.admit(Admit(slot, asked, pack([5, 6, *answer]), 2))


def run(sampler, slots, steps, seed=0):
    """Tokens of `slots` over some steps of random logits."""
    generator = torch.Generator().manual_seed(seed)
    found = [[] for _ in slots]
    for step in range(steps):
        logits = torch.randn(len(slots), VOCAB_SIZE, generator=generator) * 4
        tokens = sampler.sample(logits, slots, [step] * len(slots)).tokens.tolist()
        for each, token in zip(found, tokens, strict=True):
            each.append(token)
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_fits_its_grammar_and_ends_there(sampler, text_of, temperature):
    admit(sampler, 0, OBJECT, temperature=temperature)
    admit(sampler, 1, "", temperature=temperature)
    admit(sampler, 2, AB, temperature=temperature)
    fitted, free, letters = run(sampler, [0, 1, 2], 40)
    text = text_of(fitted[: next(i for i, t in enumerate(fitted) if t in (END_OF_TEXT, IM_END))])
    assert set(json.loads(text)) == {"n", "on"}
    assert set(text_of(letters[:3])) <= {"a", "b"} and letters[3] in (END_OF_TEXT, IM_END)
    assert len(set(free)) > 10, "others choose as they like"


def test_any_stop_id_may_end_an_answer(sampler):
    admit(sampler, 0, LLMatcher.grammar_from_regex("a"), temperature=0.0)
    run(sampler, [0], 1)
    for stop in (IM_END, END_OF_TEXT):
        logits = torch.zeros(1, VOCAB_SIZE)
        logits[0, [stop, 40]] = torch.tensor([5.0, 9.0])
        assert sampler.sample(logits, [0], [1]).tokens.tolist() == [stop]


def test_a_preempted_request_goes_on_where_it_was(sampler):
    admit(sampler, 0, AB, temperature=0.0)
    (before,) = run(sampler, [0], 2)
    sampler.free(0)
    admit(sampler, 3, AB, answer=before, temperature=0.0)
    (after,) = run(sampler, [3], 2)
    assert after[1] in (END_OF_TEXT, IM_END) and after[0] not in (END_OF_TEXT, IM_END)


def test_a_slot_remembers_no_grammar(sampler):
    admit(sampler, 0, AB)
    run(sampler, [0], 1)
    sampler.free(0)
    admit(sampler, 0, OBJECT, temperature=0.0)
    run(sampler, [0], 1)  # the token chosen before is not fed to the new grammar
    sampler.free(0)
    admit(sampler, 0, "")
    assert len(set(run(sampler, [0], 20)[0])) > 10


def test_no_bias_or_penalty_gets_around_a_grammar(sampler, text_of):
    bias = tuple((token, 100.0) for token in range(50, 60))
    admit(sampler, 0, AB, temperature=1.0, logit_bias=bias, repetition_penalty=2.0)
    (tokens,) = run(sampler, [0], 3)
    assert set(text_of(tokens)) <= {"a", "b"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_allowed_ids_are_chosen(sampler, temperature):
    ids = [0, 31, 32, 77, VOCAB_SIZE - 1]
    for slot in (0, 1, 2):
        admit(sampler, slot, "", temperature=temperature, allowed_ids=pack(ids) * (slot != 1))
    found = run(sampler, [0, 1, 2], 60)
    assert set(found[0]) == set(found[2]) == set(ids)
    assert len(set(found[1])) > 10, "others choose as they like"
    sampler.free(0)
    admit(sampler, 0, "", temperature=temperature)
    assert len(set(run(sampler, [0], 20)[0])) > 10, "a slot remembers no list"


def test_no_bias_gets_around_a_list(sampler):
    bias = tuple((token, 100.0) for token in range(50, 60))
    admit(sampler, 0, "", temperature=0.0, logit_bias=bias, allowed_ids=pack([7, 9]))
    assert set(run(sampler, [0], 9)[0]) == {7, 9}


def test_a_grammar_and_a_list_hold_both(sampler, text_of):
    letters = {text: token for token in range(VOCAB_SIZE) if (text := text_of([token])) in "ab"}
    only_a = pack([letters["a"], letters["b"] + 1])
    admit(sampler, 0, AB, temperature=0.0, allowed_ids=only_a)
    (tokens,) = run(sampler, [0], 4)
    assert text_of(tokens[:3]) == "aaa"
    assert tokens[3] in (END_OF_TEXT, IM_END), "an answer that is complete can end"


def test_what_no_token_fits_is_barred_alone(sampler):
    admit(sampler, 0, "start: /(unclosed/")
    admit(sampler, 1, "", temperature=0.0)
    logits = torch.randn(2, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    best = int(logits[1].argmax())
    assert sampler.sample(logits, [0, 1], [1, 1]).tokens.tolist() == [-2, best]


def test_log_probabilities_are_of_the_model_not_of_the_grammar(sampler):
    admit(sampler, 0, AB, temperature=0.0, top_logprobs=1)
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 77] = 9.0
    sampled = sampler.sample(logits, [0], [1])
    (entry,) = sampled.logprobs.messages(1)
    assert entry.top[0][0] == 77 != sampled.tokens.item()


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_tokenizer_that_cannot_be_read_bars_one_row_alone(name, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    sampler = SAMPLERS[name](2, VOCAB_SIZE, CPU, Grammars(tmp_path, VOCAB_SIZE, ()))
    admit(sampler, 0, AB)
    admit(sampler, 1, "", temperature=0.0)
    for position in (1, 2):
        logits = torch.zeros(2, VOCAB_SIZE)
        logits[1, 9] = 5.0
        assert sampler.sample(logits, [0, 1], [position] * 2).tokens.tolist() == [-2, 9]
