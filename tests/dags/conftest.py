"""Gives these tests a separate Airflow home."""

from tests.airflow_home import airflow_db, dag_bag, recipes

__all__ = ["airflow_db", "dag_bag", "recipes"]
