"""Stage stream: reads the messages of Kafka topics that no earlier version has read.

Reads the topics of `[[extract.streams]]` and the record of the previous `messages` artifact. Writes
`messages/<source>/<part>.jsonl`: each message, a JSON object, is one line, with its topic, partition, offset and time
in the field `kafka`. The stage `extract` reads them like other rows.

The range of offsets of each partition is decided once, as the first part of the artifact: from the end of the previous
version's range up to the high watermark at that moment. It is in the metrics of the record
(`<source>/<topic>/<partition>/from` and `/to`, exclusive), which also keep the ends of streams that the recipe no
longer has. So a killed run reads the same range again, and every offset is in one version; the broker's own record of
what a consumer group has read is not used. The connection stays in this process, which has the credentials.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError, RecipeError, SupersededError, TransientError
from tasks.core.ledger import versions_of
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.stages.extract.config import ORIGIN, StreamConfig, Topic

log = logging.getLogger("sluice.extract")

VERSION = 1

KAFKA = "SLUICE_KAFKA"
"""Environment variable with the settings of the client as one JSON object, named as in librdkafka: bootstrap.servers,
and what the broker needs of security.protocol, sasl.mechanism, sasl.username, sasl.password. In Airflow it is set from
the connection that `[place] stream_conn_id` names."""

_SOURCE = f"[place] stream_conn_id or {KAFKA}"

AT_ONCE = 10_000
"""Offsets of a part. A killed stage reads at most one part again."""

SILENT_S = 60.0
"""Seconds to wait for an answer of the broker."""

# The offsets are in records, a gap is an error, and an aborted transaction is no message.
_FIXED = {
    "group.id": "sluice",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}

_DEFAULTS = {"reconnect.backoff.ms": 1000}
"""A refused password is tried again, each time with a line in the log."""

Range = tuple[int, int]
"""First offset, and the offset after the last one."""

StreamKey = tuple[str, str]
"""Source and topic."""

_ENDS = "offsets"


def run(config: StreamConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Reads the range of each partition.

    Raises:
        InputError: a topic does not exist, was made again, or has lost messages that no version has read; or
            confluent-kafka is not installed.
        RecipeError: the settings of the client are missing or unusable.
        SupersededError: another version has read the same messages in the meantime.
        TransientError: the broker does not answer.
    """
    previous = inputs.get("previous")
    _keep_ends(config, previous, output)
    refused: list[Any] = []
    with _client(refused) as consumer:
        for topic in config.topics or ():
            with _explained(topic, refused):
                _check_rights(consumer, refused)
                _read_topic(consumer, topic, previous, output)
    _check_is_next(output, previous)
    records = output.committed.values()
    rows, rejected = sum(one.rows_out for one in records), sum(sum(one.rejected.values()) for one in records)
    return Report(note=f"{rows:,} messages, {rejected:,} rejected")


@contextlib.contextmanager
def _client(refused: list[Any]) -> Iterator[Any]:
    """Yields a consumer with the settings of the environment, which adds the broker's refusals to `refused`."""
    try:
        from confluent_kafka import Consumer, KafkaError, KafkaException
    except ImportError:
        raise InputError(
            "the recipe has [[extract.streams]], and confluent-kafka is not installed",
            "install it where the stage runs (pip install 'sluice[kafka]')",
        ) from None

    def note(error: Any) -> None:
        if error.code() == KafkaError._AUTHENTICATION:
            refused.append(error)

    settings = _settings()
    try:
        consumer = Consumer({**_DEFAULTS, **settings, **_FIXED, "error_cb": note}, logger=log)
    except (KafkaException, TypeError, ValueError) as error:
        raise RecipeError(f"the settings of the Kafka client cannot be used ({error})", f"correct {_SOURCE}") from None
    try:
        yield consumer
    finally:
        consumer.close()


def _settings() -> dict[str, Any]:
    try:
        settings = json.loads(os.environ.get(KAFKA, ""))
    except ValueError:  # its text may have a password, so it is in no message
        settings = None
    if isinstance(settings, dict) and settings.get("bootstrap.servers"):
        return settings
    example = '{"bootstrap.servers": "broker:9092"}'
    raise RecipeError(f"{_SOURCE} does not name a broker", f"set one of them, with {example}")


