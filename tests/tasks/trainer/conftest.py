"""Token shards, a plan and a tokenizer, shared by all tests of this folder.

Run the soak tests of this package after a change of tasks/trainer: kills, gangs, copies of checkpoints, all layouts.
"""

import gc
from collections.abc import Iterator

import pytest
import torch

from tests.corpora import Made, corpus, tokens_in


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """As in the process of a run: more threads than free cores would wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    """Excludes the many objects of the tests from the garbage that a run collects when it starts."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Artifacts of the token stages; most documents are shorter than a sequence, some longer."""
    rows = [{**row, "text": row["text"][: 5 + index * 7 % 130]} for index, row in enumerate(corpus(360))]
    return tokens_in(tmp_path_factory.mktemp("tokens"), rows)
