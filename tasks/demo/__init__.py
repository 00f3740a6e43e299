"""The demo: the stack on one machine, a small static web, and a run through Airflow's REST API.

Reads the environment (ports, folders) and its checkout; writes below the state folder `.sluice/`. Commands:
`python -m tasks.demo up|down|status|run|site`. Uses Airflow, MLflow and Dask only as processes and over HTTP.
"""
