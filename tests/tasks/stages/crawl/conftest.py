"""The crawl tests' site and cycle, and a whole crawl cycle as a fixture.

Soak tests (100,000 mutated pages, documentation sites of Debian, kills beyond a few): to be run after a change of how
pages are read or of how a fetch keeps and resumes its work.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

# importlib mode puts no test folder on sys.path; these are shared by several modules of this folder.
for _name, _file in (("crawl_site", "site.py"), ("crawl_cycle", "cycle.py")):
    _spec = importlib.util.spec_from_file_location(_name, Path(__file__).with_name(_file))
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[_name] = _module
    _spec.loader.exec_module(_module)

from crawl_cycle import Cycle  # noqa: E402


@pytest.fixture
def crawl(run_stage):
    """Runs a whole crawl cycle; returns its artifacts (`crawl_cycle.Cycle`)."""

    def run(config, version="dev", previous=None):
        return Cycle(run_stage, config, version, previous).finish()

    return run
