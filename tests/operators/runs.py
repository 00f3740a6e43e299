"""What a DAG run has come to, read from Airflow's database. Not a test module."""


def states(run):
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def events_of(name):
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id).where(AssetModel.name == name)
        return [event.extra for event in session.scalars(query.order_by(AssetEvent.timestamp))]
