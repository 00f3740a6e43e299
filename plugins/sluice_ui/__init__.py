"""The Sluice page in the Airflow UI: what the ledger knows, for people. Reads the store, writes nothing."""
