"""Recovery checkpoints in the store: what a run needs to resume on another machine.

Writes `.resume/<checkpoint>-<attempt>/` (the checkpoint's files, and the steps since the last milestone) into the
artifact's folder, and then, exclusively, `.resume/<checkpoint>.json`, which names it: a folder without such a record is
ignored. The newest few are kept; the commit of the artifact removes all of them. Where the store is a local or shared
folder, the scratch folder lies in it and nothing is copied.

A run resumes from the newest checkpoint on this machine's disk, in `.resume`, or among the milestones.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tasks.core.errors import InputError, SupersededError, TransientError
from tasks.core.stage import Output
from tasks.core.store import AlreadyPublished
from tasks.trainer import checkpoint, milestones
from tasks.trainer.metrics import FILE, proven_steps

log = logging.getLogger("sluice.train")

FOLDER = ".resume"


class Recovery:
    """Copies checkpoints between a run's folder and the store.

    Args:
        output: the artifact that the run writes.
        run: folder of the run.
        milestone_steps: steps that become part of the artifact, ascending; none for a canary.
        keep: how many checkpoints beside the milestones.
    """

    def __init__(self, output: Output, run: Path, milestone_steps: Sequence[int], keep: int) -> None:
        self.output, self.run, self.milestone_steps, self.keep = output, run, milestone_steps, keep
        self.folder = f"{output.address.path}/{FOLDER}"
        self.pushed = 0
        # A scratch folder inside the store survives the machine anyway.
        self.needed = not run.is_relative_to(output.store.root)

    def restore(self) -> None:
        """Fetches the newest checkpoint of this run from the store, if this machine has none as new.

        Checkpoints of this machine whose steps are not all in the run's log are removed: the artifact must have a row
        for every step.
        """
        self._drop_unproven()
        stored = [*self._milestones(), *(self._pushed() if self.needed else ())]
        here = _newest_here(self.run / "checkpoints") if stored else 0  # reads whole files
        for step, fetch in sorted(stored, key=lambda entry: entry[0], reverse=True):
            if step <= here:
                return
            try:
                fetch()
            except (FileNotFoundError, InputError) as error:  # removed meanwhile, or damaged
                log.warning("the checkpoint of step %d in the store cannot be used: %s", step, error)
                continue
            log.info("[%s] step %d fetched from the store: this machine has step %d", self.output.address, step, here)
            return

    def _drop_unproven(self) -> None:
        root, proven = self.run / "checkpoints", proven_steps(self.run / FILE)
        for step in [step for step in checkpoint.steps_at(root) if step > proven]:
            log.warning("[%s] step %d is not resumed from: the log has %d steps", self.output.address, step, proven)
            shutil.rmtree(root / checkpoint.name_of(step))

    def publish(self, until_step: int) -> None:
        """Commits the milestones up to `until_step`, whose files must exist.

        Raises:
            InputError: the checkpoint of a milestone does not verify.
            StoreError: the store cannot be used.
            SupersededError: another attempt has taken the run over.
            TransientError: the store does not answer, or steps are missing from the run's log.
        """
        self.output.check_fence()
        milestones.publish(self.output, self.run, self.milestone_steps, until_step)

    def keep_up(self, until_step: int) -> None:
        """Does `publish` and `push` during the run: a store that is unavailable for a while does not end it.

        Checkpoints are written beside the training: what is not on disk yet is left for the next call.

        Raises:
            SluiceError: as `publish`, where waiting does not help.
        """
        saved = checkpoint.steps_at(self.run / "checkpoints")
        try:
            self.publish(min(until_step, max(saved, default=0)))
        except (TransientError, OSError) as error:
            log.warning("[%s] milestones are late: %s", self.output.address, error)
        self.push()

    def push(self) -> None:
        """Copies the run's newest checkpoint into the store, unless it exists; a store's errors do not fail the run.

        Raises:
            SupersededError: another attempt has taken the run over.
        """
        steps = checkpoint.steps_at(self.run / "checkpoints") if self.needed else []
        if not steps or steps[-1] <= self.pushed:
            return
        step = steps[-1]
        try:
            # A run that resumes after this step does not reach these milestones again.
            self.publish(step)
            if step not in self.milestone_steps:
                self._push(step)
            self.pushed = step
            self._prune()
        except SupersededError:
            raise
        except Exception as error:  # stores raise many kinds; the next checkpoint is tried again
            log.warning("[%s] the checkpoint of step %d is not in the store: %s", self.output.address, step, error)

    def _push(self, step: int) -> None:
        name, store = checkpoint.name_of(step), self.output.store
        here = self.run / "checkpoints" / name
        checkpoint.verify(here)
        folder = f"{self.folder}/{name}-{self.output.attempt}"
        for file in checkpoint.read_state(here)[1]:
            with store.write(f"{folder}/{file}") as target, (here / file).open("rb") as source:
                shutil.copyfileobj(source, target, 1 << 20)
        first = max((milestone for milestone in self.milestone_steps if milestone < step), default=0)
        for source_name in milestones.FOLDERS:
            with store.write(f"{folder}/{source_name}") as target:
                target.write(milestones.lines_of(self.run, source_name, first, step))
        record = {"fingerprint": self.output.fingerprint, "folder": folder, "first": first}
        self.output.check_fence()
        try:
            store.publish(f"{self.folder}/{name}.json", json.dumps(record).encode())
        except AlreadyPublished:  # another attempt at the same run: its bytes are equal
            store.remove(folder)

    def _prune(self) -> None:
        """Removes checkpoints older than the newest `keep`, and unfinished ones that are as old."""
        store = self.output.store
        below = {path: path[len(self.folder) + 1 :] for path in store.list(self.folder)}
        records = sorted(path for path, name in below.items() if "/" not in name)
        oldest = below[records[-self.keep]].removesuffix(".json") if len(records) >= self.keep else ""
        for path in [path for path in records if below[path].removesuffix(".json") < oldest]:
            store.remove(path)
        for name in sorted({name.split("/")[0] for name in below.values() if "/" in name}):
            if name.rpartition("-")[0] < oldest:
                store.remove(f"{self.folder}/{name}")

    def _pushed(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """Yields step and fetch function of every pushed checkpoint of this run; removes those of another run."""
        store = self.output.store
        for path in store.list(self.folder):
            name = checkpoint.NAME.fullmatch(path[len(self.folder) + 1 :].removesuffix(".json"))
            if not name:
                continue
            record = json.loads(store.read(path))
            if record["fingerprint"] == self.output.fingerprint:
                yield int(name[1]), partial(self._fetch_pushed, name[0], record)
            else:
                store.remove(path)
                store.remove(record["folder"])

    def _milestones(self) -> Iterator[tuple[int, Callable[[], None]]]:
        for name in self._committed():
            fetch = partial(self._fetch, name, self._of_artifact(f"checkpoints/{name}"), name, "")
            yield int(name[-8:]), fetch

    def _committed(self) -> list[str]:
        return sorted(name for name in self.output.committed if checkpoint.NAME.fullmatch(name))

    def _fetch_pushed(self, name: str, record: dict[str, Any]) -> None:
        self._fetch(name, record["folder"], checkpoint.name_of(record["first"]), record["folder"])

    def _fetch(self, name: str, folder: str, milestone: str, rest: str) -> None:
        """Copies a checkpoint, and the steps before it, into the run's folder.

        Args:
            name: of the checkpoint.
            folder: folder of the store with its files.
            milestone: the last one whose steps are included.
            rest: folder of the store with the steps after that; empty: there are none.
        """
        temporary = self.run / "checkpoints" / f".{name}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        (temporary / checkpoint.STATE).write_bytes(self.output.store.read(f"{folder}/{checkpoint.STATE}"))
        for file in checkpoint.read_state(temporary)[1].keys() - {checkpoint.STATE}:
            with self.output.store.open(f"{folder}/{file}") as source, (temporary / file).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        checkpoint.verify(temporary)
        for source_name, target_folder in milestones.FOLDERS.items():
            paths = [
                self._of_artifact(f"{target_folder}/{part}.jsonl") for part in self._committed() if part <= milestone
            ]
            paths += [f"{rest}/{source_name}"] if rest else []
            (self.run / source_name).write_bytes(b"".join(self.output.store.read(path) for path in paths))
        shutil.rmtree(self.run / "checkpoints" / name, ignore_errors=True)
        temporary.rename(self.run / "checkpoints" / name)

    def _of_artifact(self, path: str) -> str:
        return f"{self.output.address.path}/{path}"


def _newest_here(root: Path) -> int:
    """Returns the step of the newest checkpoint under `root` that verifies, 0 where there is none."""
    for step in reversed(checkpoint.steps_at(root)):
        try:
            checkpoint.verify(root / checkpoint.name_of(step))
        except InputError:
            continue
        return step
    return 0
