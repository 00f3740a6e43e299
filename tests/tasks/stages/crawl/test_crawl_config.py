import subprocess
import sys

import pytest

from tasks.core.config import parse
from tasks.core.errors import InputError, RecipeError
from tasks.stages.crawl.config import CrawlConfig

PUBLIC = {"seeds": ["https://example.com/"], "contact": "mailto:a@b.example"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seeds": ["https://example.com/"]}, "contact is missing"),
        (
            {"seeds": ["http://a.localhost/"], "allow_loopback": True, "include_hosts": ["*.example.com"]},
            "contact is missing",
        ),
        ({**PUBLIC, "delay_s": 0.5}, "below 1 second"),
        ({"seeds": ["http://127.0.0.1/"]}, "allow_loopback"),
        ({**PUBLIC, "seeds": ["example.com"]}, "not an http or https URL"),
        ({**PUBLIC, "seeds": ["ftp://example.com/"]}, "not an http or https URL"),
        ({**PUBLIC, "contact": "me"}, "neither a web address nor mailto"),
        ({**PUBLIC, "user_agent": "Sluice 1.0"}, "not a product token"),
        ({**PUBLIC, "include_hosts": ["https://example.com/"]}, "is not a host"),
        ({**PUBLIC, "partitions": 0}, "partitions"),
        ({**PUBLIC, "max_page": 10}, 'id you mean "max_pages"'),
        ({**PUBLIC, "hosts_file": "hosts.toml"}, "is not absolute"),
        ({**PUBLIC, "allow_hosts": {"*.corp": ["10.0.0.0/8"]}}, "not a single host"),
        ({**PUBLIC, "allow_hosts": {"http://wiki.corp/": []}}, "not a single host"),
        ({**PUBLIC, "allow_hosts": {"wiki.corp:80": []}}, "omit the port"),
        ({**PUBLIC, "allow_hosts": {"localhost:8080": []}}, "is this machine"),
        ({**PUBLIC, "allow_hosts": {"127.0.0.1:8080": []}}, "is this machine"),
        ({**PUBLIC, "allow_hosts": {"metadata.google.internal": ["10.0.0.0/8"]}}, "is never requested"),
        ({**PUBLIC, "allow_hosts": {"wiki.corp": ["10.20.0.1/16"]}}, "is not a network"),
        ({**PUBLIC, "allow_hosts": {"wiki.corp": ["0.0.0.0/0"]}}, "is not in a private network"),
        ({**PUBLIC, "allow_hosts": {"wiki.corp": ["169.254.0.0/16"]}}, "is not in a private network"),
        ({**PUBLIC, "allow_hosts": {"wiki.corp": ["127.0.0.0/8"]}}, "is not in a private network"),
        ({**PUBLIC, "allow_hosts": {"[FD00::1]": ["fc00::/7"]}}, "not a single host"),
        ({**PUBLIC, "allow_hosts": {"[fd00:0::1]": ["fc00::/7"]}}, "short form"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(settings, words):
    with pytest.raises(RecipeError) as caught:
        parse(CrawlConfig, settings, "demo.toml")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_crawl_of_the_public_web_needs_a_contact():
    assert parse(CrawlConfig, PUBLIC, "x").delay_s == 1.0
    local = {"seeds": ["http://docs.localhost:8000/"], "allow_loopback": True, "delay_s": 0.0}
    assert parse(CrawlConfig, local, "x").contact == ""
    mixed = {"seeds": ["http://docs.localhost:8000/", "https://example.com/"], "allow_loopback": True}
    with pytest.raises(RecipeError, match="contact"):
        parse(CrawlConfig, mixed, "x")


def test_the_settings_import_no_heavy_library():
    script = (
        "import sys, tasks.stages.crawl.config; "
        "print([name for name in ('aiohttp', 'pyarrow', 'ada_url', 'duckdb', 'selectolax') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "no seeds"),
        ({"seeds": ["http://10.0.0.1/"], "contact": "mailto:a@b.example"}, "private_address"),
        ({"seeds": ["http://2130706433/"], "contact": "mailto:a@b.example"}, "private_address"),
        ({"seeds": ["https://example.com:8443/"], "contact": "mailto:a@b.example"}, "port"),
        ({"seeds": ["https://me@example.com/"], "contact": "mailto:a@b.example"}, "without user name"),
        ({**PUBLIC, "include_hosts": ["example.org"]}, "is not covered by the crawl"),
    ],
)
def test_inject_refuses_seeds_that_cannot_be_crawled(run_stage, settings, words):
    with pytest.raises(InputError, match=words):
        run_stage("tasks.stages.crawl.inject", parse(CrawlConfig, settings, "x"))
