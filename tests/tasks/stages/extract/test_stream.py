"""Stage `stream`: every message of a topic is in one version, whatever happens in between."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, NothingNewError, RecipeError, SupersededError
from tasks.core.store import Store
from tasks.run.recipe import Recipe
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.extract import stream
from tests.kafka import Broker, Guarded

if TYPE_CHECKING:
    from tests.s3_server import S3Server

NEWS = ("news", "articles")
TEXT = "The river runs to the sea, and message {} says so. "


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setenv(stream.KAFKA, json.dumps({"bootstrap.servers": made.address, "sasl.password": "s3cret-word"}))
    return made


def recipe_in(folder: Path | str, **settings: object) -> Recipe:
    extract = {"streams": [{"name": "news", "topic": "articles", **settings}], "min_chars": 20}
    text = json.dumps({"name": "r", "extract": extract, "place": {"store": str(folder), "workers": 0}})
    return Recipe.from_text(text)


def made(recipe: Recipe, version: str, *stages: str, source: str | None = None) -> Artifact:
    """Runs stages, and returns the artifact of the last one."""
    for stage in stages:
        result = run_stage(
            recipe, stage, version=version, source_version=source, tracking=TrackingContext("", recipe.name)
        )
    return Artifact.open_at(Store(recipe.place.store), ArtifactId.parse(result.address))


def numbers(*some: int) -> list[dict[str, object]]:
    return [{"text": TEXT.format(number) * 2, "url": f"https://news.example/{number}"} for number in some]


def texts(messages: Artifact) -> list[str]:
    lines = [line for path in messages.files("messages/") for line in messages.read(path).splitlines()]
    return sorted(json.loads(line)["url"].rpartition("/")[2] for line in lines)


def test_each_version_has_the_messages_after_the_one_before(broker: Broker, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    broker.send(*numbers(0, 1), partition=0)
    broker.send(*numbers(2), partition=3)
    first = made(recipe, "1", "stream")
    broker.send(*numbers(3, 4), partition=3)
    second = made(recipe, "2", "stream")
    assert (texts(first), texts(second)) == (["0", "1", "2"], ["3", "4"])
    assert stream.ranges_of(first.record.metrics)[NEWS] == {0: (0, 2), 1: (0, 0), 2: (0, 0), 3: (0, 1)}
    assert stream.ranges_of(second.record.metrics)[NEWS] == {0: (2, 2), 1: (0, 0), 2: (0, 0), 3: (1, 3)}
    assert texts(made(recipe, "1", "stream")) == ["0", "1", "2"]


def test_a_message_becomes_a_document_with_its_time_and_where_it_was(broker: Broker, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, text_field="body", url_field="link")
    broker.send({"body": TEXT * 2, "link": "https://news.example/a", "stars": 3}, {"body": TEXT.format(7) * 2})
    documents = made(recipe, "1", "stream", "extract")
    rows = [row for path in documents.files("documents/") for row in documents.table(path).to_pylist()]
    with_link, without = sorted(rows, key=lambda row: row["url"])
    assert (with_link["url"], without["url"]) == ("https://news.example/a", "kafka://news/articles/0/1")
    assert {row["source"] for row in rows} == {"news"}
    assert {row["fetched_at"].isoformat() for row in rows} == {"2026-09-21T14:13:20+00:00"}
    origin = {"topic": "articles", "partition": 0, "offset": 0, "time": "2026-09-21T14:13:20+00:00"}
    assert json.loads(with_link["metadata"]) == {"kafka": origin, "stars": 3}


def test_messages_in_an_object_store_become_documents(broker: Broker, s3: "S3Server") -> None:
    broker.send(*numbers(0, 1))
    documents = made(recipe_in(f"s3://{s3.buckets[0]}/streams"), "1", "stream", "extract")
    assert documents.record.rows_out == 2


def test_messages_that_are_no_rows_are_counted(broker: Broker, tmp_path: Path) -> None:
    deep = b"[" * 200_000
    broker.send(None, b"<xml/>", b'["a list"]', deep, b'{"text": "\\ud800", "url": "/0", "n": NaN}', *numbers(1))
    record = made(recipe_in(tmp_path), "1", "stream").record
    assert (record.rows_in, record.rows_out) == (6, 2)
    assert record.rejected == {"json_malformed": 3, "no_value": 1}


def test_a_version_without_a_new_message_is_recorded_and_has_nothing_to_extract(broker: Broker, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    broker.send(*numbers(0))
    made(recipe, "1", "stream", "extract")
    with pytest.raises(NothingNewError, match=r"r/extracted@2: there is no new message"):
        made(recipe, "2", "stream", "extract")
    broker.send(*numbers(1))
    assert texts(made(recipe, "3", "stream")) == ["1"]


def test_other_fields_of_a_message_are_read_from_the_same_messages(broker: Broker, tmp_path: Path) -> None:
    broker.send({"text": TEXT * 2, "summary": "The sea is where every river ends."})
    made(recipe_in(tmp_path), "1", "stream", "extract")
    broker.send(*numbers(5))
    again = recipe_in(tmp_path, text_field="summary")
    documents = made(again, "2", "stream", "extract", source="1")
    assert [row["text"] for path in documents.files("documents/") for row in documents.table(path).to_pylist()] == [
        "The sea is where every river ends."
    ]


def test_a_large_topic_is_read_over_several_versions(broker: Broker, tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, most=3)
    broker.send(*numbers(*range(5)), partition=1)
    versions = [texts(made(recipe, version, "stream")) for version in ("1", "2")]
    assert versions == [["0", "1", "2"], ["3", "4"]]


@pytest.mark.parametrize(
    "between", [{"name": "other", "topic": "weather"}, {"topic": "weather"}], ids=["left out", "another topic"]
)
def test_a_stream_that_versions_left_out_goes_on_where_it_ended(
    between: dict[str, str], broker: Broker, tmp_path: Path
) -> None:
    broker.send(*numbers(0, 1))
    broker.send(*numbers(7), topic="weather")
    made(recipe_in(tmp_path), "1", "stream")
    assert texts(made(recipe_in(tmp_path, **between), "2", "stream")) == ["7"]
    made(recipe_in(tmp_path, **between), "3", "stream")
    broker.send(*numbers(2))
    assert texts(made(recipe_in(tmp_path), "4", "stream")) == ["2"]


KILLED = """
import sys
import tomllib
from tests.kills import die_in
from tasks.run.recipe import Recipe
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.extract import stream
stream.AT_ONCE = 3
die_in("news-", count=int(sys.argv[2]))
run_stage(Recipe.from_text(sys.argv[1]), "stream", version="1", tracking=TrackingContext("", "r"))
"""


@pytest.mark.parametrize("at", [2, 4])
def test_a_killed_run_reads_the_range_that_it_began_with(
    at: int, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "AT_ONCE", 3)
    broker.send(*numbers(*range(10)))
    undisturbed = made(recipe_in(tmp_path / "a"), "1", "stream")
    recipe = recipe_in(tmp_path / "b")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", KILLED, recipe.text, str(at)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    broker.send(*numbers(10, 11))
    finished = made(recipe, "1", "stream")
    assert (finished.record.content, finished.record.metrics) == (
        undisturbed.record.content,
        undisturbed.record.metrics,
    )
    assert texts(made(recipe, "2", "stream")) == ["10", "11"]


def test_two_versions_cannot_have_the_same_messages(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_in(tmp_path)
    broker.send(*numbers(0))
    made(recipe, "1", "stream")
    broker.send(*numbers(1))
    check = stream._check_is_next

    def while_another_version_runs(output: object, previous: Artifact) -> None:
        monkeypatch.setattr(stream, "_check_is_next", check)
        made(recipe, "3", "stream")
        check(output, previous)

    monkeypatch.setattr(stream, "_check_is_next", while_another_version_runs)
    with pytest.raises(SupersededError, match=r"r/messages@3 has read the messages after r/messages@1"):
        made(recipe, "2", "stream")
    broker.send(*numbers(2))
    assert texts(made(recipe, "2", "stream")) == ["2"]


def test_messages_that_the_broker_deleted_unread_stop_the_stage_unless_they_may_be_skipped(
    broker: Broker, tmp_path: Path
) -> None:
    broker.send(*numbers(0))
    made(recipe_in(tmp_path), "1", "stream")
    large = "x" * 900_000
    for number in range(8):
        broker.send({"text": large, "url": f"https://news.example/{number}"})
    with pytest.raises(
        InputError, match=r'"articles" of the stream "news", partition 0: .* deleted the messages 1 to 3'
    ):
        made(recipe_in(tmp_path), "2", "stream")
    assert texts(made(recipe_in(tmp_path, gone="skip"), "2", "stream")) == ["3", "4", "5", "6", "7"]


def test_a_topic_that_was_made_again_is_refused(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.send(*numbers(0, 1, 2))
    made(recipe_in(tmp_path), "1", "stream")
    other = Broker()
    other.send(*numbers(0))
    monkeypatch.setenv(stream.KAFKA, json.dumps({"bootstrap.servers": other.address}))
    with pytest.raises(InputError, match=r"has read to offset 3, and it ends at 1: it was made again"):
        made(recipe_in(tmp_path), "2", "stream")


def test_a_topic_that_does_not_exist_is_named(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'topic "absent" of the stream "news": the broker has no such topic'):
        made(recipe_in(tmp_path, topic="absent"), "1", "stream")


@pytest.mark.parametrize("settings", ["", "{", "[]", '{"sasl.password": "s3cret-word"}'])
def test_without_a_broker_in_the_environment_the_message_says_how_to_name_one(
    settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stream.KAFKA, settings)
    with pytest.raises(RecipeError, match=r"SLUICE_KAFKA does not name a broker") as raised:
        made(recipe_in(tmp_path), "1", "stream")
    assert "s3cret-word" not in str(raised.value)


def test_a_password_that_the_broker_refuses_is_named_and_not_shown(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Guarded(broker, "reader", "another") as guard:
        settings = {"bootstrap.servers": guard.address, "security.protocol": "SASL_PLAINTEXT"}
        settings |= {"sasl.mechanism": "PLAIN", "sasl.username": "reader", "sasl.password": "s3cret-word"}
        monkeypatch.setenv(stream.KAFKA, json.dumps(settings))
        with pytest.raises(InputError, match=r"SASL authentication error.*Correct the credentials") as raised:
            made(recipe_in(tmp_path), "1", "stream")
    assert guard.refused
    assert "s3cret-word" not in str(raised.value)


def test_credentials_are_in_no_file_of_the_store(broker: Broker, tmp_path: Path) -> None:
    broker.send(*numbers(0))
    made(recipe_in(tmp_path), "1", "stream", "extract")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"s3cret-word" in path.read_bytes()]


def test_a_stream_and_a_file_source_need_different_names() -> None:
    files = [{"name": "news", "kind": "text", "path": "/a"}]
    extract = {"streams": [{"name": "news", "topic": "t"}], "files": files}
    with pytest.raises(RecipeError, match=r"names of sources must be unique"):
        Recipe.from_text(json.dumps({"name": "r", "extract": extract}))


def test_the_recipe_of_the_documentation_mixes_a_stream_with_gold_by_steps() -> None:
    section = (Path(__file__).parents[4] / "docs/months.md").read_text().partition("## Streams")[2]
    recipe = Recipe.from_text(json.dumps(tomllib.loads(section.split("```toml")[1].split("```")[0])))
    assert recipe.parts == ("corpus", "tokens", "pretrain")
    assert recipe.stages("corpus")[:2] == ("stream", "extract")
    assert (recipe.train.steps, recipe.train.replay.old) == (500, ("gold",))
