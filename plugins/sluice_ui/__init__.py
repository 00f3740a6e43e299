"""The Sluice page in the Airflow UI: a read-only view of the artifacts of a store."""

import os

# Before the first import of Arrow, whose own pools keep what a page has read; malloc can return it (`access.respond`).
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
