"""The hosts file: valid content, and the entries that apply to a host."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from tasks.core.errors import InputError, RecipeError
from tasks.formats.web.domain import link
from tasks.stages.crawl.policy import HostsFile, Policy, read_hosts_file
from tests.tasks.stages.crawl.cycle import again_since

TEXT = """
deny = ["example.org", "*.shop.example", "example.net:8080", "[2001:db8::1]"]

[hosts."*.example.com"]
delay_s = 10.0
max_pages = 50
accept_language = "de, en;q=0.5"

[hosts."www.example.com"]
max_pages = 500

[hosts."wiki.corp:8080"]
headers = { Authorization = "env:WIKI" }
cookies = { session = "file:/run/secrets/wiki" }
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "hosts.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def policy(written):
    return Policy(read_hosts_file(written(TEXT))[0])


@pytest.mark.parametrize(
    ("host", "entry"),
    [
        *((host, "example.org") for host in ("example.org", "www.example.org", "example.org:8443")),
        *((host, "*.shop.example") for host in ("shop.example", "a.b.shop.example", "a.shop.example:81")),
        ("example.net:8080", "example.net:8080"),
        ("[2001:db8::1]:81", "[2001:db8::1]"),
        *((host, "") for host in ("example.net", "blog.example.org", "eshop.example", "example.com", "10.0.0.1")),
    ],
)
def test_a_denial_applies_to_every_port_of_a_host_and_to_subdomains(policy, host, entry):
    assert policy.denial(host) == entry
    assert policy.denies(host) is bool(entry)


def test_the_closest_entry_with_a_value_applies(policy):
    assert [policy.max_pages(host, 7) for host in ("example.com", "www.example.com", "a.example.com")] == [500, 500, 50]
    assert policy.max_pages("example.org", 7) == 7
    assert policy.delay_s("www.example.com", 1.0) == 10.0
    assert policy.delay_s("com", 1.0) == 1.0
    assert policy.headers_for("http://a.example.com/").headers == {"Accept-Language": "de, en;q=0.5"}
    assert policy.headers_for("http://a.example.net/").headers == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('dny = ["a.example"]', 'id you mean "deny"'),
        ('deny = ["https://a.example/"]', "is not a host"),
        ('deny = ["A.example"]', "is not a host"),
        ('deny = ["0x7f.1"]', "is not a host"),
        ('deny = ["a.example:80"]', "is not a host"),
        ('deny = ["*.a.example:81"]', "has no port"),
        ('deny = "a.example"', "deny"),
        ("[hosts.'a.example']\ndelay = 3", "unknown key hosts.a.example.delay"),
        ("[hosts.'a.example']\ndelay_s = -1.0", "delay_s"),
        ("[hosts.'a.example']\nheaders = { User-Agent = 'env:A' }", "User-Agent cannot be set"),
        ("[hosts.'a.example']\nheaders = { Host = 'env:A' }", "Host cannot be set"),
        ("[hosts.'a.example']\nheaders = { Cookie = 'env:A' }", "its own field, cookies"),
        ("[hosts.'a.example']\nheaders = { 'a b' = 'env:A' }", "not a valid name of a header"),
        ("[hosts.'*.a.example']\ncookies = { a = 'env:A' }", "go to one host only"),
        ("[hosts.'a.example']\naccept_language = \"de\\r\\nX: y\"", "not a list of languages"),
        ("[hosts.'a.example']\ninterval_s = 5", "interval_s"),
        ("[hosts.'a.example']\ndrop_before = 2026-11-24T10:00:00", "drop_before"),
        ("[hosts.'a.example']\ndrop_parameters = ['a=b']", "is not a parameter"),
        ("[hosts.'a.example']\nrewrite = [{ match = '(', to = '' }]", "is not a valid rule"),
        ("[hosts.'a.example']\nrewrite = [{ match = '(a)', to = '\\2' }]", "is not a valid rule"),
        ("[again]\n'a.example' = true", "again"),
        ("[again]\n'a.example' = 2026-11-24T10:00:00", "again"),
        ("[again]\n'A.example' = 2026-11-24T10:00:00Z", "is not a host"),
        ("[again]\n'https://a.example' = 2026-11-24T10:00:00Z", "write 'https://a.example/', or a host"),
        ("deny = [", "is not TOML"),
    ],
)
def test_invalid_entries_are_refused(written, text, words):
    with pytest.raises(RecipeError) as caught:
        read_hosts_file(written(text))
    assert words in str(caught.value)


