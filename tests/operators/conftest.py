"""Gives these tests a separate Airflow home, and a small real corpus for stages."""

from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tests.airflow_home import airflow_db, dag_bag, recipes
from tests.k8s.definitions import definitions

__all__ = ["airflow_db", "dag_bag", "definitions", "recipes"]

TEXT = "the crawl brings pages home and the model reads them line by line until it can write a page of its own"
WORDS = TEXT.split()


@pytest.fixture
def documents(tmp_path: Path):
    """Writes a small, real `documents` artifact; returns a function of recipe name and version."""
    import pyarrow as pa

    def write(recipe: str, version: str = "dev") -> Artifact:
        output = Output(Store(str(tmp_path / "store")), ArtifactId(f"{recipe}/documents", version), "0" * 64)
        texts = [" ".join(WORDS[(n * 7 + k * (n % 5 + 1)) % len(WORDS)] for k in range(80)) for n in range(40)]
        table = pa.table(
            {
                "id": [f"{n:032x}" for n in range(40)],
                "text": texts,
                "source": ["web" if n % 2 else "code" for n in range(40)],
                "language": ["en"] * 40,
                "tier": [""] * 40,
                "url": [f"http://site.localhost/{n}" for n in range(40)],
            }
        )
        with output.part("part-00000-of-00001") as part:
            part.count_in(40)
            part.table("kept", table)
        return commit(output, "consolidate", 1, Config(), [], Report())

    return write
