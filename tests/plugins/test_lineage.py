"""The graph of a version: its boxes, their order, what was adopted or taken down, and a drawing without overlaps."""

import itertools
import random
import re

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.commit import adopt, commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tests.plugins.conftest import HOSTILE

PAGE = "/sluice/lineage?recipe=test&version=v2"


def made(store, name, version, inputs=()):
    refs = [InputRef(role=role, address=address, fingerprint="1" * 64, content="2" * 64) for role, address in inputs]
    output = Output(store, ArtifactId(name, version), "0" * 64)
    with output.part("part-00000-of-00001", conserved=False) as part, part.file("a") as file:
        file.write(name.encode())
    return commit(output, "by hand", 1, Config(), refs, Report())


def test_artifacts_are_boxes_and_inputs_are_edges(get, versions):
    text = get(PAGE).text
    svg = text.partition("<svg")[2].partition("</svg>")[0]
    for kind in ("documents", "tokenizer", "shards", "plan"):
        assert f'<a href="/sluice/artifact/test/{kind}%40v2">' in svg
    titles = set(re.findall(r'class="edge" d="[^"]+"><title>([^<]+)</title>', svg))
    assert titles == {"documents to tokenizer: documents", "documents to shards: documents",
                      "tokenizer to shards: tokenizer", "shards to plan: shards"}  # fmt: skip
    rows = text.partition('id="edges"')[2].partition("</tbody>")[0]
    assert rows.count("<tr>") == len(titles)


def test_artifacts_with_documents_that_were_taken_down_are_marked(get, versions):
    text = get(PAGE).text
    assert "documents: 1, made; 1 documents were taken down later" in text
    assert "tokenizer: 1, made</title>" in text


def test_partitions_are_one_box_and_adopted_ones_name_their_version(tmp_path):
    from sluice_ui.lineage import graph_of

    store = Store(str(tmp_path))
    source = made(store, "test/fetchlist/p0", "v1")
    adopt(source, ArtifactId("test/fetchlist/p0", "v2"), ())
    segments = [
        made(store, f"test/segment/p{n}", "v2", [("list", "test/fetchlist/p0@v2"), ("db", f"test/crawldb/p{n}@v1")])
        for n in range(16)
    ]
    own = [Artifact.open_at(store, ArtifactId("test/fetchlist/p0", "v2")), *segments]
    graph = graph_of(own, "test", "v2")
    looks = {box.title: (box.count, box.look, box.state) for box in graph.boxes.values()}
    assert looks == {
        "crawldb": (16, "other", "version v1"),
        "fetchlist": (1, "adopted", "adopted from v1"),
        "segment": (16, "made", "made"),
    }
    assert set(graph.edges) == {("fetchlist", "segment"), ("other crawldb@v1", "segment")}
    assert list(graph.boxes)[-1] == "segment"


def test_a_hostile_address_is_escaped(get, versions):
    made(Store(str(versions)), "test/plan", "v4", [(HOSTILE, f"external:{HOSTILE}")])
    text = get("/sluice/lineage?recipe=test&version=v4").text
    assert "files outside" in text
    assert "<img" not in text


def test_a_version_without_artifacts_is_404(get, versions):
    assert get("/sluice/lineage?recipe=test&version=v9").status_code == 404


def random_graph(seed):
    draw = random.Random(seed)
    nodes = [f"n{at}" for at in range(draw.randint(1, 40))]
    edges = {(a, b) for a, b in itertools.combinations(nodes, 2) if draw.random() < 0.1}
    return nodes, edges


def test_boxes_do_not_overlap_and_edges_point_downward():
    from sluice_ui.layered import HEIGHT, WIDTH, draw

    for seed in range(30):
        nodes, edges = random_graph(seed)
        drawn = draw(nodes, edges)
        assert set(drawn.boxes) == set(nodes)
        assert set(drawn.edges) == edges
        for a, b in itertools.combinations(nodes, 2):
            (x, y), (x2, y2) = drawn.boxes[a], drawn.boxes[b]
            assert abs(x - x2) >= WIDTH or abs(y - y2) >= HEIGHT, (seed, a, b)
        for a, b in edges:
            assert drawn.boxes[a][1] + HEIGHT < drawn.boxes[b][1]
        assert all(-0.01 <= x <= drawn.size[0] - WIDTH + 0.01 for x, _ in drawn.boxes.values())


def test_an_edge_over_several_rows_passes_beside_the_boxes_between():
    from sluice_ui.layered import HEIGHT, WIDTH, draw

    for seed in range(30):
        nodes, edges = random_graph(seed)
        drawn = draw(nodes, edges)
        for path in drawn.edges.values():
            for x, y, end in re.findall(r"([\d.-]+) ([\d.-]+)V([\d.]+)", path):
                for left, top in drawn.boxes.values():
                    assert not (left < float(x) < left + WIDTH and top < float(end) and top + HEIGHT > float(y))


def test_edges_against_the_order_are_left_out_and_equal_graphs_have_equal_drawings():
    from sluice_ui.layered import draw

    assert draw(["a", "b"], [("b", "a")]).edges == {}
    assert draw([], []).size == (0.0, 44.0)
    nodes, edges = random_graph(3)
    assert draw(nodes, sorted(edges)) == draw(nodes, sorted(edges, reverse=True))
