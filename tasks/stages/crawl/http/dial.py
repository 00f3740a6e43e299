"""Connects to a host: tries its addresses one after the other, 0.25 s apart, until one accepts (RFC 8305)."""

import asyncio
import socket
from collections.abc import Sequence

_NEXT_S = 0.25


class LookUpError(OSError):
    """A name has no address that is known."""


async def dialled(addresses: Sequence[str], port: int, beside: asyncio.Semaphore) -> socket.socket:
    """Returns a connection to the first of several addresses that takes it.

    Args:
        addresses: in the order of trial.
        port: the same for all.
        beside: places for attempts beside a first one that is still under way.

    Raises:
        LookUpError: there is no address.
        OSError: none accepts; the error of the first that failed.
    """
    if len(addresses) == 1:
        return await _dial(addresses[0], port)
    waiting, dialling, failures = list(addresses), set[asyncio.Task[socket.socket]](), list[BaseException]()
    try:
        while waiting or dialling:
            if waiting and not dialling:
                dialling.add(asyncio.ensure_future(_dial(waiting.pop(0), port)))
            elif waiting and not beside.locked():
                dialling.add(asyncio.ensure_future(_dial_beside(waiting.pop(0), port, beside)))
            wait = _NEXT_S if waiting else None
            done, dialling = await asyncio.wait(dialling, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (failure := task.exception()) is None:
                    dialling |= done - {task}
                    return task.result()
                failures.append(failure)
    finally:
        for task in dialling:
            task.cancel()
            task.add_done_callback(_hung_up)
    raise failures[0] if failures else LookUpError("a name without an address")


def _hung_up(task: "asyncio.Task[socket.socket]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _dial_beside(address: str, port: int, beside: asyncio.Semaphore) -> socket.socket:
    async with beside:
        return await _dial(address, port)


async def _dial(address: str, port: int) -> socket.socket:
    link = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        link.setblocking(False)
        await asyncio.get_running_loop().sock_connect(link, (address, port))
    except BaseException:
        link.close()
        raise
    return link
