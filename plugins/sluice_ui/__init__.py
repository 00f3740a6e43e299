"""The Sluice page in the Airflow UI: a read-only view of the artifacts of a store."""
