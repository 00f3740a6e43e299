"""Unit costs of the stages, each with the measurement that it is from.

A wheel has no benchmarks, so the values are here. `tests/tasks/run/test_scale.py` compares each with the result of its
benchmark, and measures those again that are counts of bytes or requests.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """A measured unit.

    Attributes:
        value: the figure, in the unit that `what` names.
        what: what was measured.
        source: name of the benchmark, `benchmarks/results/<source>.json`; or the test that measures it.
        path: where the figure is in the result of a benchmark.
        per: where the figure is that it was divided by; () for none.
        factor: of the unit in the result, such as 1e6 for MB.
    """

    value: float
    what: str
    source: str
    path: tuple[str | int, ...] = ()
    per: tuple[str | int, ...] = ()
    factor: float = 1.0


COUNTED = "tests/tasks/run/test_scale.py"
"""The test that measures memory and sizes of records."""
COUNTED_ON_S3 = "tests/stores/test_requests.py"
"""The test that counts requests."""

LISTED = "docs/crawl.md"
"""The page that has the memory of a fetch list."""

UNITS = {
    # The corpus.
    "html_bytes": Unit(
        147_407, "bytes of HTML of an archived page", "refine", ("archived", "html_mb"), ("archived", "pages"), 1e6
    ),
    "text_bytes": Unit(3_726, "bytes of a text", "encode", ("megabytes",), ("documents",), 1e6),
    "warc_share": Unit(
        0.365, "bytes of WARC per byte of HTML", "warc_writer", ("came as gzip", "bytes", "gzip"), factor=1 / 24_210
    ),
    "kept_share": Unit(
        0.261,
        "share of pages that are kept",
        "refine",
        ("archived", "rounds", 0, "default", "kept"),
        ("archived", "pages"),
    ),
    "bytes_per_token": Unit(3.396, "bytes of web text per token", "splits", ("domains", "llama3", "web")),
    # The crawl.
    "fetch_pages": Unit(
        365.8, "pages fetched per CPU-second, without TLS", "crawl", ("pages_per_cpu_second", "sluice")
    ),
    "generate_cpu": Unit(
        1.45e-6, "CPU-seconds of generate per known URL", "crawldb", ("sizes", 2, "generate", "cpu_s"), factor=1e-7
    ),
    "update_cpu": Unit(
        1.937e-6, "CPU-seconds of update per known URL", "crawldb", ("sizes", 2, "update", "cpu_s"), factor=1e-7
    ),
    "generate_memory": Unit(
        146, "bytes of memory of generate per known URL", "crawldb", ("sizes", 2, "generate", "peak_gb"), factor=1e2
    ),
    "update_memory": Unit(
        121, "bytes of memory of update per known URL", "crawldb", ("sizes", 2, "update", "peak_gb"), factor=1e2
    ),
    # CPU of the corpus and the tokens.
    "extract_speed": Unit(
        8.6e6,
        "bytes of HTML extracted per CPU-second",
        "refine",
        ("archived", "rounds", 0, "default", "mb_per_cpu_s", "extract"),
        factor=1e6,
    ),
    "annotate_speed": Unit(
        3.1e6,
        "bytes of text annotated per CPU-second",
        "refine",
        ("archived", "rounds", 0, "default", "mb_per_cpu_s", "annotate"),
        factor=1e6,
    ),
    "dedup_cpu": Unit(
        193.7e-6,
        "CPU-seconds of dedup per document, of 5 million",
        "dedup_scale",
        ("runs", 2, "cpu_us_per_document"),
        factor=1e-6,
    ),
    "dedup_text": Unit(
        1_182, "bytes of a text of that run", "dedup_scale", ("runs", 2, "text_mb"), ("runs", 2, "documents"), 1e6
    ),
    "consolidate_cpu": Unit(
        114e-6,
        "CPU-seconds of consolidate per document",
        "month_costs",
        ("cpu_s", "consolidate", 0),
        ("rows", "extract", 0),
    ),
    "encode_speed": Unit(
        40.62e6, "bytes of text encoded per CPU-second", "encode", ("megabytes_per_cpu_second", "stage"), factor=1e6
    ),
    "spans_cpu": Unit(
        0.248e-6,
        "CPU-seconds of spans per token",
        "explain",
        ("sizes", 2, "index_cpu_seconds"),
        ("sizes", 2, "tokens"),
    ),
    # Bytes of files.
    "dedup_artifact": Unit(
        558,
        "bytes of the artifact of dedup per document",
        "dedup_scale",
        ("runs", 2, "artifact_mb"),
        ("runs", 2, "documents"),
        1e6,
    ),
    "candidate_pairs": Unit(
        0.452, "candidate pairs per document", "dedup_scale", ("runs", 2, "candidate_pairs"), ("runs", 2, "documents")
    ),
    "verified_pairs": Unit(
        0.330, "verified pairs per document", "dedup_scale", ("runs", 2, "verified_pairs"), ("runs", 2, "documents")
    ),
    "equal_pairs": Unit(
        0.160, "exact duplicates per document", "dedup_scale", ("runs", 2, "exact_duplicates"), ("runs", 2, "documents")
    ),
    "index_bytes": Unit(188.6, "bytes of the index of tokens per document", "trace", ("index_bytes_per_document",)),
    "spans_bytes": Unit(4.031, "bytes of suffix arrays per token", "explain", ("sizes", 2, "index_bytes_per_token")),
    # Memory of a worker.
    "fetch_memory": Unit(
        191e6, "bytes of memory of a fetch of 5,000 pages", "crawl", ("rounds", 0, "sluice", "peak_mb"), factor=1e6
    ),
    "listed_memory": Unit(900, "bytes of memory of a fetch per URL of its fetch list", LISTED),
    "dedup_memory": Unit(
        436e6,
        "bytes of memory of the largest process of dedup, parts of 10,000 documents",
        "dedup_scale",
        ("runs", 2, "largest_process_mb"),
        factor=1e6,
    ),
    "spans_memory": Unit(
        7.55e9, "bytes of memory of spans, groups of 256 M tokens", "explain", ("sizes", 2, "peak_gib"), factor=2**30
    ),
    # Memory counted by allocations, and sizes of records.
    "manifest_file": Unit(836, "bytes of memory of extract per WARC file of its input", COUNTED),
    "first_pass_part": Unit(
        3_960, "bytes of memory of extract per part, at the peak of the first pass, without records", COUNTED
    ),
    "identity_memory": Unit(132, "bytes of memory of a task of extract per identity of its range", COUNTED),
    "sampled_memory": Unit(295, "bytes of memory of the tokenizer for a document of its sample", COUNTED),
    "committed_part": Unit(1_580, "bytes of memory of a part's record until it is committed, without files", COUNTED),
    "committed_file": Unit(771, "bytes of memory of a file's entry until it is committed", COUNTED),
    "listed_file": Unit(93, "bytes of memory of the path of a file of an input", COUNTED),
    "group_part": Unit(89, "bytes of memory of a part in a manifest that is kept, without files", COUNTED),
    "group_file": Unit(99, "bytes of memory of a file in a manifest that is kept", COUNTED),
    "record_part": Unit(0.27, "bytes of a part in the record of an artifact, without folders", COUNTED),
    "record_folder": Unit(0.18, "bytes of a part in the record of an artifact, for each folder", COUNTED),
    # Requests.
    "head_read": Unit(1, "HEAD of a worker for a file that it reads, each time", COUNTED_ON_S3),
    "get_read": Unit(1, "GET of a worker for a file that it reads, once on a machine", COUNTED_ON_S3),
    "put_written": Unit(1, "PUT of a worker for a file that it writes, and for the record of a part", COUNTED_ON_S3),
    "requests_resume": Unit(1.03, "requests for a part when a killed stage resumes", COUNTED_ON_S3),
}


def unit(name: str) -> float:
    """Returns the value of a unit."""
    return UNITS[name].value
