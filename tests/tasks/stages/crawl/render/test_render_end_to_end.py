"""From a seed to a rendered page: text that is missing in the capture is rendered. With real Chromium."""

from fastwarc import ArchiveIterator, WarcRecordType

from tasks.stages.crawl.config import CrawlConfig, RenderConfig
from tests.tasks.stages.crawl.site import Site

SHELL = """<!doctype html><html><head><title>Shop</title></head><body><div id="root"></div>
<noscript>You need to enable JavaScript to run this app.</noscript><script src="/app.js"></script></body></html>"""
APP = """fetch("/api/goods").then(answer => answer.json()).then(goods => {
  document.getElementById("root").innerHTML = goods.map(
    one => `<article><h2>${one.name}</h2><p>${one.text}</p><a href="/goods/${one.name}">more</a></article>`).join("");
});"""
GOODS = '[{"name": "kettle", "text": "It boils water quickly."}, {"name": "pan", "text": "It fries well."}]'


def config_for(site):
    return CrawlConfig(
        seeds=(site.url(),),
        allow_loopback=True,
        delay_s=0.0,
        latency_factor=0.0,
        partitions=1,
        render=RenderConfig(enabled=True, settle_ms=300),
    )


def rows_of(artifact, folder):
    return [row for path in artifact.files(folder) for row in artifact.table(path).to_pylist()]


def test_a_page_with_text_from_scripts_is_captured_and_then_rendered(chromium, run_stage):
    plain = f"<p>{'A page that is whole as it is. ' * 50}</p><script>1</script><a href=/shop>shop</a>"
    with Site({"/": plain, "/shop": SHELL, "/app.js": APP, "/api/goods": GOODS}) as site:
        config = config_for(site)
        seeds = run_stage("tasks.stages.crawl.inject", config)
        ranks = run_stage("tasks.stages.crawl.rank", config)
        listed = run_stage("tasks.stages.crawl.generate", config, {"seeds": seeds, "ranks": ranks}, member="p0")
        inputs = {"seeds": seeds, "fetchlist": listed, "fetchlists": [listed]}
        segment = run_stage("tasks.stages.crawl.fetch", config, inputs, member="p0")
        shop = site.url("/shop")
        assert {row["url"] for row in rows_of(segment, "log/") if row["render"]} == {shop}
        site.requests.clear()
        rendered = run_stage(
            "tasks.stages.crawl.render.stage", config, {"segment": segment, "seeds": seeds}, member="p0"
        )
        # Neither the page nor robots.txt is requested again.
        assert sorted(site.paths()) == ["/api/goods", "/app.js"]
        links = {row["url"] for row in rows_of(rendered, "links/")}
        assert links == {site.url("/goods/kettle"), site.url("/goods/pan")}
    (path,) = rendered.files("warc/")
    with rendered.open(path) as file:
        records = ArchiveIterator(file, record_types=WarcRecordType.conversion)
        ((headers, text),) = [(dict(one.headers), one.reader.read().decode()) for one in records]
    captured = next(row for row in rows_of(segment, "log/") if row["url"] == shop)
    assert headers["WARC-Refers-To"] == f"<{captured['record_id']}>"
    assert "It boils water quickly." in text
    assert "It fries well." in text
