"""SEEDS and CONTACT: handling of a user's list, and refusals."""

from pathlib import Path

import pytest

from tasks.core.errors import InputError
from tasks.demo.home import Home, Ports
from tasks.demo.run import read_seeds, run_request

PORTS = Ports(18080, 15000, 18786, 18701)
CONTACT = "https://example.org/crawl"


@pytest.fixture
def seeds(tmp_path: Path) -> Path:
    path = tmp_path / "seeds.txt"
    path.write_text("# mine\n\nhttps://example.org/\n  http://example.net/a?b=c  \n")
    return path


def test_the_demo_runs_its_recipe_unchanged(tmp_path: Path) -> None:
    assert run_request(Home(tmp_path, PORTS), "demo", "", "", "").conf() == {"overrides": {}}


def test_a_moved_site_moves_the_seeds(tmp_path: Path) -> None:
    moved = run_request(Home(tmp_path, Ports(1, 2, 3, 20000)), "demo", "", "", "")
    assert moved.overrides["crawl.seeds"][1] == "http://packages.localhost:20001/"


def test_own_seeds_select_the_recipe_web_and_a_separate_version(tmp_path: Path, seeds: Path) -> None:
    home = Home(tmp_path, PORTS)
    first = run_request(home, "demo", "", str(seeds), CONTACT)
    assert first.recipe == "web"
    assert first.overrides == {
        "crawl.seed_files": [str(seeds)],
        "crawl.contact": CONTACT,
    }
    assert run_request(home, "demo", "", str(seeds), CONTACT) == first
    seeds.write_text("https://example.com/\n")
    assert run_request(home, "demo", "", str(seeds), CONTACT).version != first.version
    assert run_request(home, "demo", "v2", str(seeds), CONTACT).version == "v2"


def test_the_public_web_needs_a_contact(tmp_path: Path, seeds: Path) -> None:
    with pytest.raises(InputError, match="CONTACT="):
        run_request(Home(tmp_path, PORTS), "demo", "", str(seeds), "")


def test_a_long_list_with_invalid_lines_is_passed_to_the_crawl_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    lines = [f"https://example.org/{number}" for number in range(20_000)]
    path.write_text("\n".join([*lines, "ftp://example.org/", "example.org", "http://[::1", "https://a b/"]))
    conf = run_request(Home(tmp_path, PORTS), "demo", "", str(path), CONTACT).conf()
    assert len(str(conf)) < 1000


@pytest.mark.parametrize("content", [b"", b"# nothing\n\n", b"\xff\xfe\x00"])
def test_a_file_without_urls_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "seeds.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match="seeds file"):
        read_seeds(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt"):
        read_seeds(tmp_path / "none.txt")
