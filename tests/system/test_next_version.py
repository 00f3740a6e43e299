"""The next version of a shipped recipe recomputes only changes; or starts from the weights of the previous version."""

import re
import time

import pytest

from tasks.demo.drive import DagChain
from tasks.run.trace.trace import trace

LIMIT = "consolidate.limits.gopher_repetition.max_duplicate_lines"


@pytest.mark.soak
def test_a_limit_that_keeps_the_same_documents_recomputes_only_consolidate(stack, smoke) -> None:
    before = stack.artifact("smoke/checkpoint").record
    chain = DagChain(stack.airflow, "smoke")
    chain.dag_runs = chain.dag_runs[1:]
    chain.start({"version": "limit", "source_version": "dev", "overrides": {LIMIT: 0.301}})
    deadline = time.monotonic() + 600
    for _ in chain.follow():
        assert time.monotonic() < deadline
    made = {dag_run.dag_id.partition(".")[2]: dag_run for dag_run in chain.dag_runs}
    assert list(made) == ["corpus", "tokens", "canary", "pretrain"]
    assert [dag_run.dag_id for dag_run in chain.dag_runs if not dag_run.unchanged] == ["smoke.corpus"]
    not_adopted = [result["address"] for result in made["corpus"].results if not result["skipped"]]
    assert not_adopted == ["smoke/documents@limit"]
    after = stack.artifact("smoke/checkpoint", "limit").record
    assert (after.adopted_from, after.content) == ("smoke/checkpoint@dev", before.content)

    documents = stack.artifact("smoke/documents", "limit")
    url = documents.table(documents.files("kept/")[0], ["url"]).column("url")[0].as_py()
    found = trace(documents.store, "smoke", "limit", url).to_json()
    assert found["artifacts"]["documents"] == "smoke/documents@limit"
    assert found["artifacts"]["checkpoint"] == "smoke/checkpoint@limit"
    assert any(document["fate"] == "kept" for document in found["documents"])


def test_a_version_starts_from_the_previous_weights_and_pages_are_traced_through_both(stack, smoke, begun) -> None:
    import mlflow

    first, second = stack.artifact("smoke/checkpoint"), begun
    assert not second.record.adopted_from
    assert "began from smoke/checkpoint@dev" in second.record.note
    losses = [one.table("loss.parquet")["loss"].to_pylist() for one in (first, second)]
    assert losses[1][0] < losses[0][0] - 0.5

    url = re.search(r"http://\w+\.localhost:\d+/\S*", smoke.printed.partition("\nTrace\n")[2])[0]
    found = trace(first.store, "smoke", "begun", url).to_json()
    (before,) = found["before"]
    assert before["checkpoint"] == "smoke/checkpoint@dev"
    own = trace(first.store, "smoke", "dev", url).to_json()
    assert [one["steps"] for one in before["documents"]] == [one["steps"] for one in own["documents"]]
    assert found["documents"][0]["steps"]
    assert own["before"] == []

    client = mlflow.MlflowClient(tracking_uri=stack.home.mlflow_url)
    (model,) = client.search_model_versions("name='smoke' and tags.`sluice.artifact` = 'smoke/model@begun'")
    assert model.tags["sluice.initial"] == f"smoke/checkpoint@dev {first.record.fingerprint[:16]}"
