"""DaskStageOperator: the same stage, its parts mapped over the Dask cluster of the recipe's place.

Used for the part-wise stages of `corpus` and `tokens`. Where `[place.dask]` names no cluster the parts run in
processes of the worker, so one DAG file serves laptop and cluster.
"""

from operators.stage import StageOperator


class DaskStageOperator(StageOperator):
    """Runs a stage here and its parts on Dask."""

    ui_color = "#f3e7d3"
    on_dask = True
