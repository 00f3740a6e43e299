"""Stages that tests of this folder run train in the process of the tests; one MLflow server for all of them."""

from tests.tasks.run.tracking.servers import server
from tests.tasks.trainer.in_process import in_process

__all__ = ["in_process", "server"]
