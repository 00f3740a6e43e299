"""Writing WARC 1.1: one gzip member or zstd frame per record, digests, and an index line per capture.

Used by fetch and render. FastWARC makes one member of the whole file unless `finish()` follows every record, and random
access and warcio need one member each.
"""

import hashlib
import io
import json
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import BinaryIO, Literal

from fastwarc import GzipWriter, WarcRecord, WarcRecordType, ZstdWriter

from tasks.crawl.client import Answer
from tasks.crawl.gzip_member import member
from tasks.crawl.url import host_and_port
from tasks.warc_reader import sha1_label

Compression = Literal["gzip", "zstd"]
_SUFFIX = {"gzip": ".warc.gz", "zstd": ".warc.zst"}
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_END = b"\r\n\r\n"
_COMPRESSED = frozenset(("gzip", "x-gzip", "deflate", "br", "zstd"))
_FORBIDDEN = re.compile(r"[\r\n\0]+")
_NO_TOKEN = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
# The body is stored without transfer coding and perhaps cut off: these headers no longer describe it.
_STALE = {"transfer-encoding": "X-Crawler-Transfer-Encoding", "content-length": "X-Crawler-Content-Length"}
_SAME_PAYLOAD = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
_NOT_MODIFIED = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"


@dataclass(frozen=True)
class Earlier:
    """The capture that a revisit record refers to."""

    url: str
    fetched_at: datetime
    record_id: str
    payload_digest: str


@dataclass(frozen=True)
class Written:
    """Where a capture was written, and under which identity."""

    record_id: str
    payload_digest: str
    offset: int
    length: int


def payload_digest(body: bytes) -> str:
    """Returns the digest of a payload as WARC and CDX write it: "sha1:" and base32."""
    return sha1_label(hashlib.sha1(body, usedforsecurity=False).digest())


def suffix(compression: Compression) -> str:
    """Returns how the names of WARC files of that compression end: ".warc.gz" or ".warc.zst"."""
    return _SUFFIX[compression]


