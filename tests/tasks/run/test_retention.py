"""Retention: what is needed stays, what is removed is named, and a removal that was killed is finished."""

import itertools
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tasks.core import manifest
from tasks.core.artifact import RECORD, REMOVED, Artifact, ArtifactId, ArtifactRecord, FileEntry, InputRef, PartRecord
from tasks.core.commit import adopt
from tasks.core.digest import sha256_of
from tasks.core.errors import InputError
from tasks.core.ledger import Ledger
from tasks.core.removal import ROUNDS
from tasks.core.removal.adoption import claim
from tasks.core.stage_spec import Input
from tasks.core.store import Store
from tasks.core.version_index import enter
from tasks.formats.tokens.origins import read_origins
from tasks.run import retention, shell
from tasks.run.catalogue import STAGES
from tasks.run.place import Retention
from tasks.run.retention import collect, survey
from tasks.run.runner import StageResult, open_store, run_stage
from tasks.run.trace.answer import PageTrace
from tasks.run.trace.trace import trace
from tasks.run.tracking import TrackingContext
from tests.corpora import tokens_in
from tests.tasks.run.months import PAGES, READ, Months, months
from tests.tasks.run.test_adopted import small_recipe
from tests.tasks.run.test_previous_index import run

__all__ = ["months"]

START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = START + timedelta(days=400)
AT_ONCE = Retention(versions=1, grace_days=0)
CRAWLS = ("test/crawldb/p0", "test/segment/p0")
"""Names of what the cycles of random ledgers have made."""


def files_of(store: Store, artifact: Artifact) -> list[str]:
    listed = {entry.path for part in artifact.parts for entry in part.files}
    return sorted(path for path in listed if store.exists(f"{artifact.path}/{path}"))


def without_files(store: Store) -> set[str]:
    """Artifacts whose files are gone, all of them."""
    gone = {str(artifact.address) for artifact in Ledger(store) if not files_of(store, artifact)}
    marked = {str(artifact.address) for artifact in Ledger(store) if artifact.removal()}
    assert gone == marked
    return gone


@pytest.fixture
def store(months: Months, tmp_path: Path) -> Store:
    """A copy of two months whose models are registered, beside an older version without a model."""
    shutil.copytree(months.store.root, tmp_path / "store")
    tokens_in(tmp_path / "store", READ["october"], version="august", tokenizer_file=months.tokenizer)
    earlier = Store(str(tmp_path / "store"))
    for artifact in [artifact for artifact in Ledger(earlier) if artifact.address.version == "august"]:
        record = artifact.record.model_copy(update={"finished": artifact.record.finished - timedelta(days=60)})
        with earlier.write(f"{artifact.address.path}/{RECORD}") as file:
            file.write(record.model_dump_json().encode())
    (begun,) = (tmp_path / "store" / ".index" / "test" / "begun").glob("*~august")
    begun.rename(begun.with_name("20260801T000000.000000~august"))
    recipe = months.recipe.override({"place.store": str(tmp_path / "store")})
    for version in ("october", "november"):
        for stage in ("evaluate", "register"):
            run_stage(recipe, stage, version=version, tracking=TrackingContext("", "test"))
    return open_store(recipe)


def pages_of(store: Store, version: str) -> list[Any]:
    found = [trace(store, "test", version, row["id"]) for row in PAGES[::10]]
    assert all(isinstance(one, PageTrace) for one in found)
    return [one.to_json() for one in found]


def test_registered_models_trace_as_before_and_what_was_removed_is_named(store: Store) -> None:
    before = {version: pages_of(store, version) for version in ("october", "november")}
    pages_of(store, "august")
    removed = collect(store, "test", AT_ONCE, datetime(2026, 12, 24, tzinfo=UTC)).removed
    assert set(removed) == without_files(store)
    assert {ArtifactId.parse(address).version for address in removed} == {"august"}
    assert {version: pages_of(store, version) for version in before} == before
    with pytest.raises(InputError, match=r"files of test/\w+@august were removed on 2026-12-24 00:00 \(no longer"):
        pages_of(store, "august")
    assert not Ledger(store).drift("test/model@october")
    assert collect(store, "test", AT_ONCE).removed == []


def test_a_version_that_is_named_loses_its_protection_but_not_what_later_models_began_from(store: Store) -> None:
    named = {one.artifact for one in survey(store, "test", AT_ONCE, drop=["october"]).unneeded}
    assert {"test/model@october", "test/scores@october"} <= named
    assert "test/checkpoint@october" not in named  # november began from its weights
    with pytest.raises(InputError, match="test has no version may"):
        survey(store, "test", AT_ONCE, drop=["may"])


