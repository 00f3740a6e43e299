"""The Sluice page in the Airflow UI: view of the artifacts of a store. Reads the store, writes nothing."""