class WarcWriter:
    """Writes one WARC file and its CDXJ index.

    Args:
        file: where the bytes go; only written forward.
        path: the file's path, for warcinfo and the index.
        software: who writes, for warcinfo.
        agent: the User-Agent, for warcinfo.
        compression: of each record by itself; the name in `path` should end in `suffix(compression)`.
    """

    def __init__(self, file: BinaryIO, path: str, software: str, agent: str, compression: Compression = "gzip") -> None:
        self._file = file
        self._path = path
        self._packer = (
            GzipWriter(file, compression_level=_GZIP_LEVEL)
            if compression == "gzip"
            else ZstdWriter(file, compression_level=_ZSTD_LEVEL)
        )
        self._stores = compression == "gzip"
        self._index: list[str] = []
        self.bytes = 0
        fields = {
            "software": software,
            "format": "WARC File Format 1.1",
            "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
            "robots": "obey",
            "http-header-user-agent": agent,
        }
        info = {"Content-Type": "application/warc-fields", "WARC-Filename": path.rpartition("/")[2]}
        self._info = self._write(WarcRecordType.warcinfo, _fields(fields), info, datetime.now(UTC))[0]

    def capture(self, url: str, fetched_at: datetime, answer: Answer, notes: dict[str, str]) -> Written:
        """Writes response, request and metadata records of one answer.

        Args:
            url: canonical URL.
            fetched_at: when the request was sent.
            answer: what came back.
            notes: fields of the metadata record.
        """
        digest = payload_digest(answer.body)
        headers = {"WARC-Payload-Digest": digest}
        if answer.truncated:
            headers["WARC-Truncated"] = "length"
        return self._exchange(WarcRecordType.response, url, fetched_at, answer, headers, notes)

    def revisit(
        self, url: str, fetched_at: datetime, answer: Answer, earlier: Earlier, notes: dict[str, str]
    ) -> Written:
        """Writes a revisit record for an answer that brought nothing new (WARC 1.1, 6.7), with its request.

        The profile is "server not modified" for a 304 and "identical payload digest" otherwise.
        """
        headers = {
            "WARC-Profile": _NOT_MODIFIED if answer.status == 304 else _SAME_PAYLOAD,
            "WARC-Refers-To": f"<{earlier.record_id}>",
            "WARC-Refers-To-Target-URI": earlier.url,
            "WARC-Refers-To-Date": _date(earlier.fetched_at),
            "WARC-Payload-Digest": earlier.payload_digest,
        }
        return self._exchange(WarcRecordType.revisit, url, fetched_at, answer, headers, notes)

    def conversion(
        self, url: str, when: datetime, body: bytes, mime: str, refers_to: str, notes: dict[str, str]
    ) -> Written:
        """Writes what a capture was turned into (a rendered page), and a metadata record about it.

        Args:
            url: canonical URL of the page, as in the capture.
            when: the conversion was made.
            body: the result, whole and without any coding.
            mime: media type of `body`, perhaps with its charset.
            refers_to: record id of the capture it was made from ("urn:uuid:...").
            notes: fields of the metadata record.
        """
        about = {"WARC-Target-URI": url, "WARC-Warcinfo-ID": self._info}
        digest = payload_digest(body)
        offset = self.bytes
        headers = {"Content-Type": mime, **about, "WARC-Refers-To": f"<{refers_to}>", "WARC-Payload-Digest": digest}
        record_id, length = self._write(WarcRecordType.conversion, body, headers, when)
        self._write_notes(notes, {**about, "WARC-Refers-To": record_id}, when)
        return self._indexed(url, when, mime, "-", Written(record_id.strip("<>"), digest, offset, length))

    def finish(self) -> list[str]:
        """Ends the file (left open for the caller to close) and returns its CDXJ lines, sorted."""
        self._file.flush()
        return sorted(self._index)

    def _exchange(
        self,
        kind: WarcRecordType,
        url: str,
        fetched_at: datetime,
        answer: Answer,
        headers: dict[str, str],
        notes: dict[str, str],
    ) -> Written:
        about = {"WARC-Target-URI": url, "WARC-Warcinfo-ID": self._info}
        with_ip = {"WARC-IP-Address": answer.address} if answer.address else {}
        revisited = kind == WarcRecordType.revisit
        body = b"" if revisited else answer.body
        offset = self.bytes
        record_id, length = self._write(
            kind,
            _head(answer) + body,
            {"Content-Type": "application/http; msgtype=response", **about, **with_ip, **headers},
            fetched_at,
            stored=len(body) if self._stores and _is_compressed(answer) else 0,
        )
        beside = {**about, "WARC-Concurrent-To": record_id}
        request_type = "application/http; msgtype=request"
        self._write(
            WarcRecordType.request, answer.request, {"Content-Type": request_type, **beside, **with_ip}, fetched_at
        )
        self._write_notes(notes, beside, fetched_at)
        written = Written(record_id.strip("<>"), headers["WARC-Payload-Digest"], offset, length)
        mime = "warc/revisit" if revisited else answer.header("content-type") or "unk"
        return self._indexed(url, fetched_at, mime, "-" if revisited else str(answer.status), written)

    def _write_notes(self, notes: dict[str, str], headers: dict[str, str], date: datetime) -> None:
        fields_type = "application/warc-fields"
        self._write(WarcRecordType.metadata, _fields(notes), {"Content-Type": fields_type, **headers}, date)

    def _indexed(self, url: str, when: datetime, mime: str, status: str, written: Written) -> Written:
        """Notes the index line of a record, with the fields and values that pywb writes."""
        fields = {
            "url": url,
            "mime": mime.partition(";")[0].strip().lower(),
            "status": status,
            "digest": written.payload_digest.removeprefix("sha1:"),
            "length": str(written.length),
            "offset": str(written.offset),
            "filename": self._path,
        }
        stamp = when.astimezone(UTC).strftime("%Y%m%d%H%M%S")
        self._index.append(f"{surt(url)} {stamp} {json.dumps(fields, ensure_ascii=True)}")
        return written

    def _write(
        self, kind: WarcRecordType, block: bytes, headers: dict[str, str], date: datetime, *, stored: int = 0
    ) -> tuple[str, int]:
        """Writes one record; its last `stored` bytes are not worth compressing."""
        record = WarcRecord()
        record_id = uuid.uuid4()
        record.init_headers(kind, str(record_id).encode())
        record.headers.set("WARC-Date", _date(date))
        record.headers.set("WARC-Record-ID", f"<urn:uuid:{record_id}>")
        for name, value in headers.items():
            record.headers.set(name, _FORBIDDEN.sub(" ", value))
        record.set_bytes_content(block)
        if stored:
            plain = io.BytesIO()
            record.write(plain, checksum_data=True)
            self._file.write(member(plain.getvalue(), stored + len(_END)))
        else:
            record.write(self._packer, checksum_data=True)
            self._packer.finish()
            self._packer.flush()  # the zstd writer keeps a finished frame to itself until then
        begin, self.bytes = self.bytes, self._file.tell()
        return f"<urn:uuid:{record_id}>", self.bytes - begin


def surt(url: str) -> str:
    """Returns the sort-friendly form of a canonical URL that CDX files are keyed by.

    Exact: one key, one URL. (pywb's own keys fold letter case, "www." and the order of the query; it indexes anew.)

    >>> surt("https://www.example.com:8080/a?b=1")
    'com,example,www:8080)/a?b=1'
    """
    host, port = host_and_port(url)
    path = "/" + url.split("/", 3)[3]
    name = host if host.startswith("[") or host.replace(".", "").isdigit() else ",".join(reversed(host.split(".")))
    return f"{name}{f':{port}' if port else ''}){path}"


def _is_compressed(answer: Answer) -> bool:
    codings = ",".join(answer.all("content-encoding")).lower().split(",")
    return any(coding.strip() in _COMPRESSED for coding in codings)


def _head(answer: Answer) -> bytes:
    reason = _FORBIDDEN.sub(" ", answer.reason)
    lines = [f"HTTP/1.1 {answer.status} {reason}".rstrip()]
    for name, value in answer.headers:
        name = _STALE.get(name.lower(), name)
        lines.append(f"{_NO_TOKEN.sub('_', name) or '_'}: {_FORBIDDEN.sub(' ', value)}")
    if answer.status != 304:
        lines.append(f"Content-Length: {len(answer.body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def _fields(fields: dict[str, str]) -> bytes:
    lines = (f"{_NO_TOKEN.sub('_', name)}: {_FORBIDDEN.sub(' ', value)}\r\n" for name, value in fields.items())
    return "".join(lines).encode("utf-8", "replace")


def _date(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
