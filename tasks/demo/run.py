"""One demo run from start to report: services up, chain triggered and followed, results shown."""

from tasks.core.store import Store
from tasks.demo import stack
from tasks.demo.airflow_api import Airflow
from tasks.demo.drive import Chain
from tasks.demo.home import Home
from tasks.demo.report import Made, report
from tasks.demo.screen import Screen
from tasks.demo.seeds import Order
from tasks.run.recipe import find_recipe


def run(home: Home, order: Order) -> None:
    """Runs the chain of `order.recipe` through Airflow and prints the report.

    Raises:
        SluiceError: a service does not start, or a task of the chain failed; one line with where to look.
    """
    recipe = find_recipe(order.recipe)
    stack.up(home)
    with Airflow(home.airflow_url, home.password()) as airflow, Screen() as screen:
        chain = Chain(airflow, recipe.name, dags=recipe.parts)
        chain.wait_for_dags()
        chain.start(order.conf())
        for legs in chain.follow():
            screen.show(legs)
    made = Made(Store(home.store), recipe.name, order.version or recipe.version)
    for line in report(made, chain.legs, recipe.parts):
        print(line)
    print(f"\n{stack.addresses(home)}\nStop everything: make down")
