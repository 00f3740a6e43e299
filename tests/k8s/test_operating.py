"""docs/operating.md: the commands of Airflow and MLflow exist with their options, the objects are valid."""

import re
import shlex

import pytest
import yaml

from tests.k8s.conftest import K8S
from tests.k8s.definitions import is_custom

PAGE = (K8S.parent / "docs" / "operating.md").read_text()
COMMANDS = sorted(set(re.findall(r"(?:^\s*|-- |`)(airflow [a-z]+ [^`\n#]+|mlflow db [^`\n#]+)", PAGE, re.M)))


def test_the_page_has_commands_of_both_programs():
    assert {one.split()[0] for one in COMMANDS} == {"airflow", "mlflow"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_the_options_that_it_is_given(command):
    program, *arguments = shlex.split(command)
    if program == "airflow":
        from airflow.cli.cli_parser import get_parser

        get_parser().parse_args(arguments)
    else:
        from click.testing import CliRunner
        from mlflow.cli import cli

        assert CliRunner().invoke(cli, [*arguments[:2], "--help"]).exit_code == 0


def test_the_queues_are_valid_and_have_the_resources_and_flavors_of_the_base(definitions, rendered):
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    queue, local = yaml.safe_load_all(text)
    assert [definitions.errors(one) for one in (queue, local) if is_custom(one)] == [[], []]
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    [base] = [one for one in rendered("base") if one["kind"] == "ClusterQueue"]
    [group], [ours] = queue["spec"]["resourceGroups"], base["spec"]["resourceGroups"]
    assert group["coveredResources"] == ours["coveredResources"]
    assert {one["name"] for one in group["flavors"]} <= {one["name"] for one in ours["flavors"]}
    assert [one["name"] for one in group["flavors"][0]["resources"]] == group["coveredResources"]


def test_every_file_and_variable_of_the_page_exists():
    for path in re.findall(r"(?<!tests/)\bk8s/[\w./-]+", PAGE):
        assert (K8S.parent / path.rstrip(".")).exists(), path
    versions = (K8S / "versions.env").read_text()
    assert all(f"{name}=" in versions for name in re.findall(r"\$(\w+_CHART)", PAGE))
