"""The demo of fine-tuning: manuals as PDF files -> chunks -> adapters on a trained model -> scores and an answer.

Starts the services, writes the manuals, makes a small base where there is none, triggers the DAGs of the recipe
`manuals`, and prints the report.
"""

from dataclasses import dataclass

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import newest
from tasks.core.store import Store
from tasks.demo import stack
from tasks.demo.drive import Airflow, Chain, DagRunStatus
from tasks.demo.home import Home
from tasks.demo.manuals import write_manuals
from tasks.demo.report import RunArtifacts
from tasks.demo.run import RunRequest, Screen, run_request
from tasks.demo.tuned_report import tuning_report
from tasks.formats.tokens.origin import tokenizer_of
from tasks.run.recipe import Recipe, find_recipe

RECIPE = "manuals"
BASES = ("demo", "smoke")
"""Recipes whose newest model can be the base, the first that has one; the last one is run where none has."""


@dataclass(frozen=True)
class Base:
    """The model to begin from, and its tokenizer."""

    checkpoint: Artifact
    tokenizer: str

    @classmethod
    def of(cls, checkpoint: Artifact) -> "Base":
        """Returns the base of a checkpoint; raises InputError where its records do not lead to its tokenizer."""
        tokenizer = tokenizer_of(checkpoint)
        if tokenizer is None:
            raise InputError(f"the tokenizer of {checkpoint.address} is gone", "name another model with BASE=")
        return cls(checkpoint, checkpoint.store.url(f"{tokenizer.path}/tokenizer.json"))

    def request(self, home: Home) -> RunRequest:
        """Returns the run of RECIPE with this base; other bases are other versions."""
        address = self.checkpoint.address
        files = {"name": RECIPE, "kind": "pdf", "path": f"{home.root / RECIPE}/*.pdf"}
        overrides = {"extract.files": [files], "tokenizer.file": self.tokenizer, "finetune.base": str(address)}
        return RunRequest(RECIPE, f"{address.name.partition('/')[0]}-{address.version}", overrides)


def finetune(home: Home, base: str) -> None:
    """Fine-tunes `base` ("demo/checkpoint@dev"; "": the newest of BASES) with the manuals, and prints the report.

    Raises:
        SluiceError: a service does not start, there is no such base, or a task failed; one line with where to look.
    """
    recipe, store = find_recipe(RECIPE), Store(home.store)
    manuals = write_manuals(home.root / RECIPE)
    stack.up(home)
    with Airflow(home.airflow_url, home.password()) as airflow, Screen() as screen:
        checkpoint = _asked(store, base) if base else _newest(store) or _made(home, store, airflow, screen)
        request = Base.of(checkpoint).request(home)
        dag_runs = [
            run
            for dags in (recipe.parts, ("finetune",))
            for run in _followed(Chain(airflow, RECIPE, dags=dags), request, screen)
        ]
    for line in tuning_report(RunArtifacts(store, RECIPE, request.version), len(manuals), dag_runs):
        print(line)
    print(f"\n{stack.addresses(home)}\nStop everything: make down")


def _asked(store: Store, base: str) -> Artifact:
    return Artifact.open_at(store, ArtifactId.parse(base))


def _newest(store: Store) -> Artifact | None:
    found = (newest(store, f"{name}/checkpoint") for name in BASES)
    return next((checkpoint for checkpoint in found if checkpoint), None)


def _made(home: Home, store: Store, airflow: Airflow, screen: Screen) -> Artifact:
    """Trains a small model from the seeds on, and returns its checkpoint."""
    recipe: Recipe = find_recipe(BASES[-1])
    request = run_request(home, recipe.name, "", "", "")
    _followed(Chain(airflow, recipe.name, dags=recipe.parts), request, screen)
    return Artifact.open_at(store, ArtifactId(f"{recipe.name}/checkpoint", recipe.version))


def _followed(chain: Chain, request: RunRequest, screen: Screen) -> list[DagRunStatus]:
    """Runs a chain to its end; returns its DAG runs."""
    chain.wait_for_dags()
    chain.start(request.conf())
    for dag_runs in chain.follow():
        screen.show(dag_runs)
    return chain.dag_runs
