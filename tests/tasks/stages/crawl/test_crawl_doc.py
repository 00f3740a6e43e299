"""docs/crawl.md: it lists every setting with its default, its queries run, its links are valid."""

import re
import tomllib
from pathlib import Path

import duckdb
import pytest

from tasks.core.config import parse
from tasks.stages.crawl.config import CrawlConfig, RenderConfig, SignatureConfig
from tasks.stages.crawl.policy import HostSettings, read_hosts_file
from tests.tasks.stages.crawl.site import Site, linked

DOC = Path(__file__).parents[4] / "docs" / "crawl.md"
TEXT = DOC.read_text()
SETTINGS = TEXT.partition("\n## Settings")[2].partition("\n## ")[0]
WORDS = {8 << 20: "8 MiB", 4 << 30: "4 GiB", 32 << 20: "32 MiB", 2 << 30: "2 GiB"}
# Settings whose default the table gives in words.
IN_WORDS = {
    *("include_hosts", "ip_delay_s", "guess_sitemaps", "ai_optouts", "name_servers", "mime_types", "chromium"),
    *("blocked", "render", "signature"),
}


def rows(table):
    """Returns the defaults of a table of settings, by name."""
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[0])
        given = cells[1].split(", ") if len(cells) > 2 else []
        found.update(zip(names, given if len(given) == len(names) else given[:1] * len(names), strict=False))
    return found


@pytest.mark.parametrize("config", [CrawlConfig, SignatureConfig, RenderConfig])
def test_every_setting_is_documented_with_its_default(config):
    crawl, signature, render = re.split(r"`\[crawl\.(?:signature|render)\]`", SETTINGS)
    said = rows({CrawlConfig: crawl, SignatureConfig: signature, RenderConfig: render}[config])
    assert set(said) == set(config.model_fields) - {"render", "signature"}
    for name, field in config.model_fields.items():
        if name in IN_WORDS:
            continue
        value = field.default
        if isinstance(value, bool):
            shown = f"`{str(value).lower()}`"
        elif isinstance(value, str):
            shown = f'`"{value}"`'
        elif isinstance(value, dict):
            shown = "`{}`"
        elif isinstance(value, tuple):
            shown = "`[]`" if not value else ""
        else:
            shown = WORDS.get(value, f"{value:g}")
        assert said[name] in (shown, str(value)), name


def test_every_query_runs_on_a_real_crawl(crawl, tmp_path):
    with Site(linked(6)) as site:
        crawl(CrawlConfig(seeds=(site.url("/"),), allow_loopback=True, delay_s=0, partitions=2)).warc  # noqa: B018
    queries = re.findall(r'duckdb\.sql\("""(.*?)"""\)', TEXT, re.S)
    assert len(queries) == 5
    for folder, stage in (("segment", "fetch"), ("crawldb", "update")):
        here = f"{tmp_path}/test/tasks-stages-crawl-{stage}/"
        queries = [query.replace(f".sluice/store/demo/{folder}/", here) for query in queries]
    results = [duckdb.sql(query.replace("/c1/", "/dev/").replace("/json.html", "/1")).fetchall() for query in queries]
    assert [row[:3] for row in results[0]] == [("", "fetch_success", 6)]
    assert results[3]
    assert all(target.endswith("/1") for _, target in results[3])


def test_the_documented_hosts_file_and_grants_are_valid(tmp_path):
    blocks = re.findall(r"```toml\n(.*?)```", TEXT, re.S)
    (shown,) = [block for block in blocks if block.startswith("deny = ")]
    (tmp_path / "hosts.toml").write_text(shown)
    file, _ = read_hosts_file(str(tmp_path / "hosts.toml"))
    assert file.deny
    assert set(HostSettings.model_fields) == {name for one in file.hosts.values() for name in one.model_fields_set}
    (granted,) = [block for block in blocks if block.startswith("allow_hosts = ")]
    assert parse(CrawlConfig, tomllib.loads(granted), "docs").allow_hosts


def test_no_link_is_broken():
    heads = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)$", TEXT, re.M)}
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXT):
        file, _, anchor = target.partition("#")
        assert not file or (DOC.parent / file).exists(), target
        assert file or anchor in heads, target
