"""Access to object stores: client settings, exclusive creation, and translation of client errors.

The client library of each protocol reads its own credentials from its environment (AWS_*, AZURE_STORAGE_*, GOOGLE_*),
configuration files, or workload identity; a variable of ours can have the key for GCS. Only file systems whose
exclusive creation is atomic on the server are allowed. With "check, then write", two writers could both succeed.
"""

import contextlib
import json
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import fsspec

from tasks.core.errors import SluiceError, StoreError, TransientError

S3 = frozenset({"s3", "s3a"})
GCS = frozenset({"gs", "gcs"})
AZURE = frozenset({"abfs", "abfss", "az"})
ATOMIC = S3 | GCS | AZURE | {"memory"}
"""Protocols whose library creates by one conditional request: If-None-Match, ifGenerationMatch=0, or a lock."""

RENAMING = frozenset({"hdfs", "webhdfs"})
"""Protocols without conditional creation, whose server refuses to rename onto an existing file."""

TRIES = 10
"""Attempts per S3 request. botocore's default of 5 failed on six 503 responses in a row; 10 attempts take about a
minute."""

_S3_CONFIG = {
    # "standard" retries throttling, 5xx, resets and time-outs with jittered, doubling pauses of at most 20 s.
    "retries": {"mode": "standard", "total_max_attempts": TRIES},
    "connect_timeout": 5,
    "read_timeout": 30,
    "tcp_keepalive": True,
    # With botocore's default of 10, requests of `ranges` would wait for a connection.
    "max_pool_connections": 64,
}
_BRIEF_S3_CONFIG = {
    **_S3_CONFIG,
    "retries": {"mode": "standard", "total_max_attempts": 2},
    "connect_timeout": 3,
    "read_timeout": 10,
}
_TRIES = 6
"""Attempts per request to ADLS and HDFS, as many as gcsfs makes; on ADLS with pauses of 1, 3, 5, 9 and 17 s, each up to
3 s longer or shorter. The client's own pauses begin at 15 s."""

GCS_KEY = "SLUICE_GCS_KEY"
"""Environment variable with the key of a service account as JSON. Google's clients read keys only from files."""

_WRITER = "sluice-writer"

READ_WHOLE: dict[str, dict[str, Any]] = {protocol: {"max_concurrency": 1} for protocol in S3}
"""Options of `cat_file` by protocol. Without this one, s3fs requests the size before each read."""

READ_RANGE: dict[str, dict[str, Any]] = {protocol: {"seekable": True} for protocol in RENAMING}
"""The same for ranges. Without this one, fsspec opens a stream for a range from byte 0, and fails to seek in it."""


DELETED_TOGETHER: dict[str, int] = dict.fromkeys(S3, 1000)
"""Most files that one request removes, by protocol; one for the others."""

_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses before objects are removed again that S3 did not remove in a request that it answered."""

IN_FLIGHT = 32
"""Concurrent requests of one call for many small files. A round trip takes 10 to 50 ms, the transfer far less."""

_VERSION = ("etag", "ETag", "generation", "fileId", "modificationTime", "LastModified", "mtime", "created", "size")
"""Fields of `info` of which one at least changes when a file is written again; none changes when it is read."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def protocol_of(root: str) -> str:
    """Returns the protocol of an fsspec URL; "file" for a plain path."""
    return root.partition("://")[0].lower() if "://" in root else "file"


def connect(root: str, *, brief: bool = False) -> tuple[Any, str]:
    """Opens the file system of an fsspec URL; returns it and the path of the root in it.

    Args:
        root: the URL.
        brief: two attempts per request instead of ten, so that a wrong address fails soon; for the startup probe.

    Raises:
        StoreError: the protocol is unknown, cannot create exclusively, or its library is not installed.
    """
    protocol = protocol_of(root)
    if protocol not in ATOMIC | RENAMING | {"file", "local"}:
        raise StoreError(
            f"{root}: a store cannot be on {protocol}://, which cannot create a file exclusively",
            "use a folder, s3://, gs://, abfs://, hdfs:// or webhdfs://",
        )
    try:
        # Credentials may be set in the environment after the first use in a process, so they are part of the cache key.
        server = _account(root) if protocol in AZURE else urlsplit(root).netloc if protocol == "webhdfs" else ""
        fs = _file_system(protocol, server, brief, os.getpid(), _identity())
        return fs, str(fs._strip_protocol(root)).rstrip("/")
    except ImportError as error:
        raise StoreError(f"{root}: {protocol}:// needs a library ({error})", "install it beside sluice") from None
    except ValueError as error:
        if protocol not in AZURE:
            raise
        remedy = "set [place] store_conn_id, AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_CONNECTION_STRING"
        raise StoreError(f"{root} cannot be used as it is configured ({error})", remedy) from None