@pytest.mark.parametrize("value", ['"Bearer s3cret"', '"env:"', '"file:s3cret"', "31337", '["s3cret"]'])
def test_a_credential_written_into_the_file_is_refused_without_being_shown(written, value):
    for field in ("headers", "cookies"):
        with pytest.raises(RecipeError, match=r"X-Key is not a reference") as caught:
            read_hosts_file(written(f"[hosts.'a.example']\n{field} = {{ X-Key = {value} }}"))
        assert "s3cret" not in str(caught.value)
        assert "31337" not in str(caught.value)


MORE = """
[hosts."*.example.com"]
interval_s = 86400
pause = true
drop_before = 2026-11-24T10:00:00+01:00
drop_parameters = ["sid", "ref_*"]
rewrite = [{ match = "/print/", to = "/" }, { match = "^http:(.*)", to = 'https:\\1' }]

[hosts."www.example.com"]
pause = false
rewrite = []

[again]
"*.example.com" = 2026-11-20T00:00:00Z
"http://a.example.com/news/*" = 2026-11-22T00:00:00Z
"http://a.example.com/" = 2026-11-21T00:00:00Z
"""


def test_a_copy_in_an_artifact_equals_the_file(written):
    file, _ = read_hosts_file(written(MORE))
    plain = json.loads(json.dumps(file.model_dump(mode="json", exclude_defaults=True)))
    assert HostsFile.model_validate(plain) == file


@pytest.mark.parametrize(
    ("url", "becomes"),
    [
        ("http://a.example.com/print/x?sid=1&q=2&ref_a=3&ref=4&sid", "https://a.example.com/x?q=2&ref=4"),
        ("http://a.example.com/x?sid=1", "https://a.example.com/x"),
        ("http://www.example.com/print/x?sid=1&SID=2", "http://www.example.com/print/x?SID=2"),
        ("http://b.example/print/x?sid=1", "http://b.example/print/x?sid=1"),
    ],
)
def test_urls_are_rewritten_by_the_closest_rules(written, url, becomes):
    found = Policy(read_hosts_file(written(MORE))[0]).rewritten(link(url))
    assert found == link(becomes)


def test_a_rule_that_gives_no_valid_url_leaves_the_link_unchanged(written):
    policy = Policy(read_hosts_file(written("[hosts.'a.example']\nrewrite = [{ match = '^http', to = 'mailto' }]"))[0])
    assert policy.rewritten(link("http://a.example/x")).url == "http://a.example/x"


def test_pauses_intervals_and_refetch_requests_are_looked_up_by_host_and_url(written):
    file = read_hosts_file(written(MORE))[0]
    policy = Policy(file)
    assert [policy.pauses(f"{name}.example.com") for name in ("a", "www")] == [True, False]
    assert [policy.interval_s(host) for host in ("www.example.com", "example.org")] == [86400, None]
    days = {
        "http://a.example.com/news/1": 22,
        "http://a.example.com/": 21,
        "http://a.example.com/x": 20,
        "https://a.example.com/": 20,
    }
    *dates, none = again_since(policy, *days, "http://b.example/")
    assert [date.day for date in dates] == list(days.values())
    assert none is None
    listed = datetime(2026, 11, 24, 8, 59, tzinfo=UTC)
    assert Policy(file, listed_at=listed).skip_reason("a.example.com") == "host_dropped"
    assert Policy(file, listed_at=listed + timedelta(minutes=2)).skip_reason("a.example.com") == ""
    assert Policy(file).skip_reason("a.example.com") == ""


def test_a_missing_hosts_file_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"none\.toml cannot be read"):
        read_hosts_file(str(tmp_path / "none.toml"))


def test_a_hosts_file_is_read_from_an_object_store_too(s3):
    from tasks.core.store import Store

    folder = f"s3://{s3.buckets[0]}/place"
    with Store(folder).write("hosts.toml") as file:
        file.write(b'deny = ["a.example"]')
    assert read_hosts_file(f"{folder}/hosts.toml")[0] == HostsFile(deny=("a.example",))
    with pytest.raises(InputError, match="cannot be read"):
        read_hosts_file(f"{folder}/none.toml")
