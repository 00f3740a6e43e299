"""The months of the benchmark of continual training: new documents each, and a domain that begins in each later one."""

import json
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from benchmarks import continual, crawl_web


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Texts of 100 bytes in all domains, and months of a hundredth of the usual size."""
    for domain in (*continual.BASE, *continual.NEW):
        lines = [json.dumps({"text": f"{domain} {number} ".ljust(100, "x")}) for number in range(200)]
        (tmp_path / f"{domain}.jsonl.zst").write_bytes(pa.compress("\n".join(lines).encode(), "zstd", asbytes=True))
    monkeypatch.setattr(continual, "FIRST_BYTES", 14_000)
    return tmp_path


def test_every_month_has_new_documents_and_each_later_one_begins_a_domain(data: Path) -> None:
    months = continual.texts_by_month(data)
    assert tuple(months) == continual.MONTHS
    texts = [text for month in months.values() for _, text in month]
    assert len(set(texts)) == len(texts)
    seen: set[str] = set()
    for number, month in enumerate(months.values()):
        domains = {domain for domain, _ in month}
        assert domains - seen == ({*continual.BASE} if number == 0 else {continual.NEW[number - 1]})
        seen |= domains
    sizes = [sum(len(text) for _, text in month) for month in months.values()]
    assert all(size == pytest.approx(sizes[0] * continual.INCREMENT, abs=400) for size in sizes[1:])


def test_settings_are_those_of_the_product_and_the_defaults_are_among_them() -> None:
    defaults = continual.ContinualConfig().model_dump(exclude={"steps"})
    usual = {name: value for name, value in continual.USUAL.items() if name != continual.REPLAY}
    found = [name for name, changes in continual.SETTINGS.items() if usual | changes == defaults]
    assert len(found) == 1


def test_a_web_that_grows_serves_a_page_once_its_host_is_there_and_no_unchanged_one_again(tmp_path: Path) -> None:
    (host,) = crawl_web.make(tmp_path, crawl_web.Shape(hosts=1, pages_per_host=8)).hosts
    site = continual.GrowingWeb(tmp_path)

    def get(path: str, validator: str = "") -> httpx.Response:
        return httpx.get(site.url(path), headers={"Host": host, "If-None-Match": validator}, trust_env=False)

    with site:
        assert get("/").status_code == 404
        site.hosts.add(host)
        page = get("/")
        assert page.text.startswith("<!DOCTYPE html>")
        assert get("/", page.headers["ETag"]).status_code == 304
        assert get("/", "another").text == page.text
        assert "Disallow" in get("/robots.txt").text