def _account(root: str) -> str:
    """Returns the storage account of `abfss://container@account.dfs.core.windows.net/…`; "" if the URL has none."""
    options = fsspec.get_filesystem_class(protocol_of(root))._get_kwargs_from_urls(root)
    return str(options.get("account_name", "")).rpartition("@")[2]


@lru_cache(maxsize=8)
def _file_system(protocol: str, server: str, brief: bool, process: int, identity: int) -> Any:
    if protocol == "webhdfs":
        return _webhdfs(urlsplit(f"//{server}"), 2 if brief else _TRIES)
    if protocol not in S3 | GCS | AZURE:
        return fsspec.filesystem(protocol)
    # Files written by other processes must be visible immediately.
    fresh = {"use_listings_cache": False, "skip_instance_cache": True}
    if protocol in GCS:
        return fsspec.filesystem(protocol, token=_gcs_key(), **fresh)
    if protocol in AZURE:
        return _azure(fsspec.filesystem(protocol, account_name=server or None, **fresh), 2 if brief else _TRIES)
    fs = fsspec.filesystem("s3", config_kwargs=_BRIEF_S3_CONFIG if brief else _S3_CONFIG, **fresh)
    # In addition to botocore's retries, for response bodies that are cut off.
    fs.retries = 2 if brief else TRIES
    return fs


def _webhdfs(server: SplitResult, tries: int) -> Any:
    from tasks.core.clients.webhdfs import WebHdfs

    if not server.hostname:
        raise StoreError("the store's URL names no server", "write webhdfs://user@host:9870/folder")
    return WebHdfs(server.hostname, server.port or 9870, server.username or "", tries, skip_instance_cache=True)


def _gcs_key() -> dict[str, Any] | None:
    if not (text := os.environ.get(GCS_KEY)):
        return None
    with contextlib.suppress(ValueError, TypeError):
        key = json.loads(text)
        if key["type"] == "service_account" and key["private_key"]:
            return dict(key)
    # gcsfs would go on with an error that has the key.
    raise StoreError(f"{GCS_KEY} is not the key of a service account", "set it to the JSON of one")


def _azure(fs: Any, tries: int) -> Any:
    # adlfs has no setting for it; all clients of one account share the policies of this one.
    for policy in fs.service_client._pipeline._impl_policies:
        if hasattr(policy, "initial_backoff"):
            policy.initial_backoff, policy.increment_base, policy.total_retries = 1, 2, tries - 1
    return fs


def _identity() -> int:
    prefixes = ("AWS_", "AZURE_", "GOOGLE_", GCS_KEY, "STORAGE_EMULATOR_HOST", "HADOOP_USER_NAME")
    return hash(tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(prefixes))))


def create(fs: Any, path: str, data: bytes) -> bool:
    """Creates the object `path`; returns False if it already exists. Raises StoreError if GCS has no such bucket."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols & RENAMING:
        return _create_by_rename(fs, path, data)
    writer = f"{_WRITER}={secrets.token_hex(16)}"
    try:
        fs.pipe_file(path, data, mode="create", **_mark(protocols, writer))
    except OSError as error:
        if protocols & GCS and isinstance(error, FileNotFoundError):
            raise StoreError(f"there is no bucket for gs://{path}", "create it, or correct [place] store") from error
        if not _exists_error(error):
            raise
        # If the response to a successful attempt is lost, the client's retry is rejected: check whose object it is.
        return _writer_of(fs, protocols, path) == writer
    return True


def _mark(protocols: set[str], writer: str) -> dict[str, Any]:
    """Returns the options of `pipe_file` that store the name of the writer with the object."""
    name, _, value = writer.partition("=")
    if protocols & S3:
        return {"Metadata": {name: value}}
    if protocols & GCS:
        return {"metadata": {name: value}}
    if protocols & AZURE:
        # adlfs sets the metadata itself. A parameter of this header is free text.
        return {"content_settings": {"content_disposition": f"inline; {writer}"}}
    return {}


def _writer_of(fs: Any, protocols: set[str], path: str) -> str:
    if protocols & S3:
        return f"{_WRITER}={fs.metadata(path).get(_WRITER)}"
    if protocols & GCS:
        return f"{_WRITER}={(fs.info(path).get('metadata') or {}).get(_WRITER)}"
    if protocols & AZURE:
        return str(fs.info(path)["content_settings"]["content_disposition"]).removeprefix("inline; ")
    return ""


def _create_by_rename(fs: Any, path: str, data: bytes) -> bool:
    aside = f"{path}.{secrets.token_hex(6)}.tmp"
    fs.makedirs(fs._parent(path), exist_ok=True)
    fs.pipe_file(aside, data)
    try:
        fs.mv(aside, path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):  # the writer that won has already cleared the folder
            fs.rm_file(aside)
        if not fs.exists(path):
            raise
        return False
    return True


def _exists_error(error: OSError) -> bool:
    # Not every server names the failed condition in its response; then s3fs does not raise FileExistsError.
    return isinstance(error, FileExistsError) or _code(error) in {"PreconditionFailed", "412"}


def find(fs: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yields path and size of all files below a folder; raises the errors of each of its requests.

    A folder that does not exist, or no longer, has no files.
    """
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols & S3:
        yield from _find_on_s3(fs, path)
    elif protocols & (GCS | AZURE):
        yield from ((name, int(entry["size"])) for name, entry in fs.find(path, detail=True).items())
    else:
        yield from _walk(fs, path)


