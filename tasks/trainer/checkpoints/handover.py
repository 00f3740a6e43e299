"""Hand-over of spread checkpoints from the ranks to the stage on their node, which copies them.

The first rank of each disk links the files of a checkpoint in the run's folder, so that they outlive the checkpoint;
the stage removes the links when it has copied them: `copying/<index of the location>/step-<n>/`.
"""

import os
import shutil
from pathlib import Path

from tasks.trainer.checkpoints import checkpoint

FOLDER = "copying"


def hand_over(run: Path, location: int, here: Path) -> Path:
    """Links the folder of a checkpoint for a location, in place of an earlier link; returns the folder of the links."""
    links = links_of(run, location)
    unfinished, final = links / f".{here.name}", links / here.name
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(here, unfinished, copy_function=os.link)
    shutil.rmtree(final, ignore_errors=True)
    return unfinished.rename(final)


def handed_over(run: Path, location: int) -> list[int]:
    """Returns the steps whose files the stage on this node has yet to copy to a location, ascending."""
    return checkpoint.steps_at(links_of(run, location))


def links_of(run: Path, location: int) -> Path:
    """Returns the folder with the links for a location."""
    return run / FOLDER / str(location)


def clear(run: Path) -> None:
    """Removes the links of an earlier start."""
    shutil.rmtree(run / FOLDER, ignore_errors=True)
