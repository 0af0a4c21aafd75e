"""How tokens are chosen where a request does not say: as the model's makers advise, or as OpenAI.

`front.py` reads it once; `fields.py` fills in what a request leaves out.
"""

import json
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

FILE = "generation_config.json"
MODEL, OPENAI = "model", "openai"


class SamplingDefaults(Struct, frozen=True, forbid_unknown_fields=True):
    """For fields that are absent or null. These here are OpenAI's: the model's own distribution."""

    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=1 << 30)] = 0  # -1 and 0: off
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] = 1.0


def read_defaults(folder: Path, setting: str) -> SamplingDefaults:
    """The defaults that `--sampling-defaults` asks for, with the checkpoint in `folder`.

    setting: "model", what generation_config.json there says unless it turns sampling off; "openai";
    or a JSON object of `SamplingDefaults`' fields, which replace the model's. Raises ValueError,
    with a sentence for the operator.
    """
    if setting == OPENAI:
        return SamplingDefaults()
    given = {} if setting == MODEL else _object(setting)
    return _checked(_of_model(folder) | given)


def _object(text: str) -> dict[str, object]:
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ValueError(
            f"--sampling-defaults must be {MODEL}, {OPENAI} or a JSON object, is {text[:200]}"
        )
    return given


def _of_model(folder: Path) -> dict[str, object]:
    try:
        config = json.loads((folder / FILE).read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(
            f"{FILE} is not JSON ({error}); --sampling-defaults {OPENAI} does not read it"
        ) from None
    if not isinstance(config, dict) or config.get("do_sample") is False:
        return {}
    names = SamplingDefaults.__struct_fields__
    return {name: config[name] for name in names if config.get(name) is not None}


def _checked(values: dict[str, object]) -> SamplingDefaults:
    try:
        return msgspec.convert(values, SamplingDefaults)
    except msgspec.ValidationError as error:
        raise ValueError(
            f"{FILE} or --sampling-defaults: {error}; --sampling-defaults {OPENAI} uses neither"
        ) from None
