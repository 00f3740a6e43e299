"""The page of takedowns: who asked for which, whether it is honored, and what a request would meet."""

import re
from html import unescape

import pytest

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.commit import adopt
from tasks.core.store import Store
from tasks.trainer.config import OptimConfig, TrainConfig
from tasks.trainer.model.config import ModelConfig
from tests.conftest import run_stage_in
from tests.corpora import corpus
from tests.plugins.conftest import HOSTILE
from tests.taken_down import take_down

PAGE = "/sluice/takedowns?recipe=test"
ROWS = corpus(60)


def found(folder, name, version):
    return Artifact.open_at(Store(str(folder)), ArtifactId(name, version))


def ref_to(artifact, role):
    record = artifact.record
    return InputRef(role=role, address=record.artifact, fingerprint=record.fingerprint, content=record.content)


def row_of(text, value):
    """Returns the cells of the table's row with a value, without markup."""
    (row,) = rows_with(text, value)
    return row


def rows_with(text, value):
    """Returns all rows of tables with a value, without markup."""
    return [unescape(re.sub(r"<[^>]+>", "|", row)) for row in text.split("<tr>") if value in row]


def apply(folder, *kinds):
    """Makes version v3 of artifacts, which apply the takedown t1."""
    takedown = ref_to(found(folder, "test/takedown", "t1"), "takedowns")
    for kind in kinds:
        adopt(found(folder, f"test/{kind}", "v2"), ArtifactId(f"test/{kind}", "v3"), (takedown,))


def test_a_takedown_is_pending_in_newest_artifacts_that_have_its_documents(get, versions):
    row = row_of(get(PAGE).text, "/sluice/takedowns?recipe=test&amp;takedown=t1")
    assert "pending" in row
    assert "test/documents@v2 (1), test/plan@v2 (1)" in row
    assert HOSTILE in row


def test_a_takedown_is_honored_when_the_newest_artifacts_have_applied_it(get, versions):
    apply(versions, "documents")
    assert "pending| in test/plan@v2 (1)" in row_of(get(PAGE).text, "takedown=t1")
    apply(versions, "plan")
    row = row_of(get(PAGE).text, "takedown=t1")
    assert "honored" in row
    assert "pending" not in row


def test_a_takedown_that_a_later_one_contains_is_honored_by_artifacts_that_applied_the_later_one(get, versions):
    later = take_down(versions, "t2", found(versions, "test/takedown", "t1"), urls="https://b.example/")
    for kind in ("documents", "plan"):
        adopt(found(versions, f"test/{kind}", "v2"), ArtifactId(f"test/{kind}", "v3"), (ref_to(later, "takedowns"),))
    assert "honored" in row_of(get(PAGE).text, "takedown=t1")


def test_a_lifted_takedown_is_not_pending(get, versions):
    first = found(versions, "test/takedown", "t1")
    take_down(
        versions, "t2", first, lift=f"{ROWS[20]['url']}\nhttps://nowhere.example/", date="2026-11-22T00:00:00+00:00"
    )
    text = get(PAGE).text
    assert "lifted" in row_of(text, "takedown=t1")
    assert "lifts only" in row_of(text, "takedown=t2")
    assert text.index("takedown=t2") < text.index("takedown=t1")
    assert ">pending<" not in get(f"{PAGE}&takedown=t1").text


def test_the_page_of_a_takedown_lists_values_artifacts_and_documents(get, versions):
    text = get(f"{PAGE}&takedown=t1").text
    assert ROWS[20]["url"] in row_of(text, f"what={ROWS[20]['id']}")
    assert "pending" in row_of(text, "/sluice/artifact/test/plan%40v2")
    assert "not the newest" in row_of(text, "/sluice/artifact/test/documents%40v1")
    assert "<li>https://nowhere.example/</li>" in text
    assert "no record matches 1" in row_of(get(PAGE).text, "takedown=t1")
    assert "nearest addresses" in text
    assert "<img" not in text
    assert get(f"{PAGE}&takedown=t9").status_code == 404


@pytest.fixture
def preview(browse, versions):
    """Returns the page with the preview of a request, as text."""
    return lambda role="viewer", **fields: browse(role, "POST", PAGE, data={"do": "preview", **fields}).text


def test_a_preview_finds_kept_documents_by_url_domain_and_id(preview):
    url = ROWS[30]["url"].replace("https://", "http://www.")
    text = preview(urls=f"{url}\r\nhttps://nowhere.example/", documents=ROWS[31]["id"], domains="h5.org")
    for row in (ROWS[30], ROWS[31], *(row for row in ROWS[10:] if "//h5.org/" in row["url"])):
        assert row["url"] in row_of(text, f"what={row['id']}")
    assert "url https://nowhere.example/: no kept document" in text
    misspelled = preview(urls=f"{ROWS[30]['url']}/index.htm")
    assert f"no kept document; the nearest: {ROWS[30]['url']}" in misspelled


def test_a_preview_counts_the_steps_of_the_newest_model_though_newer_tokens_have_none(preview, versions):
    made = {kind: found(versions, f"test/{kind}", "v1") for kind in ("shards", "plan")}
    config = TrainConfig(model=ModelConfig(layers=1, dim=16, heads=2, kv_heads=1), steps=20, batch_size=4,
                         optim=OptimConfig(warmup_steps=2), microbatch=4, checkpoint_every=20)  # fmt: skip
    run_stage_in(versions, "tasks.stages.train.stage", config, made, kind="checkpoint", version="v1")
    text = preview(documents=ROWS[30]["id"])
    assert re.search(rf"\|v2\|.*{ROWS[30]['url']}\|\s*\|\d+\|\s*\|\|", rows_with(text, ROWS[30]["id"])[0])
    assert re.search(rf"\|v1\|.*{ROWS[30]['url']}\|\s*\|\d+\|\s*\|[1-9]\d*\|", rows_with(text, ROWS[30]["id"])[1])


def test_a_preview_changes_nothing_and_shows_the_fields_again(preview, versions):
    before = sorted(path.name for path in (versions / "test" / "takedown").iterdir())
    text = preview(urls="https://a.example/", reason=f'"{HOSTILE}')
    assert sorted(path.name for path in (versions / "test" / "takedown").iterdir()) == before
    assert "https://a.example/</textarea>" in text
    assert "<img" not in text


def test_an_invalid_line_is_named_before_anything_is_triggered(preview, browse, versions):
    text = unescape(preview(domains="co.uk"))
    assert 'takedown.domains, line 1: "co.uk" is a public suffix' in text
    answer = browse("op", "POST", PAGE, data={"do": "request", "urls": "not a url", "token": "x"})
    assert 'takedown.urls, line 1: "not a url" is not an http or https URL' in unescape(answer.text)
    assert "the request is empty" in preview()
