"""The crawl tests' site and cycle, and a whole crawl cycle as a fixture.

Soak tests (100,000 mutated pages, documentation sites of Debian, more kills): run them after a change of how
pages are parsed or of how a fetch stores and resumes its work.
"""

import pytest

from tests.tasks.stages.crawl.cycle import Cycle


@pytest.fixture
def crawl(run_stage):
    """Runs a whole crawl cycle; returns its artifacts (`Cycle`)."""

    def run(config, version="dev", previous=None):
        return Cycle(run_stage, config, version, previous).finish()

    return run
