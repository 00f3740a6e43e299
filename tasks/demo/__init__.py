"""The two-command demo: the stack on one machine, a small unmoving web, and a run through Airflow's REST API.

Reads the environment (ports, folders) and the repository it stands in; writes below the state folder `.sluice/`.
`make` and people use it as `python -m tasks.demo up|down|status|run|site`. It speaks to Airflow, MLflow and Dask only
as processes and over HTTP.
"""
