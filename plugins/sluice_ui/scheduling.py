"""What Airflow has planned and run of the DAGs of recipes: next and newest runs, and those that need a person.

Reads Airflow's database, in the API server.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from markupsafe import Markup

from sluice_ui.frame import badge

REJECTED = "Reject"
"""The answer that rejects, as Airflow's approval calls it; also that of a question that nobody answered in time."""

_COLORS = {"success": "good", "failed": "bad"}


@dataclass(frozen=True)
class Schedule:
    """The runs of the DAGs of a recipe.

    Attributes:
        due: time of the next scheduled run; None without one.
        paused: ids of the DAGs that are paused.
        dag_id: DAG of the newest run; "" if there was none.
        run_id: the newest run.
        state: its state, such as "success".
    """

    due: datetime | None = None
    paused: tuple[str, ...] = ()
    dag_id: str = ""
    run_id: str = ""
    state: str = ""

    @property
    def newest(self) -> Markup | None:
        """A link to the newest run in Airflow, with its state; None if there was none."""
        if not self.run_id:
            return None
        address = f"/dags/{quote(self.dag_id)}/runs/{quote(self.run_id, safe='')}"
        run = Markup('<a href="{}" target="_blank" rel="noopener">{}</a>').format(address, self.dag_id)
        return Markup("{} {}").format(run, badge(self.state, _COLORS.get(self.state, "")))


def schedules(recipes: Collection[str]) -> dict[str, Schedule]:
    """Returns the schedule of each recipe; two queries, whatever the number of recipes and runs."""
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    with create_session() as session:
        columns = (DagModel.dag_id, DagModel.is_paused, DagModel.next_dagrun_create_after)
        dags = [
            row for row in session.execute(select(*columns).where(~DagModel.is_stale)) if _recipe(row[0]) in recipes
        ]
        ids = select(func.max(DagRun.id)).where(DagRun.dag_id.in_([row[0] for row in dags])).group_by(DagRun.dag_id)
        chosen = select(DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.id).where(DagRun.id.in_(ids))
        runs = session.execute(chosen.order_by(DagRun.id)).all() if dags else []
    found = {}
    for name in recipes:
        own = [row for row in dags if _recipe(row[0]) == name]
        due = min((row[2] for row in own if row[2] and not row[1]), default=None)
        paused = tuple(sorted(row[0] for row in own if row[1]))
        last = next((row for row in reversed(runs) if _recipe(row[0]) == name), None)
        found[name] = Schedule(due, paused, *([last[0], last[1], str(last[2])] if last else []))
    return found


def open_runs(recipe: str, version: str) -> list[tuple[Markup, str]]:
    """Returns the runs of a version that wait for a person, were rejected or failed, as a link to the task, and why.

    The runs of a version are those whose note begins with it (`operators.run_notes`). Of the rejected and failed ones
    only those count that are the newest run of their DAG for this version.
    """
    from airflow.models.dagrun import DagRun, DagRunNote
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from sqlalchemy import func, or_, select

    begin = f"version {version}"
    of_version = (
        DagRun.dag_id.startswith(f"{recipe}.", autoescape=True),
        or_(DagRunNote.content == begin, DagRunNote.content.startswith(f"{begin},", autoescape=True)),
    )
    tasks = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id)
    answer = (HITLDetail.subject, HITLDetail.responded_at, HITLDetail.chosen_options)
    noted = DagRun.id == DagRunNote.dag_run_id
    of_run = (TaskInstance.dag_id == DagRun.dag_id) & (TaskInstance.run_id == DagRun.run_id)
    with create_session() as session:
        ids = select(func.max(DagRun.id)).join(DagRunNote, noted).where(*of_version).group_by(DagRun.dag_id)
        newest = set(session.scalars(ids))
        asked = session.execute(
            select(*tasks, DagRun.id, DagRun.state, *answer)
            .join(HITLDetail, HITLDetail.ti_id == TaskInstance.id).join(DagRun, of_run).join(DagRunNote, noted)
            .where(*of_version).order_by(DagRun.id)
        ).all()  # fmt: skip
        failed = session.execute(
            select(*tasks).distinct().join(DagRun, of_run).order_by(TaskInstance.dag_id, TaskInstance.task_id)
            .where(DagRun.id.in_(newest), DagRun.state == DagRunState.FAILED,
                   TaskInstance.state == TaskInstanceState.FAILED)
        ).all()  # fmt: skip
    found = []
    for dag, run, task, number, state, question, answered, chosen in asked:
        if answered is None and state == DagRunState.RUNNING:
            found.append((_task(dag, run, task, "/required_actions"), f"waits for an answer: {question}"))
        elif REJECTED in (chosen or ()) and number in newest:
            found.append((_task(dag, run, task, "/required_actions"), f"was answered with {REJECTED}: {question}"))
    return [*found, *((_task(*row), "failed") for row in failed)]


def _task(dag: str, run: str, task: str, tab: str = "") -> Markup:
    address = f"/dags/{quote(dag)}/runs/{quote(run, safe='')}/tasks/{quote(task)}{tab}"
    return Markup('<a href="{}" target="_blank" rel="noopener">{} of {}</a>').format(address, task, dag)


def _recipe(dag_id: str) -> str:
    return dag_id.partition(".")[0]
