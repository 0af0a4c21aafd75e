"""What the answer to a conversation must fit, of all that its request says about it."""

from radixserve.api.errors import ApiError
from radixserve.api.fields import GenerationFields
from radixserve.api.front import Front
from radixserve.api.grammar import JSON_FORMATS, either, judged
from radixserve.api.reading import Choice, Reading
from radixserve.parsing.grammars.forced import forced_calls
from radixserve.parsing.grammars.schema import ANY_OBJECT, Unenforceable
from radixserve.parsing.grammars.strict import strict_calls
from radixserve.parsing.tools import Tool


def answer_grammar(
    front: Front, fields: GenerationFields, asked: str, reading: Reading, prompt: str
) -> str:
    """The grammar; "": anything. `asked`: that of the answer's format. `prompt`: it, or its end.

    Slow: call it in a thread. Raises ApiError 400.
    """
    if reading.grammar:  # a format is one of the answer's text, and forced calls have none
        return reading.grammar
    if not asked:
        return _strict(front, reading, prompt)
    if (fields.response_format or {}).get("type") in JSON_FORMATS:
        return _or_calls(front, reading.choice, asked)
    return asked


def _or_calls(front: Front, choice: Choice, answer: str) -> str:
    """Texts that fit `answer`, or calls where the tools offered may be called.

    Arguments of tools that are not strict are any object, as where nothing is asked of the text.
    `answer` as it is where the model writes calls in no form that a grammar can tell from a text.
    """
    if not choice.tools:
        return answer
    offered = [tool if tool.strict else Tool(tool.name, ANY_OBJECT) for tool in choice.tools]
    calls = forced_calls(
        front.format, offered, several=choice.several, special_tokens=front.grammar_tokens
    )
    if calls.format is not front.format:
        return answer
    return judged(either(answer, calls.grammar), "tools", front.judge.fault)


def _strict(front: Front, reading: Reading, prompt: str) -> str:
    """What holds calls to the schemas of strict tools where the model is free to call."""
    choice, format = reading.choice, reading.format
    if not any(tool.strict for tool in choice.tools):
        return ""
    if format is None or (format.calls is None and not format.harmony):
        front.note("strict tools are not enforced: no format of calls is known for this model")
        return ""
    try:
        grammar = strict_calls(
            format,
            choice.tools,
            several=choice.several,
            special_tokens=front.grammar_tokens,
            prompt=prompt,
        )
    except Unenforceable as error:
        wrong = f"tools: a strict schema has {error}, which this model's format cannot enforce"
        raise ApiError(400, wrong, param="tools", code="invalid_grammar") from None
    return judged(grammar, "tools", front.judge.fault)
