"""Names of sources, as recipes write them. Imports pydantic only."""

from typing import Annotated

from pydantic import StringConstraints

SourceName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=40)]
"""Name of a source in mixtures, reports and files, and host in the URLs of documents without one."""