def _check_rights(consumer: Any, refused: list[Any]) -> None:
    """Returns as soon as a broker answers, or has refused the credentials; raises KafkaException for both failures."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + SILENT_S
    while True:
        try:
            consumer.list_topics(timeout=1.0)
            return
        except KafkaException:
            consumer.poll(0)  # reports the reason, which the exception does not have
            if refused or time.monotonic() > deadline:
                raise


@contextlib.contextmanager
def _explained(topic: Topic, refused: list[Any]) -> Iterator[None]:
    """Converts errors of the client to those of a stage, with source and topic."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        yield
    except KafkaException as raised:
        error = refused[-1] if refused else raised.args[0]
        cause = f"{_named(topic)}: {error.str()}"
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise InputError(
                f"{_named(topic)}: the broker has deleted messages while they were read ({error.str()})",
                "raise the retention of the topic, and run the stage as another version",
            ) from None
        denied = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION)
        if error.code() in denied:
            raise InputError(cause, f"correct the credentials of {_SOURCE}, or the rights of the user") from None
        raise TransientError(cause) from None


def _named(topic: Topic) -> str:
    return f'topic "{topic.topic}" of the stream "{topic.name}"'


def _read_topic(consumer: Any, topic: Topic, previous: Artifact | None, output: Output) -> None:
    decision = f"{topic.name}-offsets"
    if decision not in output.committed:
        ends = {one: end for one, (_, end) in _ranges_before(previous).get(_key(topic), {}).items()}
        with output.part(decision) as part:
            _record(part, {_key(topic): _decided(consumer, topic, ends)})
    ranges = ranges_of(output.committed[decision].metrics)[_key(topic)]
    total = sum(end - first for first, end in ranges.values())
    log.info("[%s] %s: %d offsets in %d partitions", output.address, _named(topic), total, len(ranges))
    for partition, (first, end) in ranges.items():
        for start in range(first, end, AT_ONCE):
            name = f"{topic.name}-{partition:05d}-{start:020d}"
            if name not in output.committed:
                with output.part(name) as part:
                    _write(part, topic, _messages(consumer, topic, partition, start, min(end, start + AT_ONCE)))


def _key(topic: Topic) -> StreamKey:
    return topic.name, topic.topic


def _record(part: Part, ranges: Mapping[StreamKey, Mapping[int, Range]]) -> None:
    for (name, topic), of_partitions in ranges.items():
        for partition, (first, end) in of_partitions.items():
            part.metric(f"{name}/{topic}/{partition}/from", first)
            part.metric(f"{name}/{topic}/{partition}/to", end)


def ranges_of(metrics: Mapping[str, float]) -> dict[StreamKey, dict[int, Range]]:
    """Returns the range of each partition of each stream, from the metrics of a record.

    >>> ranges_of({"news/articles/0/from": 3.0, "news/articles/0/to": 9.0})
    {('news', 'articles'): {0: (3, 9)}}
    """
    ranges: dict[StreamKey, dict[int, Range]] = {}
    for key, first in metrics.items():
        name, topic, partition, bound = key.split("/")
        if bound == "from":
            end = metrics[f"{name}/{topic}/{partition}/to"]
            ranges.setdefault((name, topic), {})[int(partition)] = (int(first), int(end))
    return ranges


def _ranges_before(previous: Artifact | None) -> dict[StreamKey, dict[int, Range]]:
    return ranges_of(previous.record.metrics) if previous else {}


def _keep_ends(config: StreamConfig, previous: Artifact | None, output: Output) -> None:
    """Writes the ends of the streams of earlier versions that this one does not read, as empty ranges."""
    read = {_key(topic) for topic in config.topics or ()}
    before = _ranges_before(previous)
    ends = {
        key: {one: (end, end) for one, (_, end) in ranges.items()} for key, ranges in before.items() if key not in read
    }
    if ends and _ENDS not in output.committed:
        with output.part(_ENDS) as part:
            _record(part, ends)


