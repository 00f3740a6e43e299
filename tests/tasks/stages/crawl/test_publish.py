"""The page of a crawl's domains: the largest ones, escaped."""

import pyarrow as pa

from tasks.stages.crawl.publish import page


def test_the_page_lists_the_first_500_domains_as_text_and_counts_the_rest() -> None:
    rows = [{"domain": f"d{i}.<b>", "hosts": i * 1000, "slowest_s": i / 7 if i else None} for i in range(502)]
    table = pa.Table.from_pylist(rows)
    shown = page(table.slice(0, 500), 502).decode()
    assert shown.startswith("<!doctype html><meta charset=utf-8><title>Domains</title><style>table{")
    assert (
        "<tr><th>domain</th><th>hosts</th><th>slowest s</th></tr><tr><td>d0.&lt;b&gt;</td><td>0</td><td></td></tr>"
        in shown
    )
    assert (
        "<td>d499.&lt;b&gt;</td><td>499000</td><td>71.286</td></tr></table><p>2 more in domains.parquet.</p>" in shown
    )
    assert "d500." not in shown
    assert page(table.slice(0, 3), 3).decode().endswith("</tr></table>")
