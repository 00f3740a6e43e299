"""Runs a stage of `tasks` from Airflow: one module per place. A DAG file imports from here and from Airflow only."""
