"""One demo run from start to report: starts the services, triggers and monitors the chain, prints the report."""

from tasks.core.store import Store
from tasks.demo import stack
from tasks.demo.drive import Airflow, Chain
from tasks.demo.home import Home
from tasks.demo.report import RunArtifacts, report
from tasks.demo.screen import Screen
from tasks.demo.seeds import RunRequest
from tasks.run.recipe import find_recipe


def run(home: Home, request: RunRequest) -> None:
    """Runs the chain of `request.recipe` through Airflow and prints the report.

    Raises:
        SluiceError: a service does not start, or a task of the chain failed; one line with where to look.
    """
    recipe = find_recipe(request.recipe)
    stack.up(home)
    with Airflow(home.airflow_url, home.password()) as airflow, Screen() as screen:
        chain = Chain(airflow, recipe.name, dags=recipe.parts)
        chain.wait_for_dags()
        chain.start(request.conf())
        for dag_runs in chain.follow():
            screen.show(dag_runs)
    artifacts = RunArtifacts(Store(home.store), recipe.name, request.version or recipe.version)
    for line in report(artifacts, chain.dag_runs, recipe.parts):
        print(line)
    print(f"\n{stack.addresses(home)}\nStop everything: make down")
