"""Croissant metadata of the corpus, with the vocabulary for responsible AI.

Source: Croissant 1.0 (docs.mlcommons.org/croissant) and its RAI extension 1.0. `python -m mlcroissant validate` accepts
the result. Reads the record of `documents` and counts (`corpus`).
"""

from collections.abc import Mapping
from typing import Any

from tasks.core.artifact import Artifact
from tasks.run.dossier.corpus import Corpus
from tasks.run.dossier.summary import Statement
from tasks.run.trace.cards import filters_of

CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""The context that the specification prescribes."""

FIELDS = {
    "id": "Id of the document: a hash of its URL and bytes.",
    "url": "Address of the page or the file.",
    "source": 'Source of the document: "web", or the name of a file source.',
    "language": "Language of the text.",
    "text": "The text, after extraction and filters.",
}
"""Columns of the kept documents that are described."""


def croissant(artifacts: Mapping[str, Artifact], corpus: Corpus, statement: Statement) -> dict[str, Any]:
    """Returns the JSON-LD of the kept documents of a lineage (`lineage.chain`)."""
    documents = artifacts["documents"]
    record, total = documents.record, corpus.total
    files = list(documents.entries("kept/"))
    about = f"{total.documents:,} documents with {total.bytes:,} bytes of text, kept of {record.rows_in:,}."
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": ["http://mlcommons.org/croissant/1.0", "http://mlcommons.org/croissant/RAI/1.0"],
        "name": f"{documents.address.name.replace('/', '-')}",
        "version": f"{record.stage_version}.0.0+{record.fingerprint[:16]}",
        "description": f"The corpus {documents.address}: {about}",
        "url": documents.store.url(documents.path),
        "license": _licences(corpus) or ["none stated"],
        "creator": {"@type": "sc:Organization", "name": statement.provider or "not stated"},
        "datePublished": record.finished.date().isoformat(),
        "citeAs": f"{documents.address}, fingerprint {record.fingerprint}",
        "rai:dataCollection": "Pages crawled from the web and files, each recorded with address, time and hash.",
        "rai:dataCollectionType": _kinds(corpus),
        "rai:dataCollectionTimeframe": _times(corpus),
        "rai:dataPreprocessingProtocol": filters_of(artifacts),
        "rai:dataReleaseMaintenancePlan": "Takedowns apply to every later version; takedowns.json lists them.",
        "rai:personalSensitiveInformation": _personal(documents),
        "rai:dataLimitations": "Languages and domains are not balanced; summary.json has their counts.",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": entry.path,
                "name": entry.path,
                "contentUrl": documents.store.url(documents.place(entry)),
                "contentSize": f"{entry.bytes} B",
                "encodingFormat": "application/x-parquet",
                "sha256": entry.sha256,
            }
            for entry in files
        ],
        "recordSet": [_record_set(entry.path) for entry in files],
    }


def _record_set(path: str) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": f"documents/{path}",
        "name": f"documents/{path}",
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{path}/{name}",
                "name": f"{path}/{name}",
                "description": meaning,
                "dataType": "sc:Text",
                "source": {"fileObject": {"@id": path}, "extract": {"column": name}},
            }
            for name, meaning in FIELDS.items()
        ],
    }


def _licences(corpus: Corpus) -> list[str]:
    """Returns the licences that pages state, or that they state none, the most frequent first."""
    counts: dict[str, int] = {}
    for of_domain in corpus.licences.values():
        for licence, count in of_domain.items():
            counts[licence] = counts.get(licence, 0) + count
    return [licence or "none stated" for licence, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def _kinds(corpus: Corpus) -> list[str]:
    kinds = ["Web Scraping"] if corpus.domains else []
    return [*kinds, "Others: files"] if set(corpus.sources) - {"web"} else kinds


def _times(corpus: Corpus) -> list[str]:
    total = corpus.total
    return [time.isoformat() for time in (total.first, total.last) if time]


def _personal(documents: Artifact) -> list[str]:
    masked = int(documents.record.metrics.get("pii_masked", 0))
    if documents.record.config.get("mask_pii"):
        return [f"Personal data was searched and replaced by its kind at {masked:,} places; texts may contain more."]
    return ["Personal data was not masked."]
