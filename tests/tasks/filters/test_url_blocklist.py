"""Blocklists of domains and URLs: reading lists in foreign formats, and matching URLs."""

import gzip
import os
from pathlib import Path

import pytest

from tasks.core.errors import InputError
from tasks.filters import blocklists
from tasks.filters.base import fields
from tasks.filters.batch import DocumentBatch
from tasks.filters.blocklists import entry_key, keys_of
from tasks.filters.url_blocklist import UrlBlocklist, UrlBlocklistMeasures
from tests.s3_server import S3Server


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    """Three categories in the layout of the UT1 lists."""
    folder = tmp_path / "lists"
    for name in ("phishing", "adult", "games"):
        (folder / name).mkdir(parents=True)
    (folder / "phishing" / "domains").write_text("bad.example.com\nwww.evil.example\r\n198.51.100.7\n")
    (folder / "phishing" / "urls").write_text("host.example/~user/steal\nHost.Example/Form?id=7\n")
    (folder / "adult" / "domains.gz").write_bytes(gzip.compress(b"# a comment\nb\xc3\xbccher.example\nevil.example\n"))
    (folder / "games" / "domains").write_text("play.example")
    (folder / "games" / "usage").write_text("black\n")
    return folder


def look_up(listed: UrlBlocklistMeasures, *urls: str) -> list[tuple[str | None, str | None]]:
    listed.prepare({})
    found = listed.measure(DocumentBatch([""] * len(urls), urls=urls))
    return list(zip(found["category"], found["entry"], strict=True))


def test_a_domain_covers_itself_and_its_subdomains(lists: Path) -> None:
    listed = UrlBlocklistMeasures(folders=(str(lists),))
    assert (
        look_up(
            listed,
            "https://bad.example.com/x",
            "http://a.b.bad.example.com:8080/",
            "https://example.com/",
            "https://notbad.example.com/",
            "https://bad.example.com.org/",
        )
        == [("phishing", "bad.example.com")] * 2 + [(None, None)] * 3
    )


def test_a_url_covers_the_paths_below_it(lists: Path) -> None:
    listed = UrlBlocklistMeasures(folders=(str(lists),))
    urls = (
        "/~user/steal",
        "/~user/steal/now?x=1",
        "/~user/steals",
        "/~user/",
        "/Form?id=7",
        "/Form?id=7&a=1",
        "/Form?id=70",
        "/%7euser/st%65al",
        "/~user%2Fsteal",
    )
    found = look_up(listed, *(f"http://www.host.example{path}" for path in urls))
    assert [category is not None for category, _ in found] == [True, True, False, False, True, True, False, True, False]
    assert found[1] == ("phishing", "host.example/~user/steal")


def test_an_ip_address_has_no_parent_domain(lists: Path) -> None:
    listed = UrlBlocklistMeasures(folders=(str(lists),))
    found = look_up(listed, "http://198.51.100.7/a", "http://1.198.51.100/", "http://[2001:db8::1]/")
    assert found == [("phishing", "198.51.100.7"), (None, None), (None, None)]


def test_other_scripts_comments_case_and_unterminated_last_lines_are_read(lists: Path) -> None:
    listed = UrlBlocklistMeasures(folders=(str(lists),))
    found = look_up(listed, "https://Bücher.example/", "https://PLAY.example./x", "https://black/")
    assert found == [("adult", "xn--bcher-kva.example"), ("games", "play.example"), (None, None)]


