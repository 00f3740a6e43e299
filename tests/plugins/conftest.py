"""Gives these tests an Airflow of their own."""

from tests.airflow_home import airflow_db, dag_bag, recipes

__all__ = ["airflow_db", "dag_bag", "recipes"]
