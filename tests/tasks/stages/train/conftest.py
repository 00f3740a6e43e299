"""Token shards and a plan that the tests of the stage share with those of the trainer.

Change the stage, or how it passes a layout on, and run the soak part.
"""

from tests.tasks.trainer.conftest import made, one_thread

__all__ = ["made", "one_thread"]
