"""The beginning of a conversation's next prompt, computed while its user reads and types.

Where a template leaves out the reasoning of earlier turns, or prints a turn in another way once the
next one comes, the next prompt does not go on from the tokens that were generated: what differs is
computed when the answer has ended, and the next turn hits it.
"""

from msgspec.structs import replace

from radixserve.api.front import Front, new_id
from radixserve.api.history.store import Said
from radixserve.api.prompts import Conversation, draft
from radixserve.messages import Namespace, Ready, Sampling, Submit, pack
from radixserve.tokenizer.engine import EngineStopped, RequestRejected
from radixserve.tokenizer.invalid import InvalidRequest
from radixserve.tokenizer.prompt import check_prompt

MARK = "\ue000radixserve-ahead\ue000"  # the next message's text, in no real conversation
LAST = -(1 << 31)  # the lowest priority


def may_differ(front: Front) -> bool:
    """Whether any next prompt might not go on from an answer's own tokens."""
    format = front.format
    thinks = format is not None and (format.thoughts is not None or format.harmony)
    return thinks or front.traits.moves


async def compute_ahead(front: Front, chat: Conversation, salt: str, said: Said) -> None:
    """Does nothing while requests wait, or if the next prompt goes on from the answer as it is."""
    engine = front.engine
    ready, stats = engine.ready, engine.stats
    if engine.stopped or engine.draining or ready is None or stats is None or stats.waiting:
        return
    tokens = await front.in_thread(lambda: next_beginning(front, chat, salt, said, ready))
    if not tokens:
        return
    submit = Submit(
        request_id=new_id("ahead"),
        origin=engine.origin,
        prompt=pack(tokens),
        sampling=Sampling(seed=0, temperature=0.0),
        max_tokens=1,
        namespace=Namespace(salt=salt),
        priority=LAST,
    )
    try:
        with engine.submit([submit], observer=front.metrics.ahead, needed=False) as stream:
            async for _ in stream:
                pass
    except (RequestRejected, EngineStopped):
        return  # it was only to save time


def next_beginning(
    front: Front, chat: Conversation, salt: str, said: Said, ready: Ready
) -> list[int]:
    """Tokens up to where the next message's own text begins; [] if there is nothing to compute."""
    behind = {"role": "tool" if said.calls else "user", "content": MARK}
    messages = [*chat.messages, said.message(), behind]
    try:
        made = draft(front, replace(chat, messages=messages), salt)
        if made.splices and made.splices[-1].turn.said is said:
            return []
        stop = made.text.find(MARK)
        parts = made.parts(stop) if stop > 0 else []
        tokens = front.vocabulary.encode(parts, chat.add_special_tokens)
        return check_prompt(tokens, ready, "messages")
    except InvalidRequest:
        return []  # no template can be asked for everything
