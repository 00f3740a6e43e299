"""Airflow operators that run the stages of `tasks`. A DAG file imports from here and from Airflow only."""
