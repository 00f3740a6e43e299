"""Large bodies wait on the wire while others take all the room, and none of them for ever."""

import asyncio

from tasks.stages.crawl.http.connection import ROOM, SMALL, Room

LARGE = 8 << 20


class Wire:
    """A connection that notes whether it is read."""

    def __init__(self):
        self.read = True

    def pause(self):
        assert self.read
        self.read = False

    def read_on(self):
        assert not self.read
        self.read = True


def test_large_bodies_wait_when_there_is_no_room_and_go_on_in_their_order():
    async def scenario():
        room, count = Room(), ROOM // (LARGE - SMALL)
        ends = [asyncio.Event() for _ in range(count + 3)]
        visits = [asyncio.create_task(end.wait()) for end in ends]
        wires = [Wire() for _ in visits]
        for visit, wire in zip(visits, wires, strict=True):
            room.take(visit, wire, SMALL)
            for size in range(1 << 20, LARGE + 1, 1 << 20):
                if wire.read:
                    room.take(visit, wire, size)
        assert [wire.read for wire in wires] == [True] * count + [False] * 3
        # The first never waits, however much the others have taken.
        room.take(visits[0], wires[0], 2 * LARGE)
        assert wires[0].read
        ends[0].set()
        await visits[0]
        await asyncio.sleep(0)
        assert all(wire.read for wire in wires)

    asyncio.run(scenario())


def test_small_bodies_need_no_room():
    async def scenario():
        room = Room()
        visits = [asyncio.create_task(asyncio.sleep(0)) for _ in range(2000)]
        wires = [Wire() for _ in visits]
        for visit, wire in zip(visits, wires, strict=True):
            room.take(visit, wire, SMALL)
        assert all(wire.read for wire in wires)
        await asyncio.gather(*visits)

    asyncio.run(scenario())
