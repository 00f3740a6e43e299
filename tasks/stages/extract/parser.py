"""Interface of parsers: extraction of text from a kind of file or captured body that needs a reader of its own.

Implemented by `pdf` and by installed packages (`tasks.core.extensions`), run in the process of `guard` under its
limits.
"""

from typing import ClassVar

from tasks.core.config import Config
from tasks.stages.extract.row import Content, Rejected

__all__ = ["Content", "Parser", "Rejected"]


class Parser(Config):
    """Extracts the text of a file or body; its fields are the settings that affect the text.

    The module is imported at DAG parse time, so expensive imports belong into `parse`.
    """

    media_types: ClassVar[tuple[str, ...]] = ()
    """Media types of captured bodies that it reads, in lower case: "application/pdf". Files name their parser by
    kind."""

    library: ClassVar[str] = ""
    """Package that the text depends on, of a parser of Sluice; its version is part of the fingerprint."""

    revision: ClassVar[int] = 1
    """Of a parser of Sluice: raised where it gives another text of the same body. Part of the fingerprint from 2 on."""

    modules: ClassVar[tuple[str, ...]] = ()
    """What the process of `guard` imports before its first body, because it takes long."""

    @property
    def cpu_s(self) -> float | None:
        """CPU seconds that one body may take; None for those of a page."""
        return None

    @property
    def wait_s(self) -> float:
        """Seconds that one body may wait for other programs."""
        return 0.0

    def parse(self, data: bytes, name: str) -> Content:
        """Returns the text and the metadata of a body.

        Args:
            data: the body, unpacked.
            name: the path of a file below the fixed folder of its pattern, or the URL of a captured body.

        Raises:
            Rejected: it gives no document, for a reason in machine words, such as "pdf_encrypted". Any other exception
                sets the body aside as poison, with its cause.
        """
        raise NotImplementedError
