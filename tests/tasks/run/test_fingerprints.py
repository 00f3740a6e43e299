"""Fingerprints of equal settings and inputs do not change, so that existing stores stay valid.

If a stage's output changes on purpose, raise its VERSION and update its line here.
"""

import importlib

import pytest

from tasks.core.artifact import InputRef, fingerprint
from tasks.run.catalogue import STAGES
from tasks.run.recipe import find_recipe

BEFORE = {
    "inject": "d184321d4c9d3781",
    "rank": "02f655049a3b5757",
    "generate": "56c69ab0fdf670a7",
    "fetch": "a826527513f1062c",
    "render": "07df1436832cedd2",
    "update": "b2bdb0286f26b175",
    "publish": "841236ed4af18472",
    "stream": "634d56dacc9e3bbb",
    "archive": "36c8c802dacb8d0b",
    "extract": "7232c28220f41510",
    "train_classifiers": "0f30cc7fcc5fb12e",
    "train_perplexity": "54cbdf6ca12a813e",
    "annotate": "87c1a6b232a4fdf5",
    "dedup": "d098335474d5fadc",
    "decontaminate": "1b3e4081ff6c2213",
    "paragraphs": "6f3b5c36b7079de0",
    "consolidate": "3bf69a79c63459ac",
    "dedup_index": "2dfb21ff84301c1e",
    "text_index": "2db13f9b06677160",
    "tokenizer": "299f0c0b1d98e155",
    "encode": "0744d62723497dd2",
    "chunks": "20123556739595de",
    "spans": "4c47e4224b6fe8d6",
    "repeats": "4b5ad7c84d40c717",
    "pack": "398a0ec9af0c0735",
    "variants": "520136fec7707dda",
    "arms": "794a0bd017ed61e1",
    "canary": "b9bc5e0bac7c60ab",
    "finalist": "1536e8ba192bf0cf",
    "confirm": "0e649cb4cf7097a1",
    "prioritize": "ce852256a53fe5a4",
    "decide": "f0b8ea26e863e61a",
    "estimate": "5275d906da638a0d",
    "train": "fd03dca9e58f7f88",
    "reconcile": "7b85558263198f7d",
    "evaluate": "3b0a939b159549c9",
    "register": "bfb522fe97076ad8",
    "merge": "ebddc78cf9cb7d43",
    "compare": "582a72cfa44ae6c4",
    "promote": "6f66aa2d939b9b2b",
    "examples": "073140f50ca08634",
    "finetune": "be4668542649a4df",
    "evaluate_tuned": "b8da18aee18bc08b",
    "register_tuned": "3fa0dbf973709e97",
    "compare_tuned": "26cfad2910062fa4",
    "promote_tuned": "9342c91317a74169",
    "takedown": "1e5db2b3cf86fcd8",
}
"""The first 16 digits for the recipe `demo`, with two inputs."""


def test_every_stage_has_a_recorded_fingerprint() -> None:
    assert BEFORE.keys() == STAGES.keys()


@pytest.mark.parametrize("name", BEFORE)
def test_the_fingerprint_of_a_stage_is_unchanged(name: str) -> None:
    spec = STAGES[name]
    version = importlib.import_module(spec.module).VERSION
    config = getattr(find_recipe("demo"), spec.section)
    refs = [
        InputRef(role=role, address=f"demo/{role}@1", fingerprint=role, content=role) for role in ("first", "second")
    ]
    assert fingerprint(name, version, "p0" if spec.mapped else "", config, refs)[:16] == BEFORE[name]


def test_a_partly_read_input_enters_the_fingerprint_with_those_files_only() -> None:
    config = find_recipe("demo").tokenizer

    def of(**fields: str) -> str:
        ref = InputRef(role="documents", address="demo/documents@1", **{"fingerprint": "a", "content": "b"} | fields)
        return fingerprint("tokenizer", 1, "", config, [ref])

    assert of(files="c") == of(files="c", fingerprint="x", content="y")
    assert len({of(), of(fingerprint="x"), of(content="y"), of(files="c"), of(files="d")}) == 5
