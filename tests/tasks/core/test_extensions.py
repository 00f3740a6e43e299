"""Filters and parsers of a really installed package: named in a recipe, validated, run locally and on workers."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.core import extensions
from tasks.core.config import Problems
from tasks.core.errors import SluiceError
from tasks.filters.catalogue import annotator, filter_of
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.content import BodyHeaders, extract_capture
from tasks.stages.extract.parser import complete_settings, parse_body
from tasks.stages.extract.row import Rejected

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "filters.md"

RECIPE = """
name = "mine"

[[extract.files]]
name = "tables"
kind = "csv"
path = "{folder}/tables/*.csv"

[extract]
min_chars = 1
parsers.csv = {{ between = ", " }}

[annotate]
use = ["prose_score", "pii", "asking"]

[consolidate]
filters = ["asking"]
limits.asking = {{ max_share = 0.4 }}

[place]
store = "{folder}/store"
mlflow = ""
"""


def guide(language: str, beginning: str) -> str:
    """Returns the code block of the guide with this prefix; renames its filter, whose name could be taken."""
    found = re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.S)
    (block,) = (block for block in found if block.startswith(beginning))
    return str(block).replace("question_marks", "asking")


PARSER = guide("python", '"""Tables')


def wheel(folder: Path, version: str) -> Path:
    """Builds the package of the guide in the standard layout."""
    info = f"my_filters-{version}.dist-info"
    project = tomllib.loads(guide("toml", "[project]"))["project"]
    assert (project["name"], project["version"]) == ("my-filters", "1.0")
    entries = "".join(
        f"[{group}]\n" + "".join(f"{name} = {module}\n" for name, module in named.items())
        for group, named in project["entry-points"].items()
    )
    files = {
        "my_filters/__init__.py": '"""Filters of mine."""\n',
        "my_filters/asking.py": guide("python", '"""Texts that are mostly questions'),
        "my_filters/tables.py": PARSER,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: my-filters\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": entries,
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text.encode())}\n"
    path = folder / f"my_filters-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(name, text)
    return path


def installed(folder: Path, version: str = "1.0") -> Path:
    """Installs the package into a separate folder with pip."""
    site = folder / f"site-{version}"
    command = ("pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", "--target")
    subprocess.run([sys.executable, "-m", *command, str(site), str(wheel(folder, version))], check=True)
    return site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("package"))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "tables").mkdir()
    for name, text in {
        "asks": "who,and when?\nwhere,and why?\nhow,come?\n",
        "tells": "the baker,on Monday\nthe smith,at noon\n",
        "empty": "\n",
    }.items():
        (tmp_path / "tables" / f"{name}.csv").write_text(text)
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE.format(folder=tmp_path))
    return path


