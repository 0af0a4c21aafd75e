"""What templates do, found by rendering."""

from pathlib import Path

import pytest

from radixserve.tokenizer.templates import ChatTemplate
from radixserve.tokenizer.traits import Traits, traits_of
from radixserve.tokenizer.vocabulary import Vocabulary
from tests.tokenizer import folders

TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
TURNS = f"{{% for m in messages %}}{TURN}{{% endfor %}}"
HEADER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TOOLS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
SORTED = (
    "{% for t in (tools or []) | sort(attribute='function.name') %}{{ t | tojson }}{% endfor %}"
)
THOUGHTS = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
LATE_TOOLS = (  # as Mistral's: before the last user's message
    "{% for m in messages %}{% if tools and loop.last %}{{ tools | tojson }}{% endif %}"
    f"{TURN}{{% endfor %}}"
)
LAST_THOUGHTS = (  # as Qwen3's
    f"{{% for m in messages %}}{{% if loop.last %}}{THOUGHTS}{{% endif %}}{TURN}{{% endfor %}}"
)
EMPTY_THOUGHTS = TURNS + HEADER.replace("assistant\n", "assistant\n<think>\n\n</think>\n\n")
PLAIN = Traits(turn_end="<|im_end|>", prints_system=True, drops_reasoning=True)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder: Path = tmp_path_factory.mktemp("vocabulary")
    return Vocabulary(folders.byte_level(folder))


def found(source: str, vocabulary: Vocabulary) -> Traits:
    return traits_of(ChatTemplate(source, vocabulary), vocabulary)


def test_a_plain_template(vocabulary: Vocabulary) -> None:
    assert found(TURNS + HEADER, vocabulary) == PLAIN


@pytest.mark.parametrize(
    ("source", "trait", "note"),
    [
        ("{{ strftime_now('%d %b %Y') }}" + TURNS, "prints_date", "the date"),
        (SORTED + TURNS, "sorts_tools", "sorts tools"),
        (LATE_TOOLS, "moves", "in another way"),
        (EMPTY_THOUGHTS, "moves", "in another way"),
        (LAST_THOUGHTS, "drops_reasoning", "leaves out the reasoning"),
    ],
)
def test_what_breaks_prefixes_is_said(
    source: str, trait: str, note: str, vocabulary: Vocabulary
) -> None:
    traits = found(source, vocabulary)
    assert getattr(traits, trait)
    assert any(note in text for text in traits.notes())
    assert not getattr(found(TOOLS + TURNS + HEADER, vocabulary), trait) or trait in (
        "drops_reasoning",
    )


def test_tools_and_system(vocabulary: Vocabulary) -> None:
    assert found(TOOLS + TURNS, vocabulary).prints_tools
    assert not found(TURNS, vocabulary).prints_tools
    refuses = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}"
    assert not found(f"{refuses}{{% endif %}}{TURN}{{% endfor %}}", vocabulary).prints_system


def test_reasoning_that_stays(vocabulary: Vocabulary) -> None:
    keeps = f"{{% for m in messages %}}{THOUGHTS}{TURN}{{% endfor %}}"
    assert not found(keeps, vocabulary).drops_reasoning


def test_the_mark_behind_an_answer(vocabulary: Vocabulary) -> None:
    assert found(TURNS.replace("<|im_end|>\n", " <s>"), vocabulary).turn_end == "<s>"
    assert found("{% for m in messages %}{{ m.content }}\n{% endfor %}", vocabulary).turn_end == ""


def test_a_template_that_fails(vocabulary: Vocabulary) -> None:
    assert found("{{ raise_exception('never') }}", vocabulary) == Traits()
