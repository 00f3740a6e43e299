"""The public summary of training content, in the structure of the template of the European Commission.

Source of the structure: C(2025) 8311 of 5 December 2025, the template for the summary that article 53(1)(d) of
Regulation (EU) 2024/1689 requires. Sections and fields have its order; the words are ours. What is not on record is
None; for what only the provider knows, the page says which option states it. Reads records and counts (`corpus`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.core.artifact import EXTERNAL, Artifact
from tasks.core.clients.hub import is_hub
from tasks.formats.tokens.exposure import origin_ref
from tasks.run.dossier.corpus import WEB, Corpus
from tasks.run.result import Json
from tasks.run.trace.cards import disallowed_fetches
from tasks.stages.extract.config import FILES, LICENSE
from tasks.trainer.interchange.address import is_address

SIZES = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))
"""Classes of the size of text in the template, with their upper limits."""
LARGEST = "more than 10 trillion tokens"
SHARE, SMALL_SHARE, SMALL_MOST = 0.10, 0.05, 1_000
"""Shares of the crawled domains to name, the largest first: for a small firm 5 %, or 1,000 if that is less."""


@dataclass(frozen=True)
class Statement:
    """What only the provider knows.

    Attributes:
        provider: name of the provider.
        contact: address for questions and complaints.
        small: whether the provider is a small or medium-sized firm.
    """

    provider: str = ""
    contact: str = ""
    small: bool = False


def summary(artifacts: Mapping[str, Artifact], corpus: Corpus, statement: Statement) -> Json:
    """Returns the summary of the model that a lineage (`lineage.chain`) ends with."""
    return {
        "template": "C(2025) 8311",
        "general": _general(artifacts, corpus, statement),
        "sources": {
            "public_datasets": None,
            "private_datasets": None,
            "crawled": _crawled(artifacts, corpus, statement),
            "user_data": None,
            "synthetic": None,
            "other": _files(artifacts, corpus),
        },
        "processing": _processing(artifacts),
    }


def most_domains(domains: int, small: bool) -> int:
    """Returns the number of domains to name.

    >>> most_domains(95, False), most_domains(95, True), most_domains(100_000, True)
    (10, 5, 1000)
    """
    share = SMALL_SHARE if small else SHARE
    count = -(-domains * round(share * 100) // 100)
    return min(count, SMALL_MOST) if small else count


def _general(artifacts: Mapping[str, Artifact], corpus: Corpus, statement: Statement) -> Json:
    checkpoint, shards = artifacts["checkpoint"], artifacts["shards"]
    tokens = int(shards.record.metrics["tokens"])
    total = corpus.total
    named, origin = checkpoint.record.config.get("init_from", ""), origin_ref(checkpoint)
    return {
        "provider": statement.provider or None,
        "contact": statement.contact or None,
        "model": str(checkpoint.address),
        "derived_from": (named if is_address(named) else origin.address) if origin else None,
        "placed_on_market": None,
        "modality": "text",
        "size": next((name for limit, name in SIZES if tokens < limit), LARGEST),
        "tokens": tokens,
        "documents": total.documents,
        "bytes": total.bytes,
        "latest_acquisition": total.last.date().isoformat() if total.last else None,
        "languages": [
            {"language": name, "documents": count.documents, "bytes": count.bytes}
            for name, count in sorted(corpus.languages.items(), key=lambda item: (-item[1].bytes, item[0]))
        ],
    }


def _crawled(artifacts: Mapping[str, Artifact], corpus: Corpus, statement: Statement) -> Json | None:
    warc = artifacts.get("warc")
    count = corpus.sources.get(WEB)
    if count is None:
        return None
    most = most_domains(len(corpus.domains), statement.small)
    return {
        **(_crawler(warc.record.config) if warc else {"crawler": None, "contact": None, "behavior": []}),
        "first_fetch": count.first.date().isoformat() if count.first else None,
        "last_fetch": count.last.date().isoformat() if count.last else None,
        "documents": count.documents,
        "bytes": count.bytes,
        "domains": len(corpus.domains),
        "rule": "the largest 5 %, at most 1,000" if statement.small else "the largest 10 %",
        "largest_domains": [
            {"domain": name, "documents": one.documents, "bytes": one.bytes}
            for name, one in corpus.largest_domains(most)
        ],
    }


def _crawler(settings: Mapping[str, Any]) -> dict[str, Json]:
    """Returns name, contact and behavior of the crawler, by the settings of a crawl."""
    return {
        "crawler": settings["user_agent"],
        "contact": settings["contact"] or None,
        "behavior": [
            "obeys robots.txt (RFC 9309), noindex and the delays of sites",
            f"waits {settings['delay_s']:g} s between two requests to a host, or as the hosts file or the site says",
            f"honors opt-outs from training stated by: {', '.join(settings['ai_optouts']) or 'none'}",
            "solves no captchas, and fills in no login form",
        ],
    }


def _files(artifacts: Mapping[str, Artifact], corpus: Corpus) -> list[Json]:
    """Returns the sources other than the crawl: name, kind, where they were read from, stated license, and counts."""
    extracted = artifacts.get("extracted")
    stated = extracted.record.config if extracted else {}
    kinds = {one["name"]: one["kind"] for one in stated.get("files", ())}
    paths = {one["name"]: one["path"] for one in stated.get("files", ())}
    for one in stated.get("archives", ()):
        kinds[one["name"]] = "captures by Common Crawl"
        paths[one["name"]] = f"{', '.join(one['crawls'])}: {', '.join([*one['domains'], *one['prefixes']])}"
    refs = extracted.record.inputs if extracted else ()
    named = {ref.role: ref.address.removeprefix(EXTERNAL) for ref in refs}
    # That of a dataset of the hub has the commit that was read.
    paths |= {name: path for name in paths if is_hub(path := named.get(f"{FILES}{name}", ""))}
    return [
        {
            "name": name,
            "kind": kinds.get(name),
            "path": paths.get(name),
            "license": named.get(f"{LICENSE}{name}"),
            "documents": count.documents,
            "bytes": count.bytes,
        }
        for name, count in sorted(corpus.sources.items())
        if name != WEB
    ]


def _processing(artifacts: Mapping[str, Artifact]) -> Json:
    documents = artifacts["documents"].record
    refused: dict[str, Any] = disallowed_fetches(artifacts["warc"]) if "warc" in artifacts else {}
    contamination = artifacts.get("contamination")
    return {
        "reservations": {"fetches_that_ended_because_of_one": refused},
        "filters": list(documents.config.get("filters", ())),
        "rejected": documents.rejected,
        "personal_data": {
            "masked": bool(documents.config.get("mask_pii")),
            "places": int(documents.metrics.get("pii_masked", 0)),
        },
        "evaluation_sets": None
        if contamination is None
        else {
            "sets": [one["name"] for one in contamination.record.config.get("sets", ())],
            "documents_with_items": int(contamination.record.metrics["contaminated"]),
        },
    }
