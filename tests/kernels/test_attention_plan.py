"""A plan computes every (token, chunk) once, on its own pages, whatever comes and is shared."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_kernels.attention_plan import Planner
from radixserve_kernels.tiles import AttentionTiles, Tile

SLOTS, PAGES = 6, 24


def tiles_of(chunk, split_tokens=9, narrow=16, wide=64, tile=32):
    forms = {"narrow": narrow, "wide": wide, "tile": tile}
    return AttentionTiles(
        chunk, split_tokens, **{name: Tile(m, 16, 4, 3) for name, m in forms.items()}
    )


class Slots:
    """Page tables of slots, some of which begin alike, and a planner that follows them."""

    def __init__(self, *, page_size=4, group=4, chunk=16, max_parts=1000, **tiles):
        self.page_size = page_size
        self.group = group
        self.tiles = tiles_of(chunk, **tiles)
        self.max_parts = max_parts
        self.table = np.full((SLOTS, PAGES), -1, np.int32)
        self.length = {}  # of the slots in use
        self.next_page = 0
        self.planner = Planner(
            self.table, page_size=page_size, group=group, tiles=self.tiles, max_parts=max_parts
        )

    def admit(self, slot, length, like=None):
        """A request with `length` tokens in the cache, on pages of its own or those of `like`."""
        if slot in self.length:
            self.planner.forget(slot)
        self.table[slot] = -1
        self.length[slot] = length
        pages = -(-length // self.page_size)
        self.extend(slot, 0)
        if like is not None:
            whole = min(length, self.length[like]) // self.page_size
            self.table[slot, :whole] = self.table[like, :whole]
        assert (self.table[slot, :pages] >= 0).all()

    def extend(self, slot, new):
        pages = -(-(self.length[slot] + new) // self.page_size)
        for index in np.flatnonzero(self.table[slot, :pages] < 0):
            self.table[slot, index] = self.next_page
            self.next_page += 1

    def step(self, new):
        """Plan and check a step of {slot: new tokens}, and take it as done."""
        for slot, count in new.items():
            self.extend(slot, count)
        slots = np.array(list(new), np.int32)
        start = np.array([self.length[slot] for slot in new], np.int32)
        count = np.array(list(new.values()), np.int32)
        plan = self.planner.plan(slots, start, count)
        self.check(plan, slots, start, count)
        for slot, n in new.items():
            self.length[slot] += n
        return plan

    def check(self, plan, slots, start, new):
        chunk, group = self.tiles.chunk, self.group
        token_slot = np.repeat(slots, new)
        position = np.concatenate([s + np.arange(n) for s, n in zip(start, new, strict=True)])
        tiled = np.zeros(len(position), int)
        for slot, first, count, at in plan.tiles.tolist():
            assert 0 < count * group <= self.tiles.tile.block_m
            assert (token_slot[first : first + count] == slot).all()
            assert (position[first : first + count] == at + np.arange(count)).all()
            tiled[first : first + count] += 1
        done = {}
        for items, form in ((plan.narrow, self.tiles.narrow), (plan.wide, self.tiles.wide)):
            assert items.shape[1] == 2 + form.block_m // group
            for slot, index, *members in items.tolist():
                found = [plan.lookup[member] for member in members if member >= 0]
                for token in (token for token in found if token >= 0):
                    done[token, index] = done.get((token, index), 0) + 1
                    stop = min((index + 1) * chunk, position[token] + 1)
                    pages = slice(index * chunk // self.page_size, -(-stop // self.page_size))
                    theirs = self.table[token_slot[token], pages]
                    assert (self.table[slot, pages] == theirs).all()
        parts = np.diff(plan.part_start)
        assert plan.num_parts <= self.max_parts
        wanted = {}
        for token, at in enumerate(position.tolist()):
            assert tiled[token] + (parts[token] > 0) == 1
            if not tiled[token]:
                assert parts[token] == at // chunk + 1
                wanted |= {(token, index): 1 for index in range(at // chunk + 1)}
        assert done == wanted
        if plan.same_items:
            for items, before in zip((plan.narrow, plan.wide), self.before, strict=True):
                assert (items == before[: len(items)]).all()
        self.before = plan.narrow.copy(), plan.wide.copy()
        assert all(array.dtype == np.int32 for array in plan.arrays().values())


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_life(data):
    slots = Slots(
        page_size=data.draw(st.sampled_from([1, 4, 16, 64])),
        group=data.draw(st.sampled_from([1, 3, 4, 16])),
        max_parts=data.draw(st.sampled_from([0, 3, 20, 1000])),
    )
    most = min(PAGES * slots.page_size, 90)
    for _ in range(data.draw(st.integers(1, 12))):
        for slot in data.draw(st.sets(st.integers(0, SLOTS - 1), max_size=3)):
            others = sorted(slots.length.keys() - {slot})
            like = data.draw(st.sampled_from([None, *others]))
            length = data.draw(st.integers(0, most - 20))
            if like is not None:
                length = min(length, slots.length[like])
            slots.admit(slot, length, like)
        room = [slot for slot, length in slots.length.items() if length + 14 <= most]
        if not room:
            continue
        chosen = data.draw(st.sampled_from([room, room[:1], room[::-1]]))
        new = {slot: data.draw(st.sampled_from([1, 1, 1, 2, 9, 10, 14])) for slot in chosen}
        if data.draw(st.booleans()):
            new = dict.fromkeys(chosen, 1)
        slots.step(new)


def members(items):
    """chunk -> numbers of members of its items, but for items without any."""
    found = {}
    for _, chunk, *members in items.tolist():
        if count := sum(member >= 0 for member in members):
            found.setdefault(chunk, []).append(count)
    return found


@pytest.mark.parametrize("new", [1, 2])
def test_a_shared_chunk_is_read_once(new):
    slots = Slots(narrow=16 * new)
    slots.admit(0, 40)
    for slot in range(1, 6):
        slots.admit(slot, 36, like=0)
    plan = slots.step(dict.fromkeys(range(6), new))
    assert members(plan.wide) == {0: [6 * new], 1: [6 * new]}
    assert members(plan.narrow) == {2: [new] * 6}


def test_more_sharers_than_a_wide_tile_holds():
    slots = Slots(group=16)
    slots.admit(0, 16)
    for slot in range(1, 6):
        slots.admit(slot, 16, like=0)
    assert members(slots.step(dict.fromkeys(range(6), 1)).wide) == {0: [4, 2]}
    slots.admit(3, 16)
    assert members(slots.step(dict.fromkeys(range(6), 1)).wide) == {0: [4, 1]}
    for slot in (0, 1, 2, 4):
        slots.admit(slot, 16)
    plan = slots.step(dict.fromkeys(range(6), 1))
    assert members(plan.wide) == {} and members(plan.narrow)[0] == [1] * 6


def test_items_stay_until_a_chunk_begins():
    slots = Slots(chunk=32)
    slots.admit(0, 29)
    slots.admit(1, 11)
    assert not slots.step({0: 1, 1: 1}).same_items
    assert slots.step({0: 1, 1: 1}).same_items
    assert slots.step({0: 1, 1: 1}).same_items  # the chunk of slot 0 is whole from here on
    plan = slots.step({0: 1, 1: 1})
    assert not plan.same_items and members(plan.narrow) == {0: [1, 1], 1: [1]}
    assert slots.step({1: 1}).same_items
    assert slots.step({1: 1, 0: 1}).same_items


def test_a_row_of_several_tokens_beside_items_that_stay():
    slots = Slots()
    slots.admit(0, 19)
    slots.admit(1, 20)
    slots.step({0: 1})
    assert not slots.step({0: 1, 1: 5}).same_items
    assert slots.step({0: 1}).same_items


def test_a_slot_with_another_request_is_planned_anew():
    slots = Slots(narrow=32)
    slots.admit(0, 33)
    slots.admit(1, 33, like=0)
    assert members(slots.step({0: 1, 1: 1}).narrow) == {0: [2], 1: [2], 2: [1, 1]}
    slots.admit(1, 34)
    assert members(slots.step({0: 1, 1: 1}).narrow) == {0: [1, 1], 1: [1, 1], 2: [1, 1]}


def test_what_finds_no_room_becomes_tiles():
    slots = Slots(max_parts=4)
    slots.admit(0, 60)
    slots.admit(1, 17)
    plan = slots.step({0: 1, 1: 1})
    assert plan.tiles.tolist() == [[0, 0, 1, 60]] and plan.num_parts == 2


@pytest.mark.parametrize("new", [9, 10])
def test_long_rows_are_tiles(new):
    slots = Slots(group=1)
    slots.admit(0, 20)
    plan = slots.step({0: new})
    assert bool(len(plan.tiles)) == (new > 9)


def test_items_of_forgotten_requests_are_used_again():
    slots = Slots()
    for _ in range(30):
        for slot in range(6):
            slots.admit(slot, 64)
        plan = slots.step(dict.fromkeys(range(6), 1))
    assert len(plan.narrow) <= 6 * 5 and len(slots.planner._known) <= 6 * 4
