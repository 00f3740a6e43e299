"""Stages of many tiny parts on S3 that are killed at half find what they have with one request for each part.

`make soak` runs SLUICE_SOAK_PARTS parts (2,000 by default) through the first SLUICE_SOAK_STAGES stages (all four), and
fewer also without a kill.
"""

import os
from pathlib import Path

import pytest

from tests.many_parts import Made, killed, run, write_inputs
from tests.s3_objects import served
from tests.soak import soak_but

PARTS = int(os.environ.get("SLUICE_SOAK_PARTS", "2000"))
STAGES = int(os.environ.get("SLUICE_SOAK_STAGES", "4"))
KILLED_AT = {"extracted": 0.5, "attributes": 0.5, "duplicates": 1.0, "documents": 0.5}
"""Records for each part that a stage has published when it is killed. Dedup publishes two: keys, then verdicts."""

pytestmark = pytest.mark.timeout(24 * 3600)


@pytest.mark.parametrize(("kinds", "parts"), soak_but({0}, [(["extracted"], 24), (list(KILLED_AT), 100)]))
def test_a_stage_killed_at_half_resumes_and_ends_with_the_bytes_of_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[str], parts: int
) -> None:
    write_inputs(tmp_path / "in", parts)
    whole, again = (Made(f"s3://sluice/{name}", tmp_path / "in", parts) for name in ("whole", "killed"))
    with served() as server:
        for name, value in (server.environment | {"SLUICE_CACHE": str(tmp_path / "cache")}).items():
            monkeypatch.setenv(name, value)
        for kind in kinds:
            undisturbed = run(kind, whole)
            killed(kind, again, server, round(KILLED_AT[kind] * parts)).check()
            assert again.artifact(kind).record.content == undisturbed.record.content, kind


@pytest.mark.soak
def test_a_stage_of_many_parts_finds_those_that_it_has_with_one_request_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs(tmp_path / "in", PARTS)
    made = Made("s3://sluice/many", tmp_path / "in", PARTS)
    with served() as server:
        for name, value in (server.environment | {"SLUICE_CACHE": str(tmp_path / "cache")}).items():
            monkeypatch.setenv(name, value)
        for kind, share in list(KILLED_AT.items())[:STAGES]:
            resumed = killed(kind, made, server, round(share * PARTS))
            print(f"{PARTS:,} parts, {kind}: {resumed}", flush=True)
            resumed.check()
            assert made.artifact(kind).record.rows_in == 2 * PARTS
