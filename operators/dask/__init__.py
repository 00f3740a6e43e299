"""A Dask cluster of a DAG run: its resources and how they are made; see `operators.dask_cluster`."""
