"""Access to object stores: client settings, exclusive creation, and the meaning of their errors.

The client library of each protocol reads its own credentials: for S3 the AWS environment, its configuration files, or
workload identity. Only file systems whose exclusive creation is atomic on the server are allowed; elsewhere it would be
"check, then write", and two writers could both succeed.
"""

import contextlib
import os
import secrets
from functools import lru_cache
from typing import Any

import fsspec

from tasks.core.errors import SluiceError, StoreError, TransientError

S3 = frozenset({"s3", "s3a"})
ATOMIC = S3 | {"gs", "gcs", "abfs", "abfss", "az", "memory"}
"""Protocols whose library creates by one conditional request: If-None-Match, ifGenerationMatch=0, or a lock."""

RENAMING = frozenset({"hdfs"})
"""Protocols without conditional creation, whose server refuses to rename onto a file."""

TRIES = 10
"""Attempts per S3 request. botocore's default of 5 failed after six responses of 503; 10 last about a minute."""

_S3_CONFIG = {
    # "standard" retries throttling, 5xx, resets and time-outs with jittered, doubling pauses of at most 20 s.
    "retries": {"mode": "standard", "total_max_attempts": TRIES},
    "connect_timeout": 5,
    "read_timeout": 30,
    "tcp_keepalive": True,
    # botocore's 10 would let other requests of `ranges` wait for a connection.
    "max_pool_connections": 64,
}
_BRIEF_S3_CONFIG = {
    **_S3_CONFIG,
    "retries": {"mode": "standard", "total_max_attempts": 2},
    "connect_timeout": 3,
    "read_timeout": 10,
}
_WRITER = "sluice-writer"

READ_WHOLE: dict[str, dict[str, Any]] = {protocol: {"max_concurrency": 1} for protocol in S3}
"""Options of `cat_file` by protocol: without this one, s3fs requests the size before each read."""


def protocol_of(root: str) -> str:
    """Returns the protocol of an fsspec URL; "file" for a plain path."""
    return root.partition("://")[0].lower() if "://" in root else "file"


def connect(root: str, *, brief: bool = False) -> tuple[Any, str]:
    """Opens the file system of an fsspec URL; returns it and the path of the root in it.

    Args:
        root: the URL.
        brief: for the start-up probe: two attempts instead of ten, so that a wrong address fails soon.

    Raises:
        StoreError: the protocol is unknown, cannot create exclusively, or its library is not installed.
    """
    protocol = protocol_of(root)
    if protocol not in ATOMIC | RENAMING | {"file", "local"}:
        raise StoreError(
            f"{root}: a store cannot be on {protocol}://, which cannot create a file exclusively",
            "use a folder, s3://, gs://, abfs:// or hdfs://",
        )
    try:
        # Credentials may be set in the environment after the first use in a process: they are part of the key.
        fs = _file_system(protocol, brief, os.getpid(), _identity() if protocol in S3 else 0)
        return fs, str(fs._strip_protocol(root)).rstrip("/")
    except ImportError as error:
        raise StoreError(f"{root}: {protocol}:// needs a library ({error})", "install it beside sluice") from None


@lru_cache(maxsize=8)
def _file_system(protocol: str, brief: bool, process: int, identity: int) -> Any:
    if protocol not in S3:
        return fsspec.filesystem(protocol)
    config = _BRIEF_S3_CONFIG if brief else _S3_CONFIG
    fs = fsspec.filesystem(
        "s3",
        config_kwargs=config,
        # Files that another process has written must be visible at once.
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    # In addition to botocore's: for bodies that are cut off while they are read.
    fs.retries = 2 if brief else TRIES
    return fs


def _identity() -> int:
    return hash(tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))))


def create(fs: Any, path: str, data: bytes) -> bool:
    """Creates the object `path`; returns whether this call did it (False: it exists already)."""
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if protocols & RENAMING:
        return _create_by_rename(fs, path, data)
    writer = secrets.token_hex(16)
    mark = {"Metadata": {_WRITER: writer}} if protocols & S3 else {}
    try:
        fs.pipe_file(path, data, mode="create", **mark)
    except OSError as error:
        if not _refused(error):
            raise
        # The response to a successful attempt may be lost, and the client's retry is then rejected: read who wrote it.
        return bool(mark) and fs.metadata(path).get(_WRITER) == writer
    return True


