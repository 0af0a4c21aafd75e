"""The bound on what is remembered, with all that turns keep of the conversations before them."""

import random

from radixserve.api.history.store import TURN_COST, Said, Splice, Turn, TurnStore
from radixserve.messages import pack


def turn(key: bytes, before: Turn | None = None, tokens: int = 1) -> Turn:
    splice = before and Splice(before, 0)
    return Turn(key, Said("x"), pack([0] * tokens), 0, b"", splice)


def kept(store: TurnStore) -> set[Turn]:
    return {each for found in store._turns.values() for each in found.path()}


def test_what_others_build_on_counts() -> None:
    rng = random.Random(0)
    store = TurnStore(12 * (TURN_COST + 5))
    made: list[Turn] = []
    for i in range(2000):
        before = rng.choice([None, *made[-20:]])
        key = b"%d" % (i if rng.random() < 0.8 else rng.randrange(i + 1))
        made.append(turn(key, before, rng.randrange(1, 10)))
        if rng.random() < 0.5:
            store.find([each.key for each in rng.sample(made, min(4, len(made)))])
        store.add(made[-1])
        assert store.size == sum(each.cost for each in kept(store)) <= store._most
        assert store._holds.keys() == kept(store)


def test_of_a_conversation_the_last_turns_go_first() -> None:
    store = TurnStore(4 * turn(b"").cost)
    last: Turn | None = None
    for i in range(4):
        store.find([b"%d" % at for at in range(i)])
        last = turn(b"%d" % i, last)
        store.add(last)
    store.add(turn(b"other"))
    assert store.find([b"0", b"1", b"2", b"3", b"other"]).keys() == {b"0", b"1", b"2", b"other"}
