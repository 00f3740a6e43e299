"""The rendered folders of k8s/ and its other files, read once."""

from pathlib import Path

import pytest
import yaml

from tests.airflow_home import airflow_db, dag_bag, recipes
from tests.k8s.chart import AirflowChart
from tests.k8s.definitions import definitions
from tests.k8s.render import render

__all__ = ["airflow_db", "dag_bag", "definitions", "recipes"]

K8S = Path(__file__).parents[2] / "k8s"
FOLDERS = ("base", "overlays/kind", "overlays/eks", "overlays/eks-fixed")
TEMPLATES = tuple(sorted(path.name for path in (K8S / "pods").glob("*.yaml")))


@pytest.fixture(scope="session")
def rendered():
    """A function that returns the objects of a folder below k8s/."""
    made = {folder: render(K8S / folder) for folder in FOLDERS}
    return made.__getitem__


@pytest.fixture(scope="session")
def templates():
    """Pod templates by file name."""
    return {name: yaml.safe_load((K8S / "pods" / name).read_text()) for name in TEMPLATES}


@pytest.fixture(scope="session")
def values():
    """A function that returns the values of a file in k8s/helm."""
    return lambda name: yaml.safe_load((K8S / "helm" / name).read_text())


@pytest.fixture(scope="session")
def chart(shared_data):
    """The schema and default values of Airflow's chart."""
    return AirflowChart(shared_data)
