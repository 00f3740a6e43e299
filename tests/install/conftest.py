"""The wheel of the checkout, for all tests of it."""

from pathlib import Path

import pytest

from tests.install.stranger import build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))
