"""Group 3: redirects to private or invalid addresses, or without end. On public hosts: test_private_addresses."""

import pytest

from tests.tasks.stages.crawl.hostile.web import TDMREP, page, redirect

pytestmark = pytest.mark.real_time


def test_a_redirect_target_is_checked_like_any_other_url(web, crawl):
    inside = web.host(page(b"secret"))
    answers = {
        "to this machine": redirect(inside.url("/secret")),
        "to the network": redirect("http://10.0.0.1/"),
        "to metadata": redirect("http://169.254.169.254/latest/meta-data/"),
        "too many slashes": redirect("https:////h/"),
        "to itself": redirect("/"),
        "with a user": redirect("http://user:password@127.0.0.1/"),
        "to a file": redirect("file:///etc/passwd"),
        "to data": redirect("data:text/html,x"),
        "to script": redirect("javascript:alert(1)"),
        "to gopher": redirect("gopher://127.0.0.1:6379/_FLUSHALL"),
        "nowhere": redirect(""),
        "without a place": page(b"", status="301 Moved"),
        "to no address": redirect("http://[::"),
        "to a long address": redirect("/" + "a" * 20_000),
        "to 1 MB": redirect("/" + "a" * (1 << 20)),
        "300 without a place": page(b"<a href=/a>a</a>", status="300 Multiple Choices"),
        "304 unasked": page(b"", status="304 Not Modified"),
    }
    hosts = {name: web.host(answer) for name, answer in answers.items()}
    result = crawl(*hosts.values())
    assert result.reasons(hosts) == {
        **dict.fromkeys(list(answers)[:5], "redirect"),
        **dict.fromkeys(list(answers)[5:], "redirect_broken"),
        "to 1 MB": "protocol",
    }
    assert inside.connections == 0
    assert not {host.url() for host in hosts.values()} & set(result.captures)
    for name, host in hosts.items():
        assert len(host.paths()) <= 5, name


def test_a_chain_of_redirects_ends(web, crawl):
    host = web.host(lambda path: redirect(f"/{int(path[1:] or 0) + 1}", "301 Moved Permanently"))
    result = crawl(host)
    assert [path for path in host.paths() if path not in ("/robots.txt", TDMREP)] == ["/", "/1", "/2", "/3", "/4", "/5"]
    assert host.url("/5") in result.rows


def test_hosts_that_redirect_to_each_other_are_abandoned_soon(web, crawl):
    there = web.host(lambda path: redirect(f"{back.url()}{path.count('x') * 'x'}x"))
    back = web.host(lambda path: redirect(f"{there.url()}{path.count('x') * 'x'}x"))
    crawl(there, back)
    assert len(there.paths()) + len(back.paths()) <= 2 * (2 + 6)


def test_redirects_of_robots_txt_grant_no_permission(web, crawl):
    def hops(path):
        return redirect(f"/{int(path[1:] or 0) + 1}")

    fetched = web.host(page(b"x"))
    chain = web.host(hops)
    answers = {
        "6 hops over another host": redirect(chain.url("/1")),
        "to the network": redirect("http://10.0.0.1/robots.txt"),
        "to this machine by another name": redirect("http://[::ffff:127.0.0.1]/robots.txt"),
        "to a file": redirect("file:///etc/passwd"),
        "to itself": redirect("/robots.txt"),
        "without a place": page(b"", status="302 Found"),
        "to 1 MB": redirect("/" + "a" * (1 << 20)),
    }
    hosts = {name: web.host(page(b"x"), robots=answer) for name, answer in answers.items()}
    good = web.host(page(b"x"), robots=redirect(f"http:////127.0.0.1:{fetched.port}/robots.txt"))
    result = crawl(*hosts.values(), good)
    assert result.reasons(hosts) == dict.fromkeys(hosts, "robots_unavailable")
    assert result.reason(good) == ""
    assert all(set(host.paths()) == {"/robots.txt"} for host in hosts.values())
    assert chain.paths() == ["/robots.txt", "/1", "/2", "/3", "/4", "/5"]
