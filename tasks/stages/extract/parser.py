"""What a parser is: it makes a text of one kind of file or captured body that Sluice itself does not read.

Implemented by installed packages (`tasks.core.extensions`), run in the process of `guard` under its limits.
"""

from typing import ClassVar

from tasks.core.config import Config
from tasks.stages.extract.row import Content, Rejected

__all__ = ["Content", "Parser", "Rejected"]


class Parser(Config):
    """Makes a text of a file or body; its fields are the settings that change the text.

    Recipes are read at DAG parse time and import the module, so what is heavy is imported inside `parse`.
    """

    media_types: ClassVar[tuple[str, ...]] = ()
    """Media types of captured bodies that it reads, in lower case: "application/pdf". Files are given to it by name."""

    def parse(self, data: bytes, name: str) -> Content:
        """Returns what extraction finds in a body: its text, and what the body says of itself.

        Args:
            data: the body, unpacked.
            name: the path of a file below the fixed folder of its pattern, or the URL of a captured body.

        Raises:
            Rejected: it gives no document, for a reason in machine words, such as "pdf_encrypted". Any other exception
                sets the body aside as poison, with its cause.
        """
        raise NotImplementedError