def _walk(fs: Any, path: str) -> Iterator[tuple[str, int]]:
    # `fs.find` would leave out folders that cannot be listed: their files would seem to be gone.
    entries: Sequence[dict[str, Any]] = ()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        entries = fs.ls(path, detail=True)
    for entry in entries:
        if entry["type"] == "directory":
            yield from _walk(fs, entry["name"])
        else:
            yield entry["name"], int(entry["size"])


def _find_on_s3(fs: Any, path: str) -> Iterator[tuple[str, int]]:
    # Page by page: s3fs would keep 1.4 KB an object until the last page has arrived.
    bucket, key, _ = fs.split_path(path)
    page: dict[str, Any] = {"Bucket": bucket, "Prefix": f"{key}/" if key else ""}
    while True:
        reply = fs.call_s3("list_objects_v2", **page)
        for entry in reply.get("Contents", ()):
            if not entry["Key"].endswith("/"):  # what some clients make for a folder
                yield f"{path}/{entry['Key'].removeprefix(page['Prefix'])}", int(entry["Size"])
        if not reply.get("IsTruncated"):
            return
        page["ContinuationToken"] = reply["NextContinuationToken"]


def delete_objects(fs: Any, paths: Sequence[str]) -> None:
    """Removes up to 1,000 objects of one bucket on S3 in one request; a missing one is not an error.

    `fs.rm` would ignore that the server refused to remove some of them. These are tried again unless a right is
    missing.

    Raises:
        StoreError: no permission to remove an object.
        TransientError: the server refused to remove an object each time.
    """
    bucket = fs.split_path(paths[0])[0]
    keys = [fs.split_path(path)[1] for path in paths]
    for pause in (*_PAUSES_S, None):
        delete = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        reply = fs.call_s3("delete_objects", Bucket=bucket, Delete=delete)
        refused = [entry for entry in reply.get("Errors", ()) if entry.get("Code") != "NoSuchKey"]
        if not refused:
            return
        final = next((entry for entry in refused if entry.get("Code") in _RIGHTS), None)
        if final:
            raise StoreError(
                f"no permission to remove s3://{bucket}/{final['Key']} ({_detail(final)})",
                "grant it to these credentials, or use others",
            )
        if pause is None:
            raise TransientError(f"the store did not remove s3://{bucket}/{refused[0]['Key']} ({_detail(refused[0])})")
        keys = [entry["Key"] for entry in refused]
        time.sleep(pause)


def version_of(info: dict[str, Any]) -> str:
    """Returns what differs between two versions of a file, from what `fs.info` returns of it."""
    return str([info.get(name) for name in _VERSION])


def concurrently(call: Callable[[Item], Result], items: Iterable[Item], in_flight: int = IN_FLIGHT) -> Iterator[Result]:
    """Yields `call(item)` in the order of the items; calls in threads, and at most twice `in_flight` calls ahead."""
    pool = ThreadPoolExecutor(in_flight, thread_name_prefix="requests")
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(call, item))
            if len(pending) == 2 * in_flight:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def is_range_past_end(error: Exception) -> bool:
    """Returns whether the server rejected a range because it begins past the end of the object (HTTP 416)."""
    return _code(error) in {"InvalidRange", "416"}