def _decided(consumer: Any, topic: Topic, ends: Mapping[int, int]) -> dict[int, Range]:
    """Returns the ranges to read: what follows `ends`, or for a new partition the oldest message that is left."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    found = consumer.list_topics(topic.topic, timeout=SILENT_S).topics[topic.topic]
    if found.error is not None and found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise KafkaException(found.error)
    if not found.partitions:
        raise InputError(f"{_named(topic)}: the broker has no such topic", "correct [[extract.streams]] topic")
    ranges = {}
    for partition in sorted(found.partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic.topic, partition), timeout=SILENT_S)
        first = ends.get(partition, low)
        where = f"{_named(topic)}, partition {partition}"
        if first > high:
            raise InputError(
                f"{where}: an earlier version has read to offset {first}, and it ends at {high}: it was made again",
                "give the stream another name",
            )
        if first < low:
            lost = f"{where}: the broker has deleted the messages {first} to {low - 1}, which no version has read"
            if topic.gone == "refuse":
                remedy = 'read more often, or raise the retention; set gone = "skip" to go on without them'
                raise InputError(lost, remedy)
            log.warning("%s", lost)
        ranges[partition] = (max(first, low), high)
    return _shared(ranges, topic.most)


def _shared(ranges: Mapping[int, Range], most: int | None) -> dict[int, Range]:
    """Returns the beginnings of ranges, together at most `most` offsets; a partition that needs less gives its share.

    >>> _shared({0: (0, 2), 1: (10, 90), 2: (5, 90)}, 12)
    {0: (0, 2), 1: (10, 15), 2: (5, 10)}
    """
    if most is None:
        return dict(ranges)
    shared, left = {}, most
    by_length = sorted(ranges, key=lambda partition: (ranges[partition][1] - ranges[partition][0], partition))
    for number, partition in enumerate(by_length):
        first, end = ranges[partition]
        count = min(end - first, left // (len(ranges) - number))
        shared[partition] = (first, first + count)
        left -= count
    return dict(sorted(shared.items()))


def _messages(consumer: Any, topic: Topic, partition: int, first: int, end: int) -> Iterator[Any]:
    """Yields the messages with offsets from `first` to `end`, exclusive; some offsets may have none.

    Raises:
        TransientError: the broker is silent, or the partition ends before `end`.
        KafkaException: the broker reports an error.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    consumer.assign([TopicPartition(topic.topic, partition, first)])
    while True:
        message = consumer.poll(SILENT_S)
        if message is None:
            raise TransientError(f"{_named(topic)}: no answer in {SILENT_S:.0f} s")
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if message.offset() >= end:
            return
        if error is not None:
            at = message.offset()
            raise TransientError(f"{_named(topic)}, partition {partition} ends at offset {at}, and had {end}")
        yield message
        if message.offset() == end - 1:
            return


def _write(part: Part, topic: Topic, messages: Iterator[Any]) -> None:
    with contextlib.ExitStack() as files:
        file = None
        for message in messages:
            part.count_in()
            reason, line = _line(message)
            if reason:
                part.reject(reason)
                continue
            file = file or files.enter_context(part.file(f"messages/{topic.name}/{part.name}.jsonl"))
            file.write(line)
            part.count_out()


def _line(message: Any) -> tuple[str, bytes]:
    """Returns the reason why a message gives no row, or "" and its line."""
    value = message.value()
    if value is None:
        return "no_value", b""
    try:
        row = json.loads(value)
        if not isinstance(row, dict):
            return "json_malformed", b""
        kind, milliseconds = message.timestamp()
        time = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat() if kind else None
        row[ORIGIN] = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "time": time,
        }
        # ASCII, because an escape in a message may be a lone surrogate.
        return "", json.dumps(row).encode() + b"\n"
    except (ValueError, RecursionError):
        return "json_malformed", b""


def _check_is_next(output: Output, previous: Artifact | None) -> None:
    """Raises SupersededError if another version was made from the same previous version."""
    for other in versions_of(output.store, output.address.name, but=output.version):
        if previous is None or other.record.finished > previous.record.finished:
            raise SupersededError(
                f"{other.address} has read the messages after {previous.address if previous else 'the first offset'}",
                f"run the version {output.version} again: it reads what follows",
            )
