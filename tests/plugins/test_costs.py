"""Cost and disk of a recipe's versions, and who needs them."""

import json
import re
import shutil
from html import unescape

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import adopt
from tasks.core.store import Store
from tests.plugins.test_compare import write

PAGE = "/sluice/costs?recipe=test"


def rows_of(text):
    """Returns the cells of each version's row, without markup."""
    table = text.partition('<tbody id="costs">')[2].partition("</tbody>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in table.split("<tr>")[1:]]
    plain = [[unescape(re.sub(r"<[^>]+>", "", cell)) for cell in row] for row in rows]
    return {row[0]: row[1:] for row in plain}


def card(text, label):
    return re.search(rf'<dt>{label}</dt><dd class="value">([^<]*)</dd>', text)[1]


def test_versions_have_planned_and_real_prices_and_their_sums(get, versions):
    compared = [{"name": "price", "planned": 2.0, "real": 3.0}, {"name": "GPU-hours", "planned": 1.0, "real": 1.5}]
    write(versions, "reconciled", "v1", {"reconciled.json": json.dumps(compared).encode()})
    write(versions, "estimate", "v2", {"a": b""}, metrics={"price": 5.0, "gpu_hours": 2.5})
    text = get(PAGE).text
    rows = rows_of(text)
    assert rows["v1"][6:] == ["2", "3", "1", "1.5"]
    assert rows["v2"][6:] == ["5", "", "2.5", ""]
    assert (card(text, "Planned price"), card(text, "Real price")) == ("7", "3")


def test_disk_counts_own_files_once_and_adopted_ones_apart(get, versions):
    shards = Artifact.open_at(Store(str(versions)), ArtifactId("test/shards", "v1"))
    adopt(shards, ArtifactId("test/shards", "v3"), ())
    rows = rows_of(get(PAGE).text)
    assert (rows["v3"][1], rows["v3"][3]) == ("0", f"{round(shards.record.bytes / 1e6, 1):,.4g}")
    assert rows["v1"][0] == "v3"
    assert rows["v2"][0] == "no other version"


def test_the_champion_and_takedowns_are_marked(get, versions):
    write(
        versions, "champion", "v2", {"champion.json": json.dumps({"champion": {"artifact": "test/model@v1"}}).encode()}
    )
    rows = rows_of(get(PAGE).text)
    assert rows["v1"][0] == "champion"
    assert rows["t1"][0] == "takedown"


def test_many_versions_that_need_one_are_counted(get, versions, monkeypatch):
    from sluice_ui import costs

    shards = Artifact.open_at(Store(str(versions)), ArtifactId("test/shards", "v1"))
    for number in range(6):
        adopt(shards, ArtifactId("test/shards", f"w{number}"), ())
    assert rows_of(get(PAGE).text)["v1"][0] == "w0, w1, w2 and 3 more"
    monkeypatch.setattr(costs, "COUNTED", 5)
    assert rows_of(get(PAGE).text)["v1"][0].endswith("and at least 2 more")


def test_a_user_that_was_removed_needs_nothing(get, versions):
    shards = Artifact.open_at(Store(str(versions)), ArtifactId("test/shards", "v1"))
    adopt(shards, ArtifactId("test/shards", "v3"), ())
    shutil.rmtree(versions / "test" / "shards" / "v3")
    assert rows_of(get(PAGE).text)["v1"][0] == "no other version"


def test_a_recipe_without_versions_is_404(get, recipes):
    recipes("test")
    assert get(PAGE).status_code == 404
