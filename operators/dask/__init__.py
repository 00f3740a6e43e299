"""The Dask cluster of a DAG run: manifests and API calls; see `operators.dask_cluster`."""
