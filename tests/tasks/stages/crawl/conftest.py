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