def _create_by_rename(fs: Any, path: str, data: bytes) -> bool:
    aside = f"{path}.{secrets.token_hex(6)}.tmp"
    fs.makedirs(fs._parent(path), exist_ok=True)
    fs.pipe_file(aside, data)
    try:
        fs.mv(aside, path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):  # a writer that was faster has cleared the folder
            fs.rm_file(aside)
        if not fs.exists(path):
            raise
        return False
    return True


def _refused(error: OSError) -> bool:
    # Not every server names the failed condition, and without it s3fs does not raise FileExistsError.
    return isinstance(error, FileExistsError) or _code(error) in {"PreconditionFailed", "412"}


def is_behind_the_end(error: OSError) -> bool:
    """Returns whether the server refused a range because the object ends before it (HTTP 416)."""
    return _code(error) in {"InvalidRange", "416"}


_RIGHTS = {"AccessDenied", "AllAccessDisabled", "403", "AccountProblem", "InvalidObjectState"}
_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "NotSignedUp", "InvalidSecurity"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestTimeTooSkewed"}
_REGION = {"PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_QUOTA = {"QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity", "507"}


def meaning(error: BaseException, url: str) -> SluiceError | None:
    """Returns the error to raise for an error of an object store's client, or None where that is clear by itself."""
    code, detail = _code(error), _message(error)
    if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
        return None
    if code in _RIGHTS or (not code and isinstance(error, PermissionError)):
        return StoreError(f"no right to use {url} ({detail})", "grant it to these credentials, or name other ones")
    if code in _KEYS:
        return StoreError(f"the store of {url} does not accept the credentials ({detail})", "set others")
    if code in _EXPIRED:
        return TransientError(f"the credentials for {url} have expired ({detail})", "a new try takes fresh ones")
    if code == "NoSuchBucket":
        return StoreError(f"there is no bucket for {url}", "create it, or correct [place] store")
    if code in _REGION:
        return StoreError(
            f"the bucket of {url} lies in another region{_region(error)} ({detail})",
            "set AWS_DEFAULT_REGION, or region_name of the connection",
        )
    if code in _QUOTA:
        return StoreError(f"the store is full while writing {url} ({detail})", "free space and run again")
    return _unreachable(error, url)


def _unreachable(error: BaseException, url: str) -> SluiceError | None:
    names = {type(cause).__name__ for cause in _causes(error)}
    detail = " ".join(str(error).split())
    if names & {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}:
        return StoreError(f"no credentials for {url} ({detail})", "set the AWS environment or [place] aws_conn_id")
    if names & {"InvalidRegionError", "NoRegionError", "ParamValidationError", "ProfileNotFound"}:
        return StoreError(f"{url} cannot be used as it is configured ({detail})", "correct the AWS settings")
    if names & {"BotoCoreError", "ClientError", "ClientPayloadError", "TimeoutError", "FSTimeoutError"} or _botocore(
        error
    ):
        return TransientError(f"the store did not answer for {url} ({type(error).__name__}: {detail})")
    return None


def _botocore(error: BaseException) -> bool:
    return any(type(cause).__module__.partition(".")[0] in {"botocore", "aiobotocore"} for cause in _causes(error))


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__
    return found


def _response(error: BaseException) -> dict[str, Any]:
    responses = (getattr(cause, "response", None) for cause in _causes(error))
    return next((response for response in responses if isinstance(response, dict)), {})


def _code(error: BaseException) -> str:
    return str(_response(error).get("Error", {}).get("Code", ""))


def _message(error: BaseException) -> str:
    found = _response(error).get("Error", {})
    return f"{found.get('Code')}: {found.get('Message', '')}".rstrip(": ") if found else str(error)


def _region(error: BaseException) -> str:
    headers = _response(error).get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = headers.get("x-amz-bucket-region") or _response(error).get("Error", {}).get("Region")
    return f", {region}," if region else ""
