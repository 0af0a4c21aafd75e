"""The request fields that all OpenAI generation routes share, and what they mean to the engine.

Ranges are checked by the types; what needs the model's limits is checked here.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from radixserve.api.defaults import SamplingDefaults
from radixserve.api.errors import ApiError
from radixserve.api.grammar import GrammarFields, Judge, make_grammar
from radixserve.messages import Ready, Sampling, pack
from radixserve.tokenizer.bans import banned_ids
from radixserve.tokenizer.prompt import check_id
from radixserve.tokenizer.vocabulary import Vocabulary

T = TypeVar("T")

SEED_BITS = 63  # a client's seed is taken modulo 2**63
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024  # characters; every new token is compared with it
MAX_BIASES = 1024
MAX_BAD_WORDS = 256
BAN = -1e9  # added to a logit whose token must not come; finite, as a row must keep a maximum
GREEDY_BELOW = 1e-5  # temperatures under it would overflow when logits are divided by them

Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=1)]


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: usage on every chunk


class GenerationFields(GrammarFields, frozen=True, kw_only=True):
    """null is the same as absent for every field."""

    model: str | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None  # the same; wins over max_tokens
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 30)] | None = None  # -1 and 0: off
    min_p: Share | None = None
    n: Annotated[int, Meta(ge=1, le=16)] | None = None
    best_of: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None  # SGLang's: the same
    skip_special_tokens: bool | None = None  # false: they are spelled out in the answer
    bad_words: list[str] | None = None
    seed: int | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None  # vLLM's: no other token comes
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # has no effect, as OpenAI's
    cache_salt: str | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)] | None = None
    add_special_tokens: bool | None = None  # false: no BOS before the prompt but what is written
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None  # the last n; -1: what fits

    @property
    def skip_special(self) -> bool:
        return self.skip_special_tokens is not False

    @property
    def include_stop(self) -> bool:
        return bool(self.include_stop_str_in_output or self.no_stop_trim)

    @property
    def limit(self) -> int:
        """Most tokens of the answer, as asked for; 0: nothing was asked."""
        return self.max_completion_tokens or self.max_tokens or 0

    @property
    def prompt_best(self) -> int:
        """How many of the best tokens are wanted at each place of the prompt; -1: nothing is."""
        return -1

    @property
    def first_scored(self) -> int:
        """The first token of the prompt of which that is wanted."""
        return 0

    @property
    def prompt_only(self) -> bool:
        """Whether nothing is wanted but what is said of the prompt."""
        return False

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class ScoredFields(GenerationFields, frozen=True, kw_only=True):
    """And those of the routes that tell more of tokens, and of those of prompts."""

    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None  # vLLM's
    logprob_start_len: Annotated[int, Meta(ge=0)] | None = None  # SGLang's: of tokens from here on
    return_token_ids: bool | None = None  # vLLM's: of prompt and answer
    return_tokens_as_token_ids: bool | None = None  # vLLM's: logprobs name tokens `token_id:7`

    @property
    def prompt_best(self) -> int:
        return -1 if self.prompt_logprobs is None else self.prompt_logprobs

    @property
    def first_scored(self) -> int:
        return self.logprob_start_len or 0

    def token_name(self, vocabulary: Vocabulary) -> Callable[[int], str]:
        """How log probabilities name a token."""
        return "token_id:{}".format if self.return_tokens_as_token_ids else vocabulary.token_text

    def check_scored(self) -> None:
        """Raises ApiError 400."""
        if self.stream and self.prompt_logprobs is not None:
            text = "prompt_logprobs are not available in a stream"
            raise ApiError(400, text, param="prompt_logprobs")


def check_fields(fields: GenerationFields) -> None:
    """What does not depend on the model. Raises ApiError 400."""
    choices = fields.n or 1
    if fields.best_of not in (None, 1, choices):
        raise ApiError(400, "best_of must be 1 or equal to n", param="best_of")
    check_stops(fields.stops, "stop")
    if len(fields.bad_words or ()) > MAX_BAD_WORDS:
        raise ApiError(400, f"bad_words: at most {MAX_BAD_WORDS}", param="bad_words")
    if fields.truncate_prompt_tokens == 0:
        raise ApiError(
            400, "truncate_prompt_tokens: -1 or at least 1", param="truncate_prompt_tokens"
        )


def check_stops(stops: Sequence[str], param: str) -> None:
    """Raises ApiError 400."""
    if len(stops) > MAX_STOPS:
        raise ApiError(400, f"{param}: at most {MAX_STOPS} strings", param=param)
    if not all(0 < len(stop) <= MAX_STOP_LENGTH for stop in stops):
        raise ApiError(400, f"{param}: strings of 1 to {MAX_STOP_LENGTH} characters", param=param)


def answer_limit(fields: GenerationFields, prompt_tokens: int, ready: Ready, default: int) -> int:
    """Most tokens of one answer: what was asked for, but not more than the context has left.

    `default`: where nothing was asked for; 0: all that is left.
    """
    left = ready.max_total_tokens - prompt_tokens
    usual = max(default, fields.min_tokens or 0) if default else left
    return min(fields.limit or usual, left)


def kept_tokens(fields: GenerationFields, ready: Ready) -> int | None:
    """How many of a prompt's last tokens count; None: all, and too many are refused."""
    if fields.truncate_prompt_tokens != -1:
        return fields.truncate_prompt_tokens
    return max(ready.max_total_tokens - max(fields.limit, 1), 1)


