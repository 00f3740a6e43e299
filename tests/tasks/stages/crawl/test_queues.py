from tasks.formats.web.domain import link
from tasks.formats.web.url import key
from tasks.stages.crawl.frontier.queues import HostQueue, QueuedUrl
from tasks.stages.crawl.storage.fetchlist import Candidate


def url(number):
    return f"http://a.test/{number:06}"


def push(queue, number, max_bytes, front=0):
    queue.push(QueuedUrl(front, 1, 0, url(number)), key(url(number)), max_bytes)


def test_the_best_urls_come_first_from_fetch_list_and_links():
    queue = HostQueue(1.0, 10)
    queue.load([(QueuedUrl(0, 0, 0, url(number)), Candidate(link(url(number)), 0, seed=True)) for number in (5, 1)])
    for front, number in ((1, 2), (0, 3), (1, 0)):
        push(queue, number, 1 << 20, front)
    assert [one.url for one in queue.ranked()] == [url(number) for number in (1, 5, 3, 0, 2)]
    popped = []
    while queue:
        peeked = queue.peek()
        popped.append(queue.pop())
        assert popped[-1].url == peeked
    assert [one.url for one in popped] == [url(number) for number in (1, 5, 3, 0, 2)]
    assert [one.seed for one in popped] == [True, True, False, False, False]


def test_excess_links_are_dropped_worst_first_and_can_be_added_again():
    queue = HostQueue(1.0, 10)
    for number in reversed(range(1000)):
        push(queue, number, 1 << 30)
    assert len(queue) <= 2 * (8 * 10 + 4)
    assert queue.dropped == 1000 - len(queue)
    assert queue.pop().url == url(0)
    assert key(url(0)) in queue
    assert key(url(999)) not in queue


def test_links_take_at_most_twice_their_limit_and_the_fetch_list_is_kept():
    queue = HostQueue(1.0, 100_000)
    listed = [(QueuedUrl(0, 0, 0, url(number)), Candidate(link(url(number)), 0)) for number in range(500)]
    queue.load(listed)
    for number in range(500, 5000):
        push(queue, number, 30_000)
    assert 500 + 8 < len(queue) <= 500 + 2 * 30_000 / 280
    assert [queue.pop().url for _ in range(500)] == [one.url for one, _ in listed]


def test_links_to_other_hosts_are_passed_on_once_and_in_bounded_number():
    queue = HostQueue(1.0, 10)
    other = "http://b.test/{}".format
    assert queue.forward(link(other(1)), 1 << 20)
    assert not queue.forward(link(other(1)), 1 << 20)
    handed = sum(queue.forward(link(other(number)), 3000) for number in range(2, 1000))
    assert 5 < handed < 15
