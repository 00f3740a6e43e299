"""The watch on the files of a recipe: an Asset whose event starts its corpus when files have been added or changed.

Reads the listing of `[[extract.files]]`, local or in a bucket, and the newest versions of tables, in Airflow's
triggerer; opens no data file. An event has the version of the run that it starts, the time of the look. The digest of
the last announced listing is in Airflow's store of asset states, so files that come while no triggerer runs are
announced by the next one. The files of the first look are no event, nor are files that still change between two looks.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from tasks.core.config import sha256_of_json
from tasks.core.errors import InputError, SluiceError
from tasks.run.recipe import Recipe, find_recipe

log = logging.getLogger("sluice.watch")

VERSION_FORMAT = "%Y.%m.%d-%H%M%S"
"""Version of a run that an event starts: 2026.11.21-030000."""

STATE = "announced"


def watched_files(recipe: Recipe) -> list[Asset]:
    """Returns the Asset `<recipe>/files` with its watcher; [] if the recipe's files are not watched."""
    if not recipe.place.watch_s:
        return []
    name = f"{recipe.name}/files"
    watcher = AssetWatcher(name=name, trigger=FilesTrigger(recipe=recipe.name, every_s=recipe.place.watch_s))
    return [Asset(name=name, uri=f"x-sluice://{name}", group="sluice", watchers=[watcher])]


class FilesTrigger(BaseEventTrigger):  # type: ignore[misc]
    """Looks at the files of a recipe; sends an event when two looks in a row show the same change.

    Args:
        recipe: name of the recipe.
        every_s: seconds between two looks.
    """

    def __init__(self, *, recipe: str, every_s: float) -> None:
        super().__init__()
        self.recipe = recipe
        self.every_s = every_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns the path of this class and its arguments."""
        return f"{__name__}.{type(self).__name__}", {"recipe": self.recipe, "every_s": self.every_s}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields an event for each change of the files."""
        announced, before = await self._recall(), ""
        while True:
            now = await asyncio.to_thread(self._look)
            if now and not announced:
                announced = now
                await self._remember(announced)
            elif now and now != announced and now == before:
                yield TriggerEvent({"version": datetime.now(UTC).strftime(VERSION_FORMAT)})
                # Only now: after a kill in between, a second event starts a run that finds nothing new.
                announced = now
                await self._remember(announced)
            before = now
            await asyncio.sleep(self.every_s)

    def _look(self) -> str:
        """Returns the digest of names and sizes of all files; "" if a place cannot be listed now."""
        # Imported here, because DAG files import this module and must not import pyarrow.
        from tasks.stages.extract.config import ExtractConfig
        from tasks.stages.extract.sources import find_files

        listing = []
        try:
            for source in find_recipe(self.recipe).of(ExtractConfig).files:
                try:
                    if table := source.table():
                        listing.append([source.name, table.current(), 0])
                        continue
                    files = find_files(source)
                except InputError:  # no file yet
                    files = []
                listing += [[source.name, file.name, file.bytes] for file in files]
        except (SluiceError, OSError) as error:  # such as a file that was removed during the look
            log.warning("the files of %s cannot be listed: %s", self.recipe, error)
            return ""
        return sha256_of_json(listing)

    async def _recall(self) -> str:
        return "" if self.asset_state_store is None else str(await self.asset_state_store.aget(STATE, ""))

    async def _remember(self, digest: str) -> None:
        if self.asset_state_store is not None:
            await self.asset_state_store.aset(STATE, digest)