def or_default(value: T | None, default: T) -> T:
    return default if value is None else value


def make_sampling(
    fields: GenerationFields,
    ready: Ready,
    vocabulary: Vocabulary,
    top_logprobs: int,
    judge: Judge,
    defaults: SamplingDefaults,
) -> Sampling:
    """The sampling of the first choice. Raises ApiError or InvalidRequest (400).

    Compiles a grammar, if there is one: call it in a thread.
    """
    temperature = or_default(fields.temperature, defaults.temperature)
    top_p = or_default(fields.top_p, defaults.top_p)
    top_k = max(or_default(fields.top_k, defaults.top_k), 0)
    if top_p == 0.0:  # nothing but the best token
        top_p, top_k = 1.0, 1
    if fields.limit and (fields.min_tokens or 0) > fields.limit:
        raise ApiError(400, "min_tokens is larger than max_tokens", param="min_tokens")
    return Sampling(
        seed=secrets.randbits(SEED_BITS) if fields.seed is None else fields.seed % (1 << SEED_BITS),
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        top_k=top_k if top_k < ready.vocab_size else 0,
        top_p=top_p,
        min_p=or_default(fields.min_p, defaults.min_p),
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=or_default(fields.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_logit_bias(fields, ready, vocabulary),
        top_logprobs=top_logprobs,
        min_tokens=min(fields.min_tokens or 0, ready.max_total_tokens),
        stop_ids=_stop_ids(fields, ready, vocabulary.eos_ids),
        grammar=make_grammar(fields, judge),
        prompt_logprobs=fields.prompt_best,
        logprob_start=fields.first_scored,
        allowed_ids=_allowed_ids(fields, ready),
    )


def nth_sampling(sampling: Sampling, choice: int) -> Sampling:
    """The sampling of one of n choices: they differ by their seeds, and the first one has to tell
    what is wanted of the prompt."""
    seed = (sampling.seed + choice) % (1 << SEED_BITS)
    best = -1 if choice else sampling.prompt_logprobs
    return msgspec.structs.replace(sampling, seed=seed, prompt_logprobs=best)


def _logit_bias(
    fields: GenerationFields, ready: Ready, vocabulary: Vocabulary
) -> tuple[tuple[int, float], ...]:
    biases = fields.logit_bias or {}
    if len(biases) > MAX_BIASES:
        raise ApiError(400, f"logit_bias: at most {MAX_BIASES} entries", param="logit_bias")
    out = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise ApiError(400, f"logit_bias: {key[:50]} is not a token id", param="logit_bias")
        check_id(int(key), ready, "logit_bias")
        if not -100 <= bias <= 100:
            raise ApiError(400, "logit_bias: values from -100 to 100", param="logit_bias")
        out[int(key)] = bias
    for token in banned_ids(fields.bad_words or (), vocabulary):
        if token < ready.vocab_size:
            out[token] = BAN
    return tuple(out.items())


def _allowed_ids(fields: GenerationFields, ready: Ready) -> bytes:
    allowed = fields.allowed_token_ids
    if allowed is None:
        return b""
    if not allowed:
        raise ApiError(400, "allowed_token_ids: at least one", param="allowed_token_ids")
    for token in (min(allowed), max(allowed)):
        check_id(token, ready, "allowed_token_ids")
    return pack(sorted(set(allowed)))


def _stop_ids(fields: GenerationFields, ready: Ready, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    asked = fields.stop_token_ids or []
    for token in asked:
        check_id(token, ready, "stop_token_ids")
    eos = () if fields.ignore_eos else (i for i in eos_ids if i < ready.vocab_size)
    return tuple(sorted({*asked, *eos}))
