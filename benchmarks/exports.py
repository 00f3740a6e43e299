"""Do the readers of other trainers find the same tokens in an export?

    python -m benchmarks.exports

Makes token shards of random documents, exports them, and reads the folder back with `webdataset` and `datasets` in a
virtual environment of their own, and with Megatron-LM's documented layout in 15 lines that share no code with the
writer. Prints and keeps per format: documents, tokens, whether all are equal, and the seconds of the export.
"""

import hashlib
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.harness import keep, peer_python
from tasks.core import ranges
from tasks.core.artifact import ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import open_engine
from tasks.core.stage import Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.documents.document import document_id
from tasks.formats.documents.key_index import merge
from tasks.formats.tokens.index import Indexed, write_index
from tasks.formats.tokens.shard import ShardBuffer, ShardSet, TokenFormat, shard_name, write_shard
from tasks.run.export import FORMATS, export

FMT = TokenFormat(50_000, 0, "none")
PARTS, DOCUMENTS = 4, 5_000
READERS = ("webdataset==1.0.2", "datasets==5.2.0", "numpy", "pyarrow")
_HEAD = "import glob, hashlib, json, sys\nfound = {}\n"
_TAIL = """
digest = hashlib.sha256()
for key in sorted(found):
    digest.update(key.encode() + b" " + ",".join(map(str, found[key])).encode() + b"\\n")
print(json.dumps([len(found), sum(map(len, found.values())), digest.hexdigest()]))
"""
READ = {
    "webdataset": """
import webdataset as wds
for sample in wds.WebDataset(sorted(glob.glob(sys.argv[1] + "/*.tar")), shardshuffle=False).decode():
    found[sample["__key__"]] = sample["npy"].tolist()
""",
    "huggingface": """
import datasets
for split in datasets.load_dataset(sys.argv[1], cache_dir=sys.argv[1] + "-cache").values():
    for row in split:
        found[row["id"]] = row["input_ids"]
""",
    "megatron": """
import struct, numpy as np, pyarrow.parquet as pq
for path in glob.glob(sys.argv[1] + "/*.idx"):
    index, tokens = open(path, "rb").read(), open(path[:-3] + "bin", "rb").read()
    magic, version, code, count, bounds = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version) == (b"MMIDIDX\\0\\0", 1)
    kind = {4: "<i4", 8: "<u2"}[code]
    lengths = np.frombuffer(index, "<i4", count, 34)
    offsets = np.frombuffer(index, "<i8", count, 34 + 4 * count)
    ids = pq.read_table(path[:-3] + "documents.parquet").column("id").to_pylist()
    for doc_id, n, at in zip(ids, lengths.tolist(), offsets.tolist()):
        found[doc_id] = np.frombuffer(tokens, kind, n, at).tolist()
""",
}


def main() -> None:
    """Exports in every format, reads each back, writes results/exports.json and prints it."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"{folder}/store")
        expected = make(store)
        python = peer_python(Path(folder) / "readers", READERS)
        result = {}
        for kind in FORMATS:
            began = time.perf_counter()
            out = export(store, "made", "dev", kind, f"{folder}/{kind}")
            seconds = time.perf_counter() - began
            code = _HEAD + READ[kind] + _TAIL
            read = subprocess.run([python, "-c", code, str(out)], capture_output=True, text=True, check=True)
            documents, tokens, digest = json.loads(read.stdout.splitlines()[-1])
            result[kind] = {
                "documents": documents,
                "tokens": tokens,
                "equal": digest == expected,
                "export_seconds": round(seconds, 2),
            }
            print(kind, result[kind], flush=True)
        keep("exports", {"readers": READERS, "formats": result})


def make(store: Store) -> str:
    """Writes shards and tokenizer of random documents; returns the sha256 of all (id, tokens), sorted by id."""
    draw, expected = np.random.default_rng(7), {}
    shards = Output(store, ArtifactId("made/shards", "dev"), "made")
    for number, part_name in enumerate(part_names(PARTS)):
        urls = [f"https://example.org/{number}/{index}" for index in range(DOCUMENTS)]
        ids = [document_id(url, "sha1:A") for url in urls]
        tokens = [draw.integers(1, FMT.vocab_size, size).astype(FMT.dtype) for size in draw.integers(1, 900, DOCUMENTS)]
        expected.update(zip(ids, (row.tolist() for row in tokens), strict=True))
        name = shard_name("web", "heldout" if number == 0 else "train", number, 0)
        buffer = ShardBuffer(
            name.split("-")[0], name.split("-")[1], [bytes.fromhex(i) for i in ids], tokens, [1] * DOCUMENTS
        )
        with shards.part(part_name, conserved=False) as part:
            with ranges.checksummed_file(part, f"shards/{name}.arrow", rows=DOCUMENTS) as file:
                offsets = write_shard(file, buffer, FMT).tolist()
            rows = enumerate(zip(buffer.uids, urls, offsets, map(len, tokens), strict=True))
            write_index(part, [Indexed(name, row, *rest) for row, rest in rows])
    with open_engine(workers=0) as engine:
        merge(shards, engine, [shards.committed[name] for name in part_names(PARTS)])
    tokenizer = Output(store, ArtifactId("made/tokenizer", "dev"), "made")
    with tokenizer.part("tokenizer.json", conserved=False) as part, part.file("tokenizer.json") as file:
        file.write(b"{}")
    made = {kind: commit(output, "made", 1, Config(), [], Report()) for kind, output in
            (("tokenizer", tokenizer), ("shards", shards))}  # fmt: skip
    assert ShardSet.open(made["shards"]).n_documents("web") == (PARTS - 1) * DOCUMENTS
    digest = hashlib.sha256()
    for key in sorted(expected):
        digest.update(f"{key} {','.join(map(str, expected[key]))}\n".encode())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
