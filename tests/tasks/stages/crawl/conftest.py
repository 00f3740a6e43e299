"""The crawl tests' site and cycle, and a whole crawl cycle as a fixture.

Soak tests (100,000 mutated pages, documentation sites of Debian, more kills): run them after a change of how
pages are parsed or of how a fetch stores and resumes its work.
"""

import contextlib
import itertools
from collections.abc import Iterator

import duckdb
import pytest

from tests.tasks.stages.crawl.cycle import Cycle

_names = itertools.count()


@pytest.fixture(scope="session")
def duckdb_instance() -> Iterator[duckdb.DuckDBPyConnection]:
    """The DuckDB of all connections: to start one takes longer than the queries of a small crawl."""
    with duckdb.connect() as instance:
        yield instance


@pytest.fixture(autouse=True)
def databases_of_one_instance(duckdb_instance: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection gets an empty database of its own in one instance."""

    @contextlib.contextmanager
    def connect() -> Iterator[duckdb.DuckDBPyConnection]:
        name = f"database_{next(_names)}"
        with duckdb_instance.cursor() as connection:
            connection.execute(f"ATTACH ':memory:' AS {name}; USE {name}")
            yield connection
            connection.execute(f"USE memory; DETACH {name}")

    monkeypatch.setattr("tasks.core.queries.duckdb.connect", connect)


@pytest.fixture
def crawl(run_stage):
    """Runs a crawl cycle to its fetches; returns its artifacts (`Cycle`)."""

    def run(config, version="dev", previous=None):
        return Cycle(run_stage, config, version, previous).fetch_all()

    return run