_RIGHTS = {
    *("AccessDenied", "AllAccessDisabled", "403", "AccountProblem", "InvalidObjectState"),
    *("AuthorizationFailure", "AuthorizationPermissionMismatch", "InsufficientAccountPermissions", "AccountIsDisabled"),
}
_KEYS = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "NotSignedUp", "InvalidSecurity"),
    "AuthenticationFailed",
}
_EXPIRED = {
    *("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestTimeTooSkewed"),
    *("InvalidAuthenticationInfo", "401"),
}
_REGION = {"PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_QUOTA = {"QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity", "507"}


def translate(error: BaseException, url: str) -> SluiceError | None:
    """Returns the SluiceError to raise for an error of an object store's client; None if the original is clear."""
    code, detail = _code(error), _message(error)
    if isinstance(error, FileNotFoundError) and code not in _NO_BUCKET:
        return None
    if code in _RIGHTS or (not code and isinstance(error, PermissionError)):
        return StoreError(f"no permission to use {url} ({detail})", "grant it to these credentials, or use others")
    if code == "AuthenticationFailed" and re.search("expired|time frame", detail):
        code = "ExpiredToken"  # Azure has one code for both
    if code in _KEYS:
        return StoreError(f"the store of {url} does not accept the credentials ({detail})", "set others")
    if code == "401" and detail.startswith("Anonymous caller"):  # gcsfs goes on without credentials if it finds none
        return StoreError(
            f"no credentials for {url} ({detail})", "set GOOGLE_APPLICATION_CREDENTIALS or [place] store_conn_id"
        )
    if code in _EXPIRED:
        return TransientError(f"the credentials for {url} have expired ({detail})", "a retry reads new ones")
    if code in _NO_BUCKET:
        return StoreError(f"there is no bucket for {url}", "create it, or correct [place] store")
    if code in _REGION:
        return StoreError(
            f"the bucket of {url} is in another region{_region(error)} ({detail})",
            "set AWS_DEFAULT_REGION, or region_name of the connection",
        )
    if code in _QUOTA:
        return StoreError(f"the store is full while writing {url} ({detail})", "free space and run again")
    return _unreachable(error, url)


def _unreachable(error: BaseException, url: str) -> SluiceError | None:
    names = {type(cause).__name__ for cause in _causes(error)}
    detail = " ".join(str(error).split())
    if names & {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}:
        return StoreError(f"no credentials for {url} ({detail})", "set the AWS environment or [place] store_conn_id")
    if names & {"ClientAuthenticationError", "CredentialUnavailableError", "DefaultCredentialsError"}:
        return StoreError(
            f"no credentials for {url} ({detail})", "set the environment of the store's client or [place] store_conn_id"
        )
    if names & {"InvalidRegionError", "NoRegionError", "ParamValidationError", "ProfileNotFound"}:
        return StoreError(f"{url} cannot be used as it is configured ({detail})", "correct the AWS settings")
    if names & {"BotoCoreError", "ClientError", "ClientPayloadError", "TimeoutError", "FSTimeoutError"} or _of_client(
        error
    ):
        return TransientError(f"the store did not answer for {url} ({type(error).__name__}: {detail})")
    return None


_CLIENTS = frozenset({"botocore", "aiobotocore", "azure", "gcsfs", "google", "aiohttp", "requests"})


def _of_client(error: BaseException) -> bool:
    return any(type(cause).__module__.partition(".")[0] in _CLIENTS for cause in _causes(error))


def _causes(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__
    return chain


def _response(error: BaseException) -> dict[str, Any]:
    responses = (getattr(cause, "response", None) for cause in _causes(error))
    return next((response for response in responses if isinstance(response, dict)), {})


def _code(error: BaseException) -> str:
    """Returns the name of an error in the server's response, or its HTTP status; "" if there is none."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):  # botocore
            return str(response.get("Error", {}).get("Code", ""))
        module = type(cause).__module__
        status = getattr(cause, "status_code", None)
        if module.startswith("azure.") and status:
            code = getattr(cause, "error_code", None) or status
            return str(getattr(code, "value", code))
        if module.startswith("requests.") and response is not None:
            return str(response.status_code)
        if module.startswith("gcsfs."):
            return str(getattr(cause, "code", None) or "")
        if type(cause) is OSError and str(cause).startswith("Forbidden: "):  # what gcsfs makes of 403
            return "403"
    return ""


def _message(error: BaseException) -> str:
    details = _response(error).get("Error", {})
    return _detail(details) if details else str(error).partition("\n")[0]


def _detail(answer: Mapping[str, Any]) -> str:
    """Returns code and message of an error in a response of S3."""
    return f"{answer.get('Code')}: {answer.get('Message', '')}".rstrip(": ")


def _region(error: BaseException) -> str:
    headers = _response(error).get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = headers.get("x-amz-bucket-region") or _response(error).get("Error", {}).get("Region")
    return f", {region}," if region else ""
