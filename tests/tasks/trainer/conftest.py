"""Token shards, a plan and a tokenizer that all tests of this folder share.

Run the soak tests of this package after a change of tasks/trainer: kills, gangs, copies of checkpoints, all layouts.
"""

import pytest
import torch

from tests.corpora import Made, corpus, tokens_in


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """As in a run's own process: more threads than free cores wait for one another."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Artifacts of the token stages; most documents are shorter than a sequence, some longer."""
    rows = [{**row, "text": row["text"][: 5 + index * 7 % 130]} for index, row in enumerate(corpus(360))]
    return tokens_in(tmp_path_factory.mktemp("tokens"), rows)
