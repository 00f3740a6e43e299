"""The crawl tests' site and cycle, and a whole crawl cycle as a fixture.

Soak tests (100,000 mutated pages, documentation sites of Debian, kills beyond a few): to be run after a change of how
pages are read or of how a fetch keeps and resumes its work.
"""

import pytest

from tests.tasks.stages.crawl.cycle import Cycle


@pytest.fixture
def crawl(run_stage):
    """Runs a whole crawl cycle; returns its artifacts (`Cycle`)."""

    def run(config, version="dev", previous=None):
        return Cycle(run_stage, config, version, previous).finish()

    return run