def shell(site: Path | None, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MLFLOW_TRACKING_URI": "", "PYTHONPATH": str(site or "")}
    return subprocess.run(
        [sys.executable, "-m", "tasks", *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


IN_ONE_PROCESS = """
import contextlib, io, json, sys
from tasks.run.recipe import Recipe
from tasks.run.shell import main
if __name__ == "__main__":
    said = []
    for command in json.loads(sys.argv[1]):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main(command) == 0, command
        said.append(json.loads(out.getvalue()))
    print(json.dumps([said, Recipe.load(sys.argv[2]).text]))
"""


def made(site: Path, recipe: Path, *stages: list[str]) -> tuple[list[dict[str, Any]], str]:
    """Returns what each stage prints, and the text of the recipe as it is passed on to a pod."""
    found = subprocess.run(
        [
            *(sys.executable, "-c", IN_ONE_PROCESS),
            json.dumps([[*stage, "--recipe", str(recipe)] for stage in stages]),
            str(recipe),
        ],
        cwd=ROOT,
        env={**os.environ, "MLFLOW_TRACKING_URI": "", "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not found.returncode, found.stderr
    said, text = json.loads(found.stdout.splitlines()[-1])
    return said, text


def test_a_package_adds_a_filter_and_a_parser_that_run_on_workers(site: Path, recipe: Path, tmp_path: Path) -> None:
    on_workers = "--set=place.workers=2"
    (extracted, _, _, documents), text = made(
        site, recipe, ["extract", on_workers], ["annotate", on_workers], ["dedup"], ["consolidate"]
    )
    assert extracted["rows"] == {"in": 3, "out": 2, "csv_empty": 1}
    assert documents["rows"] == {"in": 2, "out": 1, "asking_many": 1}
    import pyarrow.parquet as pq

    (kept,) = [
        row
        for path in (tmp_path / "store/mine/documents/dev/kept").iterdir()
        for row in pq.read_table(path).to_pylist()
    ]
    assert (kept["text"], kept["title"]) == ("the baker, on Monday\nthe smith, at noon", "tells.csv")
    held = {
        kind: json.loads((tmp_path / f"store/mine/{kind}/dev/.artifact.json").read_text())["config"]
        for kind in ("extracted", "attributes", "documents")
    }
    assert held["extracted"]["parsers"] == {"csv": {"between": ", ", "package": "my-filters 1.0"}}
    assert held["attributes"]["settings"]["asking"] == {"package": "my-filters 1.0"}
    assert "package" not in held["attributes"]["settings"]["pii"]
    assert held["documents"]["limits"]["asking"] == {"max_share": 0.4, "package": "my-filters 1.0"}
    # Another version of the package gives another fingerprint.
    newer = tmp_path / "site-1.1"
    zipfile.ZipFile(wheel(tmp_path, "1.1")).extractall(newer)
    drift = shell(newer, "annotate", "--recipe", str(recipe))
    assert drift.returncode == 2
    assert 'annotate.settings.asking.package was "my-filters 1.0" and is "my-filters 1.1"' in drift.stderr
    # At a new version only its group is measured again.
    again = shell(newer, "annotate", "--recipe", str(recipe), "--version=next", "--source-version=dev")
    assert not again.returncode, again.stderr
    assert "[mine/attributes@next] measures asking; prose_score, pii: as measured at dev" in again.stderr
    # A recipe passed on to a pod states the version.
    elsewhere = shell(newer, "annotate", "--recipe", text)
    assert elsewhere.returncode == 2
    assert (
        "asking needs my-filters 1.0, but my-filters 1.1 is installed here: install my-filters 1.0" in elsewhere.stderr
    )


def test_without_the_package_its_extensions_are_unknown(recipe: Path) -> None:
    found = shell(None, "annotate", "--recipe", str(recipe))
    assert found.returncode == 2
    for said in (
        'extract.files.0.kind: no kind "csv": choose from delta, docx, epub, html, iceberg, jsonl, metadata, '
        "parquet, pdf, text, warc.",
        'annotate.settings: no annotator "asking": choose from c4, ',
        'consolidate.limits: no filter "asking": choose from c4, ',
    ):
        assert f"mine.toml: {said}" in found.stderr


def test_invalid_settings_of_extensions_are_reported_like_others(site: Path, recipe: Path) -> None:
    limits = '--set=consolidate.limits.asking={ max_shar = 0.5, max_share = "much" }'
    found = shell(site, "consolidate", "--recipe", str(recipe), limits, '--set=extract.parsers.csv.betwen=","')
    for said in (
        'extract.parsers: csv has no setting betwen. Did you mean "between"?',
        'consolidate.limits: asking has no setting max_shar. Did you mean "max_share"?',
        "consolidate.limits.asking.max_share: Input should be a valid number (got 'much')",
    ):
        assert f"override: {said}" in found.stderr


def test_a_cluster_whose_workers_lack_the_package_is_refused(site: Path, tmp_path: Path) -> None:
    from tests.tasks.core.test_engine import Dask
    from tests.waiting import until

    program = "import sys; from tasks.core.engine import open_engine\nwith open_engine(sys.argv[1]) as e: print(e.name)"
    cluster = Dask(tmp_path)
    try:
        cluster.scheduler()
        worker = cluster.worker("--name", "bare")

        def opened() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-c", program, cluster.address],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(site)},
                capture_output=True,
                text=True,
                check=False,
            )

        assert "has extensions none, this task has my-filters 1.0" in opened().stderr
        worker.kill()
        worker.wait()
        cluster.worker("--name", "whole", before=str(site))
        found = until(lambda: (one := opened()) and not one.returncode and one)
        assert found.stdout == f"Dask at {cluster.address}\n"
    finally:
        cluster.end()


def test_the_shell_lists_extensions_with_their_packages(site: Path) -> None:
    listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in shell(site, "filters").stdout.splitlines()}
    assert re.fullmatch(r"annotator and filter +my-filters 1\.0", listed["asking"])
    assert re.fullmatch(r"parser of text/csv +my-filters 1\.0", listed["csv"])
    assert re.fullmatch(r"annotator +sluice", listed["prose_score"])


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Lets a test define the entry points: group, name, value, package."""
    found: list[tuple[str, str, str, str]] = []

    def entry_points(group: str) -> list[Any]:
        return [
            SimpleNamespace(
                name=name, value=value, dist=SimpleNamespace(name=package.split()[0], version=package.split()[1])
            )
            for of, name, value, package in found
            if of == group
        ]

    assert EntryPoint(name="a", value="b", group="c").value == "b"
    monkeypatch.setattr(extensions, "entry_points", entry_points)
    extensions.extensions_in.cache_clear()
    yield found
    extensions.extensions_in.cache_clear()


def test_an_extension_name_of_two_packages_is_refused_naming_both(entries: list[tuple[str, str, str, str]]) -> None:
    entries += [("sluice.filters", "c4", "tasks.filters.c4", "other-c4 2.0")]
    entries += [("sluice.filters", "twice", f"{name}.twice", f"{name} 1.0") for name in ("b", "a")]
    with pytest.raises(Problems, match=r'annotator "c4": Sluice and other-c4 2\.0 each provide one: uninstall all'):
        annotator("c4", {})
    with pytest.raises(Problems, match=r'filter "twice": a 1\.0 and b 1\.0 each provide one'):
        filter_of("twice", {})
    assert annotator("pii", {})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            "no.such.module",
            r'"mine" of toys 1\.0 cannot be imported \(ModuleNotFoundError: .*\): repair or uninstall it',
        ),
        ("tasks.filters.c4:C4", r"toys 1\.0 registers tasks\.filters\.c4:C4, not a module: register the module"),
        ("tasks.formats.documents.text", '"mine" is no filter'),
        ("tests.tasks.core.test_extensions", '"mine" is no filter'),
    ],
)
def test_an_unusable_extension_is_reported_with_its_package(
    entries: list[tuple[str, str, str, str]], value: str, said: str
) -> None:
    entries.append(("sluice.filters", "mine", value, "toys 1.0"))
    with pytest.raises(Problems, match=said):
        filter_of("mine", {})


def test_a_module_that_exits_is_reported_like_one_that_raises(
    entries: list[tuple[str, str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "unlicensed.py").write_text("import sys\nsys.exit('no licence')\n")
    entries.append(("sluice.filters", "mine", "unlicensed", "toys 1.0"))
    with pytest.raises(Problems, match=r"toys 1\.0 cannot be imported \(SystemExit: no licence\): repair or uninstall"):
        filter_of("mine", {})


def test_a_parser_cannot_have_the_name_of_a_built_in_kind(entries: list[tuple[str, str, str, str]]) -> None:
    entries.append(("sluice.parsers", "text", "tests.tasks.core.test_extensions", "toys 1.0"))
    with pytest.raises(ValueError, match='"text" is a kind of file that needs no parser: remove it'):
        ExtractConfig(parsers={"text": {}})


ODD = r"""
from datetime import datetime, timedelta, timezone

from tasks.stages.extract.parser import Content, Parser, Rejected


class Sealed(Rejected):
    def __init__(self, word, page):
        super().__init__(word)


class Odd(Parser):
    def parse(self, data, name):
        if data == b"sealed":
            raise Sealed("odd_sealed", 3)
        if data == b"spoken":
            raise Rejected("It is sealed!")
        noon = datetime(2026, 1, 2, 12, tzinfo=timezone(timedelta(hours=2)))
        return {
            b"text": "a text",
            b"number": Content(text=7),
            b"date": Content(text="a", published="2026-01-02"),
            b"licence": Content(text="a", licence=None),
            b"whole": Content(text="a \ud800\r\nb", title="t ", licence="L\0", published=noon),
        }[data]
"""


def test_an_invalid_result_of_a_parser_rejects_only_its_file(
    entries: list[tuple[str, str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "odd_files.py").write_text(ODD)
    entries.append(("sluice.parsers", "odd", "odd_files", "toys 1.0"))
    settings = json.dumps(complete_settings(["odd"], {})["odd"])
    found = parse_body("odd", settings, b"whole", "a.odd")
    assert (found.text, found.title, found.licence) == ("a\nb", "t", "L")
    assert found.published == datetime(2026, 1, 2, 10, tzinfo=UTC)
    with pytest.raises(Rejected, match="odd_sealed") as sealed:
        parse_body("odd", settings, b"sealed", "a.odd")
    assert type(sealed.value) is Rejected, "no class of the package comes back from the process that runs it"
    for data, error in {b"text": TypeError, b"number": Exception, b"date": TypeError, b"licence": Exception}.items():
        with pytest.raises(error) as raised:
            parse_body("odd", settings, data, "a.odd")
        assert not isinstance(raised.value, Rejected | SluiceError)
    with pytest.raises(ValueError, match=r"\"odd\" rejects with 'It is sealed!', which is not an identifier like"):
        parse_body("odd", settings, b"spoken", "a.odd")


def test_two_parsers_of_one_media_type_are_refused(
    entries: list[tuple[str, str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("first_tables", "second_tables"):
        (tmp_path / f"{name}.py").write_text(PARSER)
        entries.append(("sluice.parsers", name, name, "toys 1.0"))
    with pytest.raises(Problems, match='"first_tables" and "second_tables" both read text/csv: leave one of them out'):
        complete_settings(["first_tables"], {"second_tables": {}})
    assert list(complete_settings(["second_tables"], {})) == ["second_tables"]


def test_a_captured_body_is_passed_to_the_parser_of_its_media_type(
    entries: list[tuple[str, str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "captured_tables.py").write_text(PARSER)
    entries.append(("sluice.parsers", "tables", "captured_tables", "toys 1.0"))
    choices = ExtractConfig(parsers={"tables": {"between": "|"}}).options()
    sent = BodyHeaders("http://a.example/t.csv", ("text/csv; charset=utf-8",), language="de")
    found = extract_capture(b"a,b\r\nc,d\r\n", sent, choices)
    assert (found.text, found.title, found.language_hint) == ("a|b\nc|d", "http://a.example/t.csv", "de")
    with pytest.raises(Rejected, match="csv_empty"):
        extract_capture(b" ", sent, choices)
    with pytest.raises(Rejected, match="mime_text_other"):
        extract_capture(b"a,b", sent, ExtractConfig().options())
