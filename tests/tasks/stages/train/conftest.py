"""Token shards and a plan, shared by the tests of the stage and of the trainer.

Run the soak tests after a change of the stage or of how it passes a layout on.
"""

from tests.tasks.trainer.conftest import made, one_thread

__all__ = ["made", "one_thread"]
