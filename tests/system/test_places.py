"""The stages of a corpus in two places: on Dask in Airflow, and in a shell. The bytes must be equal."""

import json
import os
import subprocess
import sys

import pytest

from tasks.demo.home import CHECKOUT

KINDS = {"extract": "extracted", "annotate": "attributes", "dedup": "duplicates", "consolidate": "documents"}


@pytest.fixture
def same_captures(stack, smoke) -> None:
    """Gives the recipe `here` the captures of `smoke`, because a separate crawl would have other times."""
    stack.copy("smoke/warc/dev", "here/warc/dev")


@pytest.mark.timeout(600)
def test_a_stage_writes_the_same_bytes_on_dask_in_airflow_and_in_a_shell(stack, same_captures) -> None:
    for stage, kind in KINDS.items():
        on_dask, in_shell = stack.artifact(f"smoke/{kind}"), shell(stack, stage)
        assert on_dask.record.fingerprint == in_shell["fingerprint"], kind
        assert on_dask.record.content == in_shell["content"], kind
        assert not in_shell["skipped"]


def shell(stack, stage: str) -> dict:
    environment = {
        "SLUICE_STORE": str(stack.home.root / "store"),
        "MLFLOW_TRACKING_URI": "",
        "SLUICE_DASK": "",
        "SLUICE_MODELS": os.environ["SLUICE_MODELS"],
    }
    command = [
        sys.executable,
        "-m",
        "tasks",
        stage,
        "--recipe",
        "here",
    ]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
