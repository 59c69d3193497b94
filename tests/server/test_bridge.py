"""Events go from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
import threading

from kinfolk.engine.answer import TextPiece
from kinfolk.server.bridge import Mailbox, append_part


def test_items_posted_by_many_threads_arrive_once_and_in_each_threads_order():
    async def run():
        mailbox = Mailbox(asyncio.get_running_loop())
        got = []
        done = asyncio.Event()

        def deliver(item):
            got.append(item)
            if len(got) == 8 * 500:
                done.set()

        def post(thread):
            for number in range(500):
                mailbox.post(deliver, (thread, number))

        threads = [threading.Thread(target=post, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(10):
            await done.wait()
        for thread in threads:
            thread.join()
        return got

    got = asyncio.run(run())
    for thread in range(8):
        assert [number for who, number in got if who == thread] == list(range(500))


def test_what_piles_up_wakes_the_loop_once():
    async def run():
        wakes = []
        loop = asyncio.get_running_loop()
        mailbox = Mailbox(loop)
        original = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args: wakes.append(original(*args))
        got = []
        for number in range(100):
            mailbox.post(got.append, number)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return got, wakes

    got, wakes = asyncio.run(run())
    assert got == list(range(100))
    assert len(wakes) == 1


def test_posting_to_a_loop_that_is_gone_harms_nobody():
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop)
    loop.close()
    mailbox.post(print, 1)


def test_pieces_of_one_choice_and_kind_are_joined_and_others_keep_their_order():
    batch = []
    for index, kind, text in [
        (0, "reasoning", "a"),
        (1, "content", "x"),
        (0, "reasoning", "b"),
        (0, "content", "c"),
        (1, "content", "y"),
        (0, "content", "d"),
    ]:
        append_part(batch, index, TextPiece(index, kind, text))
    assert [(index, piece.kind, piece.text) for index, piece in batch] == [
        (0, "reasoning", "ab"),
        (1, "content", "xy"),
        (0, "content", "cd"),
    ]
