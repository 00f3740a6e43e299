"""A pod's log in the task's log: every line once, in order, after any number of lost connections."""

import pytest

from operators.pods.logs import LogSpool, unread_lines

LOG = [
    "2026-11-21T08:00:01.000000001Z one",
    "2026-11-21T08:00:01.5Z two",
    "2026-11-21T08:00:01.500000001Z three",
    "2026-11-21T08:00:02.25Z same",
    "2026-11-21T08:00:02.25Z same",
    "2026-11-21T08:00:03Z six",
]


def read(spool: LogSpool, lines: list[str]) -> list[str]:
    """The new lines of one connection."""
    spool.reconnected()
    return [taken[0] for line in lines if (taken := spool.take(line))]


def test_a_first_connection_returns_every_line_including_equal_ones():
    assert read(LogSpool(), LOG) == ["one", "two", "three", "same", "same", "six"]


def test_a_new_connection_asks_from_the_second_of_the_last_line():
    spool = LogSpool()
    assert spool.since == ""
    read(spool, LOG[:3])
    assert spool.since == "2026-11-21T08:00:01Z"


def test_lines_repeated_by_a_new_connection_are_dropped():
    for cut in range(len(LOG) + 1):
        spool = LogSpool()
        first = read(spool, LOG[:cut])
        # `sinceTime` has a resolution of seconds, so the whole last second is repeated.
        again = [line for line in LOG if line[:19] >= spool.since[:19]]
        assert first + read(spool, again) == ["one", "two", "three", "same", "same", "six"]


def test_lines_lost_on_the_node_are_reported_as_missing():
    spool = LogSpool()
    read(spool, LOG[:2])
    spool.reconnected()
    assert spool.take(LOG[5]) == ("six", True)


def test_nothing_is_missing_if_the_last_line_is_repeated():
    spool = LogSpool()
    read(spool, LOG[:2])
    spool.reconnected()
    assert [spool.take(line) for line in LOG[1:3]] == [None, ("three", False)]


def test_another_triggerer_continues_where_the_first_one_stopped():
    first = LogSpool()
    read(first, LOG[:2])
    assert read(LogSpool(first.until), LOG) == ["three", "same", "same", "six"]


def test_lines_without_a_timestamp_are_not_dropped():
    assert read(LogSpool(), ["unable to retrieve container logs for containerd://abc"]) == [
        "unable to retrieve container logs for containerd://abc"
    ]


def test_the_end_of_the_log_is_kept_for_the_error():
    spool = LogSpool()
    read(spool, [f"2026-11-21T08:00:{n:02}Z line {n}" for n in range(50)])
    assert list(spool.last_lines)[-1] == "line 49"
    assert len(spool.last_lines) == 20


@pytest.mark.parametrize(
    ("message", "read", "unread"),
    [
        (["a", "b", "c"], [], ["a", "b", "c"]),
        (["a", "b", "c"], ["a", "b"], ["c"]),
        (["b", "c", "d"], ["a", "b", "c"], ["d"]),
        (["a", "b", "c", "d"], ["c"], ["d"]),
        (["b", "c"], ["a", "b", "c"], []),
        (["x", "y"], ["a", "b"], ["x", "y"]),
        (["ree", "four", "five"], ["one", "two", "three", "four"], ["five"]),
        (["same", "same", "end"], ["same", "same"], ["end"]),
        ([], ["a"], []),
    ],
)
def test_reading_the_end_of_a_log_resumes_at_the_last_position(message, read, unread):
    assert unread_lines(message, read) == unread