def test_unneeded_files_are_removed_after_the_grace_period(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    policy = Retention(versions=1, grace_days=7)
    day = timedelta(days=1)
    before = store.list("test")
    assert survey(store, "test", policy, NOW).unneeded
    assert not store.exists(".retention/test.json")  # nothing is listed by looking
    assert collect(store, "test", policy, NOW).removed == []
    assert collect(store, "test", policy, NOW + 6 * day).removed == []
    # Files that are needed again begin a new period of grace.
    assert not survey(store, "test", Retention(versions=3), NOW).unneeded
    assert collect(store, "test", Retention(versions=3), NOW + 6 * day).removed == []
    assert collect(store, "test", policy, NOW + 8 * day).removed == []
    assert store.list("test") == before
    assert collect(store, "test", policy, NOW + 15 * day).removed
    assert without_files(store)


def test_the_command_shows_why_files_stay_and_removes_only_on_request(
    months: Months, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = months.recipe.override({"place.store": store.root})
    command = ["gc", "--recipe", recipe.text, "--keep", "1", "--grace-days", "0"]
    assert shell.main(command) == 0
    shown = capsys.readouterr().out
    assert "one of the newest 1 versions" in shown
    assert "the trace of test/model@october" in shown
    assert "test/shards@august  to be removed" in shown
    assert not without_files(store)
    assert shell.main([*command, "--remove", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["removed"]) == without_files(store)
    assert answer["bytes"]["due"] == answer["bytes"]["unneeded"] > 0
    assert shell.main([*command[:4], "0"]) == 2


def test_a_killed_removal_is_finished_by_the_next_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {one.artifact for one in survey(store, "test", AT_ONCE, NOW).unneeded}
    remove = Store._remove_batch

    def dying(calls: Iterator[int], self: Store, paths: Sequence[str]) -> None:
        if next(calls) == 0:
            raise KeyboardInterrupt
        remove(self, paths)

    for minute, before in enumerate((3, 12, 0, 20)):
        calls = itertools.count(-before)  # of several threads
        monkeypatch.setattr(Store, "_remove_batch", lambda self, paths, calls=calls: dying(calls, self, paths))
        with pytest.raises(KeyboardInterrupt):
            collect(store, "test", AT_ONCE, NOW + timedelta(minutes=minute))
    monkeypatch.setattr(Store, "_remove_batch", remove)
    collect(store, "test", AT_ONCE, NOW + timedelta(minutes=4))
    assert without_files(store) == expected
    # The first attempt to remove an artifact says when.
    artifacts = [Artifact.open_at(store, ArtifactId.parse(address)) for address in expected]
    assert min(removal.at for one in artifacts if (removal := one.removal())) == NOW


def test_the_next_version_reads_an_index_whose_versions_were_removed(tmp_path: Path) -> None:
    """The same documents are kept with and without the removal, and a copy whose keeper is forgotten returns."""
    recipe = small_recipe(tmp_path).override({"dedup_index.enabled": True})
    results: dict[str, dict[str, StageResult]] = {}
    for version in ("1", "2", "3"):
        new = tmp_path / "books" / f"{version}.txt"
        new.write_text("the and of " + " ".join(f"new{version}{place}" for place in range(90)) + ".\n")
        results[version] = run(recipe, version)
    shutil.copytree(open_store(recipe).root, tmp_path / "other")
    collected = collect(open_store(recipe), recipe.name, AT_ONCE)
    assert "smoke/documents@1" in collected.removed
    assert "smoke/extracted@1" not in collected.removed  # the index compares new documents with its texts
    other = recipe.override({"place.store": str(tmp_path / "other")})
    (after, undisturbed) = (run(one, "4") for one in (recipe, other))
    contents = [{stage: result.content for stage, result in one.items()} for one in (after, undisturbed)]
    assert contents[0] == contents[1]


def test_files_that_were_removed_are_made_again_instead_of_adopted(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path)
    context = TrackingContext("", recipe.name)
    first = run_stage(recipe, "extract", version="1", tracking=context)
    run_stage(recipe, "extract", version="2", tracking=context)
    collect(open_store(recipe), recipe.name, AT_ONCE)
    again = run_stage(recipe, "extract", version="3", source_version="1", tracking=context)
    assert (again.skipped, again.content) == (False, first.content)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_that_is_needed_is_removed_from_a_random_ledger(seed: int, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made = list(random_ledger(store, random.Random(seed)))
    policy = Retention(versions=random.Random(seed).randint(1, 3), grace_days=0, warc_months=0)
    removed = set(collect(store, "test", policy, NOW).removed)
    assert removed == without_files(store) - {str(one.address) for one in made if adopted_of_removed(store, one)}
    by_address = {str(artifact.address): artifact for artifact in made}
    newest = list(dict.fromkeys(artifact.address.version for artifact in reversed(made)))[: policy.versions]
    complete = {one.address.version for one in made if one.address.name == "test/warc"}
    needed = [address for address, one in by_address.items() if one.address.version in newest]
    needed += [address for address in by_address if address.startswith("test/model@")]
    needed += [str(one.address) for one in made if one.address.name in CRAWLS and one.address.version not in complete]
    while needed:
        address = needed.pop()
        assert address not in removed
        record = by_address[address].record
        previous = STAGES[record.stage].previous
        needed += [ref.address for ref in record.inputs if ref.role not in {*previous, "crawldb"}]
        needed += [record.adopted_from] if record.adopted_from else []
        if record.stage == "encode":
            needed += [origin.documents for origin in read_origins(by_address[address]).values()]
    if len(newest) < len({artifact.address.version for artifact in made}):
        assert removed or seed  # a ledger of unprotected versions is not kept as a whole
    assert collect(store, "test", policy, NOW).removed == []


def test_files_that_are_adopted_after_they_were_judged_stay_until_the_adopter_is_judged_too(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = min(one.artifact for one in survey(store, "test", AT_ONCE, NOW).unneeded)
    source = Artifact.open_at(store, ArtifactId.parse(address))
    adopter = ArtifactId(source.address.name, "december")

    def late(*args: Any) -> list[str]:
        adopt(source, adopter, ())
        return remove(*args)

    remove = retention._remove
    with monkeypatch.context() as patch:
        patch.setattr(retention, "_remove", late)
        assert address not in collect(store, "test", AT_ONCE, NOW).removed
    assert f"{address} cannot be removed: {adopter} has adopted its files in the meantime" in caplog.text
    assert Artifact.open_at(store, adopter).verify() == []
    assert address not in collect(store, "test", AT_ONCE, NOW).removed, "december is the newest version"
    assert address in collect(store, "test", AT_ONCE, NOW, drop=["december"]).removed


def adopted_of_removed(store: Store, artifact: Artifact) -> bool:
    return bool(artifact.record.adopted_from and artifact.removal())


def random_ledger(store: Store, draw: random.Random) -> Iterator[Artifact]:
    """Makes up to nine versions in which any stage may be missing, read another version, or be adopted.

    Some have a crawl cycle, complete or not, and shards have the tokens of documents of earlier versions.
    """
    stages = [one for one in STAGES.values() if not one.mapped and one.dag in ("corpus", "tokens", "pretrain")]
    stages = [one for one in stages if one.output != "dedup_index"]
    made: dict[str, list[str]] = {}
    for number in range(draw.randint(3, 9)):
        version = f"v{number}"
        if draw.random() < 0.7:
            state, capture = (f"{name}@{version}" for name in CRAWLS)
            yield entered(store, state, "update", {}, "", number)
            yield entered(store, capture, "fetch", {}, "", number)
            if draw.random() < 0.7:
                made.setdefault("warc", []).append(f"test/warc@{version}")
                yield entered(store, made["warc"][-1], "publish", {"crawldb": state, "segment": capture}, "", number)
        for stage in stages:
            own = {role: source.kind for role, source in stage.inputs.items() if isinstance(source, Input)}
            own = {role: kind for role, kind in own.items() if made.get(kind)}
            required = [source for source in stage.own_inputs.values() if not source.optional]
            if draw.random() < 0.3 or any(
                source.kind not in made for source in required if source.kind != "measured/*"
            ):
                continue
            refs = {role: source_of(made[kind], version, draw) for role, kind in own.items()}
            for role, previous in stage.previous.items():
                if (made.get(previous.kind) or [""])[-1] not in ("", f"test/{previous.kind}@{version}"):
                    refs[role] = made[previous.kind][-1]
            if stage.name == "train" and made.get("checkpoint") and draw.random() < 0.5:
                refs["init_from"] = draw.choice(made["checkpoint"])
            adopted = draw.choice(made[stage.output]) if made.get(stage.output) and draw.random() < 0.2 else ""
            known = made.get("documents", [])
            origins = {f"p{at}": {"documents": one, "part": ""} for at, one in enumerate(known) if draw.random() < 0.5}
            only = ("origins.json", origins) if stage.name == "encode" else ("", None)
            yield entered(store, f"test/{stage.output}@{version}", stage.name, refs, adopted, number, only)
            made.setdefault(stage.output, []).append(f"test/{stage.output}@{version}")


def source_of(addresses: list[str], version: str, draw: random.Random) -> str:
    """The own version's artifact, or that of any source version."""
    own = [address for address in addresses if address.endswith(f"@{version}")]
    return own[0] if own else draw.choice(addresses)


def entered(
    store: Store,
    address: str,
    stage: str,
    refs: dict[str, str],
    adopted_from: str,
    number: int,
    only: tuple[str, Any] = ("", None),
) -> Artifact:
    """Publishes the record of an artifact with one file, `only`: its name, and its content as JSON."""
    id_, at = ArtifactId.parse(address), START + timedelta(days=number)
    if adopted_from:
        source = Artifact.open_at(store, ArtifactId.parse(adopted_from))
        adopted_from = source.record.adopted_from or adopted_from
        claim(source, id_)
    content = adopted_from or address
    name = only[0] or ("champion.json" if stage == "promote" else "file")
    file = FileEntry(path=name, bytes=10, sha256=sha256_of(content.encode()))
    part = PartRecord(name="part", rows_in=0, rows_out=0, rejected={}, files=(file,), metrics={})
    manifests = (manifest.write(store, ArtifactId.parse(adopted_from or address).path, [part]),)
    inputs = tuple(InputRef(role=r, address=a, fingerprint="", content="") for r, a in refs.items())
    record = ArtifactRecord(artifact=address, stage=stage, stage_version=1, member="", fingerprint="", content=content,
                            config={}, inputs=inputs, code={}, rows_in=0, rows_out=0, rejected={}, bytes=10,
                            manifests=manifests, metrics={}, members=(), note="", host={}, started=at, finished=at,
                            adopted_from=adopted_from)  # fmt: skip
    if not adopted_from:
        with store.write(f"{id_.path}/{name}") as data:
            champion = {"champion": {"artifact": refs.get("model", "")}}
            data.write(json.dumps(champion if only[1] is None else only[1]).encode())
    enter(store, record, at)
    store.publish(f"{id_.path}/{RECORD}", record.model_dump_json().encode())
    return Artifact(store, id_, record)


def test_the_record_of_a_removal_is_beside_that_of_the_artifact(store: Store) -> None:
    (address, *_) = collect(store, "test", AT_ONCE, NOW).removed
    folder = ArtifactId.parse(address).path
    removed = Artifact.open_at(store, ArtifactId.parse(address))
    rounds = {f"{ROUNDS}/{name}" for name in ("000000.claim", "0000.json")}
    assert store.sizes(folder).keys() == removed.record_paths | rounds | {REMOVED}


def test_an_artifact_without_a_manifest_keeps_its_files_and_the_others_are_removed(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    expected = {one.artifact for one in survey(store, "test", AT_ONCE, NOW).unneeded}
    damaged = Artifact.open_at(store, ArtifactId.parse(max(expected)))
    before = files_of(store, damaged)
    store.remove(f"{damaged.path}/{damaged.record.manifests[0].path}")
    manifest._GROUPS._groups.clear()
    assert set(collect(store, "test", AT_ONCE, NOW).removed) == expected - {str(damaged.address)}
    assert f"{damaged.address} cannot be removed: " in caplog.text
    assert not damaged.removal()
    assert before
    assert all(store.exists(f"{damaged.path}/{path}") for path in before)
    assert {one.artifact for one in survey(store, "test", AT_ONCE, NOW).unneeded} == {str(damaged.address)}


def test_what_older_crawls_worked_with_is_not_kept_for_the_documents_of_a_corpus_that_grows(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    report = {}
    for number in (1, 2, 3):
        made = {kind: f"test/{kind}@{number}" for kind in ("warc", "documents", "shards", "month")}
        state, capture = (f"test/{kind}/p0@{number}" for kind in ("crawldb", "segment"))
        entered(store, state, "update", {}, "", number)
        entered(store, capture, "fetch", {}, "", number)
        entered(store, made["warc"], "publish", {"crawldb": state, "segment": capture}, "", number)
        entered(store, made["documents"], "consolidate", {"extracted": made["warc"]}, "", number)
        origins = {
            f"v0000{month}-part": {"documents": f"test/documents@{month}", "part": ""} for month in range(1, number + 1)
        }
        entered(
            store, made["shards"], "encode", {"documents": made["documents"]}, "", number, ("origins.json", origins)
        )
        entered(store, made["month"], "month", {"documents": made["documents"], **report}, "", number)
        report = {"previous": made["month"]}
    found = survey(store, "test", Retention(versions=1, grace_days=0, warc_months=0), NOW)
    assert {one.artifact for one in found.unneeded} == {
        *(f"test/crawldb/p0@{number}" for number in (1, 2)),
        *(f"test/shards@{number}" for number in (1, 2)),
    }
