"""kind.sh: its messages about missing requirements, its order of commands, and no secret values in arguments.

Docker, kind, kubectl and helm are replaced by scripts that record their calls. The effect of the real commands
is not tested.
"""

import json
import os
import subprocess

import pytest

from tests.k8s.conftest import K8S

SCRIPT = K8S / "kind.sh"
TOOLS = ("docker", "kind", "kubectl", "helm")
ANSWERS = """
case "$0 $1 $2" in
  */helm\\ version*) echo v3.19.2 ;;
  */kind\\ version*) echo kind v0.31.0 go1.25 linux/amd64 ;;
  */kubectl*) case " $* " in *" get secret "*) exit 1 ;; *" apply --filename - "*) cat >> "$CALLS.stdin" ;; esac ;;
esac
"""


@pytest.fixture
def machine(tmp_path):
    """A function that runs kind.sh on a machine with the given tools; returns the process and the recorded calls."""
    calls = tmp_path / "calls"
    calls.touch()
    commands = tmp_path / "bin"
    commands.mkdir()
    for plain in ("bash", "dirname", "cat", "head", "od", "tr", "base64", "sort", "cut", "grep", "env"):
        (commands / plain).symlink_to(subprocess.check_output(["which", plain], text=True).strip())

    def run(*arguments, tools=TOOLS, **answers):
        for tool in tools:
            body = answers.get(tool, "") + ANSWERS
            (commands / tool).write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "{tool} $*" >> "$CALLS"\n{body}')
            (commands / tool).chmod(0o755)
        done = subprocess.run(
            [SCRIPT, *arguments], env={"PATH": str(commands), "CALLS": str(calls)}, capture_output=True, text=True
        )
        return done, calls.read_text().splitlines()

    run.stdin = lambda: (tmp_path / "calls.stdin").read_text()
    return run


@pytest.mark.parametrize("missing", TOOLS)
def test_a_missing_tool_is_named_with_its_url_before_anything_runs(machine, missing):
    done, calls = machine("up", tools=[tool for tool in TOOLS if tool != missing])
    assert done.returncode == 2
    assert f"sluice: {missing} is not on PATH. Install it: https://" in done.stderr
    assert not [call for call in calls if "create" in call or "apply" in call or "build" in call]


def test_a_docker_daemon_that_does_not_answer_is_reported(machine):
    done, _ = machine("up", docker="exit 1\n")
    assert done.returncode == 2
    assert "docker does not answer" in done.stderr


def test_an_outdated_helm_is_refused(machine):
    done, calls = machine("up", helm="[ $1 = version ] && echo v3.9.4 && exit\n")
    assert "helm is 3.9.4; 3.19 or newer is needed" in done.stderr
    assert not [call for call in calls if "upgrade" in call]


def test_without_arguments_it_prints_its_usage_and_changes_nothing(machine):
    done, calls = machine()
    assert (done.returncode, calls) == (2, [])
    assert "kind.sh up, or kind.sh down" in done.stderr


def place(calls, part):
    found = [at for at, call in enumerate(calls) if part in call]
    assert found, part
    return found[0]


def test_everything_is_created_before_its_dependents(machine):
    done, calls = machine("up")
    assert done.returncode == 0, done.stderr
    order = [
        "kind create cluster",
        "docker build --file k8s/images/airflow.Dockerfile",
        "kind load docker-image",
        "upgrade --install jobset",
        "upgrade --install kueue",
        "k8s/base/namespaces.yaml",
        "upgrade --install dask-operator",
        "apply --filename -",
        "apply --kustomize k8s/overlays/kind",
        "exec store-0",
        "upgrade --install airflow",
        "airflow pools import",
    ]
    places = [place(calls, part) for part in order]
    assert places == sorted(places)
    assert "http://localhost:8080" in done.stdout


def test_every_command_names_the_cluster(machine):
    _, calls = machine("up")
    for call in calls:
        if call.startswith("kubectl"):
            assert call.startswith("kubectl --context kind-sluice ")
        if call.startswith("helm") and "version --template" not in call:
            assert call.startswith("helm --kube-context kind-sluice ")


def test_no_value_of_a_secret_is_an_argument_of_a_command(machine):
    import yaml

    done, calls = machine("up")
    said = [line for line in machine.stdin().splitlines() if line.startswith("  ")]
    values = [yaml.safe_load(line) for line in said]
    secrets = [value for one in values for value in one.values() if value != "kind"]
    assert len(secrets) >= 9
    for value in [*secrets, *json.loads(next(v for one in values for v in one.values() if "admin" in v)).values()]:
        assert value not in "\n".join(calls) + done.stdout


def test_a_failing_command_ends_the_script(machine):
    done, calls = machine("up", docker="[ $1 = build ] && exit 1\n")
    assert done.returncode != 0
    assert not [call for call in calls if "upgrade" in call]


def test_down_removes_only_this_cluster(machine):
    done, calls = machine("down")
    assert done.returncode == 0
    assert calls == ["kind delete cluster --name sluice"]


def test_the_script_is_executable():
    assert os.access(SCRIPT, os.X_OK)
