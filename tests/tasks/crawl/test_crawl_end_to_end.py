import io

import pytest
from crawl_site import Site, linked
from warcio.archiveiterator import ArchiveIterator

from tasks import archive
from tasks.crawl.config import CrawlConfig


@pytest.fixture
def crawl(run_stage):
    def run(config, version="dev", previous=None):
        earlier = {"previous": previous} if previous else {}
        fetchlist = run_stage("tasks.crawl.generate", config, earlier, version=version)
        segments = [
            run_stage("tasks.crawl.fetch", config, {"fetchlist": fetchlist}, member=member, version=version)
            for member in fetchlist.record.members
        ]
        inputs = {"fetchlist": fetchlist, "segments": segments, **earlier}
        crawldb = run_stage("tasks.crawl.update", config, inputs, version=version)
        warc = run_stage("tasks.crawl.publish", config, {"segments": segments}, version=version)
        return segments, crawldb, warc

    return run


def config_for(*sites, **settings):
    seeds = tuple(site.url() for site in sites)
    return CrawlConfig(**{"seeds": seeds, "allow_loopback": True, "delay_s": 0.0, "latency_factor": 0.0, **settings})


def captured(warc):
    found = {}
    for file in archive.warc_files(warc):
        with warc.store.open(file.path) as raw:
            for capture in archive.captures(raw):
                assert capture.url not in found
                found[capture.url] = capture.payload_digest
    return found


def test_a_site_is_crawled_from_its_seed_into_a_warc_that_warcio_accepts(crawl):
    with Site(linked(20)) as site:
        segments, crawldb, warc = crawl(config_for(site))
        assert set(captured(warc)) == {site.url(path) for path in site.pages}
    assert warc.record.rows_out == 20
    for file in archive.warc_files(warc):
        data = warc.store.read(file.path)
        records = ArchiveIterator(io.BytesIO(data), check_digests="raise")
        kinds = [record.rec_type for record in records if record.content_stream().read() is not None]
        assert kinds[0] == "warcinfo"
        assert kinds.count("response") == kinds.count("request") == kinds.count("metadata") == file.records
    statuses = {row["url"]: row["status"] for name in crawldb.files() for row in crawldb.table(name).to_pylist()}
    assert set(statuses.values()) == {"db_fetched"}
    assert len(statuses) == 20
