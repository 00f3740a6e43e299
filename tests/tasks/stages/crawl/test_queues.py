from tasks.stages.crawl.frontier.queues import HostQueue, QueuedUrl
from tasks.stages.crawl.storage.fetchlist import Candidate


def url(number):
    return f"http://a.test/{number:06}"


def test_the_best_urls_come_first_listed_or_found():
    queue = HostQueue(1.0, 10)
    queue.load([(QueuedUrl(0, 0, 0, url(number)), Candidate(url(number), 0, seed=True)) for number in (5, 1)])
    for front, number in ((1, 2), (0, 3), (1, 0)):
        queue.push(QueuedUrl(front, 1, 0, url(number), "via"), 1 << 20)
    assert [one.url for one in queue.ranked()] == [url(number) for number in (1, 5, 3, 0, 2)]
    popped = []
    while queue:
        peeked = queue.peek()
        popped.append(queue.pop())
        assert popped[-1].url == peeked
    assert [one.url for one in popped] == [url(number) for number in (1, 5, 3, 0, 2)]
    assert [isinstance(one, Candidate) for one in popped] == [True, True, False, False, False]


def test_when_links_are_too_many_the_worst_are_let_go_and_may_come_again():
    queue = HostQueue(1.0, 10)
    for number in reversed(range(1000)):
        queue.push(QueuedUrl(0, 1, 0, url(number)), 1 << 30)
    assert len(queue) <= 2 * (8 * 10 + 4)
    assert queue.dropped == 1000 - len(queue)
    assert queue.pop().url == url(0)
    assert url(0) in queue
    assert url(999) not in queue


def test_links_take_no_more_than_twice_their_room_and_the_fetch_list_stays():
    queue = HostQueue(1.0, 100_000)
    listed = [(QueuedUrl(0, 0, 0, url(number)), Candidate(url(number), 0)) for number in range(500)]
    queue.load(listed)
    for number in range(500, 5000):
        queue.push(QueuedUrl(0, 1, 0, url(number)), 30_000)
    assert 500 + 8 < len(queue) <= 500 + 2 * 30_000 / 280
    assert [queue.pop().url for _ in range(500)] == [one.url for one, _ in listed]


def test_links_to_other_hosts_are_handed_over_once_and_in_bounded_number():
    queue = HostQueue(1.0, 10)
    other = "http://b.test/{}".format
    assert queue.forward(other(1), 1 << 20)
    assert not queue.forward(other(1), 1 << 20)
    handed = sum(queue.forward(other(number), 3000) for number in range(2, 1000))
    assert 5 < handed < 15