def test_of_lists_with_the_same_entry_the_first_gives_the_category(lists: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("0.0.0.0 evil.example\nhttps://site.example/page/\n")
    assert look_up(UrlBlocklistMeasures(folders=(str(lists),)), "http://evil.example/")[0][0] == "adult"
    first = UrlBlocklistMeasures(folders=(str(lists),), files={"Our own!": str(own)})
    assert look_up(first, "http://evil.example/", "http://site.example/page/2") == [
        ("our_own", "evil.example"),
        ("our_own", "site.example/page"),
    ]


def test_the_closest_entry_gives_the_category(tmp_path: Path) -> None:
    (tmp_path / "wide.txt").write_text("example.com\n")
    (tmp_path / "close.txt").write_text("bad.example.com/x\n")
    listed = UrlBlocklistMeasures(files={"a_wide": str(tmp_path / "wide.txt"), "b_close": str(tmp_path / "close.txt")})
    found = look_up(listed, "http://bad.example.com/x/y", "http://bad.example.com/")
    assert found == [("b_close", "bad.example.com/x"), ("a_wide", "example.com")]


def test_an_allowed_url_is_never_listed(lists: Path) -> None:
    listed = UrlBlocklistMeasures(folders=(str(lists),), allow=("good.evil.example", "play.example/chess"))
    found = look_up(listed, "http://evil.example/", "http://x.good.evil.example/", "http://play.example/chess/1")
    assert [category for category, _ in found] == ["adult", None, None]


def test_lists_on_an_object_store_are_fetched_and_read(s3: S3Server) -> None:
    body = gzip.compress(b"evil.example\n")
    s3.client().put_object(Bucket="sluice", Key="lists/adult/domains.gz", Body=body)
    s3.client().put_object(Bucket="sluice", Key="own.txt", Body=b"play.example\n")
    listed = UrlBlocklistMeasures(folders=("s3://sluice/lists",), files={"games": "s3://sluice/own.txt"})
    found = look_up(listed, "http://evil.example/", "http://play.example/")
    assert [category for category, _ in found] == ["adult", "games"]
    assert all(Path(path).is_file() for path in listed.external())


def test_only_the_configured_categories_are_read(lists: Path) -> None:
    listed = UrlBlocklistMeasures(folders=(str(lists),), categories=("games",))
    assert look_up(listed, "http://evil.example/", "http://play.example/") == [(None, None), ("games", "play.example")]
    with pytest.raises(InputError, match=r"no folder has the category gams\. Choose from adult, games, phishing"):
        UrlBlocklistMeasures(folders=(str(lists),), categories=("gams",)).prepare({})


def test_a_missing_list_or_empty_folder_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt does not exist"):
        UrlBlocklistMeasures(files={"spam": str(tmp_path / "none.txt")}).prepare({})
    with pytest.raises(InputError, match="has no <category>/domains"):
        UrlBlocklistMeasures(folders=(str(tmp_path),)).prepare({})


def test_the_path_of_a_list_is_relative_to_the_current_folder_unless_it_begins_with_a_slash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.txt").write_text("play.example\n")
    assert look_up(UrlBlocklistMeasures(files={"games": "own.txt"}), "http://play.example/")[0][0] == "games"
    with pytest.raises(InputError, match=r"the blocklist /own\.txt does not exist"):
        UrlBlocklistMeasures(files={"games": "/own.txt"}).prepare({})


def test_banned_words_match_whole_words_of_the_url() -> None:
    listed = UrlBlocklistMeasures(banned_words=("Casino",))
    found = look_up(listed, "https://x.example/best-casino_1", "https://casinos.example/", "https://CASINO.example/")
    assert found == [("banned_word", "casino"), (None, None), ("banned_word", "casino")]


def test_invalid_urls_are_not_listed(lists: Path) -> None:
    listed = UrlBlocklistMeasures(folders=(str(lists),))
    assert (
        look_up(listed, "", "file:///etc/passwd", "http://", "not a url", "mailto:x@evil.example") == [(None, None)] * 5
    )


def test_lists_are_cached_and_a_changed_list_is_read_again(lists: Path, cache: Path) -> None:
    listed = UrlBlocklistMeasures(folders=(str(lists),))
    assert look_up(listed, "http://new.example/") == [(None, None)]
    kept = sorted(path.name for path in cache.iterdir())
    assert look_up(UrlBlocklistMeasures(folders=(str(lists),)), "http://play.example/")[0][0] == "games"
    assert sorted(path.name for path in cache.iterdir()) == kept
    domains = lists / "games" / "domains"
    domains.write_text("new.example\n")
    os.utime(domains, ns=(1, 1))
    assert look_up(UrlBlocklistMeasures(folders=(str(lists),)), "http://new.example/")[0][0] == "games"


def test_the_lists_are_in_the_fingerprint(lists: Path) -> None:
    names = [os.path.relpath(path, lists) for path in UrlBlocklistMeasures(folders=(str(lists),)).external()]
    assert names == ["adult/domains.gz", "games/domains", "phishing/domains", "phishing/urls"]
    assert UrlBlocklistMeasures().external() == []


def test_lists_are_read_in_blocks_of_whole_lines(lists: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocklists, "_CHUNK", 7)
    listed = UrlBlocklistMeasures(folders=(str(lists),))
    assert look_up(listed, "http://bad.example.com/", "http://host.example/Form?id=7", "http://play.example/") == [
        ("phishing", "bad.example.com"),
        ("phishing", "host.example/Form?id=7"),
        ("games", "play.example"),
    ]


def test_every_entry_of_a_list_matches_its_own_url() -> None:
    for line in ("example.com", "http://a.example/b/c", "example.com/a?b=1&c=2", "198.51.100.1/x", "ÄÖ.example/ä"):
        key = entry_key(line)
        assert key is not None
        assert key in list(keys_of(f"https://www.{key}")) or key in list(keys_of(f"https://{key}"))


LONG = ("/x" * 5000, "/x" * 5000 + "?q=1", "?" + "&".join(f"p{i}={i}" for i in range(5000)), "//" * 5000, "?&" * 5000)


@pytest.mark.parametrize("more", LONG)
def test_a_very_long_url_has_a_bounded_number_of_keys(more: str) -> None:
    assert len(list(keys_of("http://" + "a." * 500 + "example.com/b" + more))) <= 55


@pytest.mark.parametrize("more", LONG)
def test_added_parameters_do_not_hide_a_listed_url(more: str) -> None:
    deep = "".join(f"/{level}" for level in range(20))
    found = list(keys_of(f"https://www.example.com/a/b{deep}{more}"))
    assert {"example.com/a", "example.com/a/b", f"example.com/a/b{deep}", "example.com"} <= set(found)
    assert found == sorted(found, key=len, reverse=True)
    assert "example.com" in list(keys_of(f"https://{'sub.' * 500}example.com/{more}"))


@pytest.mark.parametrize("parameters", [1, 22, 23, 24, 30, 1000])
def test_an_entry_covers_its_url_with_any_number_of_parameters(tmp_path: Path, parameters: int) -> None:
    (tmp_path / "list").write_text("example.com/porn\n")
    query = "&".join(f"p{i}={i}" for i in range(parameters))
    found = look_up(UrlBlocklistMeasures(files={"adult": str(tmp_path / "list")}), f"http://example.com/porn?{query}")
    assert found == [("adult", "example.com/porn")]


def test_a_deep_entry_covers_its_url_with_a_query() -> None:
    deep = "example.com" + "/x" * 100
    assert deep in list(keys_of(f"http://{deep}?a=1&b=2"))
    assert f"{deep}?a=1" in list(keys_of(f"http://{deep}?a=1"))


def test_categories_without_a_folder_are_refused() -> None:
    with pytest.raises(ValueError, match="categories are those of folders: name folders, or leave categories out"):
        UrlBlocklistMeasures(files={"games": "/lists/games"}, categories=("games",))


def test_the_filter_drops_the_configured_categories(lists: Path) -> None:
    listed = UrlBlocklistMeasures(folders=(str(lists),))
    listed.prepare({})
    urls = ["http://play.example/", "http://evil.example/", "http://example.org/"]
    found = fields(listed.annotate(DocumentBatch([""] * 3, urls=urls)))
    assert [(reason, mask.tolist()) for reason, mask in UrlBlocklist().reasons(found)] == [
        ("url_blocklist_adult", [False, True, False]),
        ("url_blocklist_games", [True, False, False]),
    ]
    assert [reason for reason, _ in UrlBlocklist(categories=("games",)).reasons(found)] == ["url_blocklist_games"]
