"""The demo: a local stack of services, a small static web site, and a run through Airflow's REST API.

Reads the environment (ports, folders) and its checkout; writes below the state folder `.sluice/`. Commands:
`python -m tasks.demo up|down|status|run|finetune|site`. Uses Airflow, MLflow and Dask only as processes and over HTTP.
"""
