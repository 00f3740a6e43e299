"""Examples from JSON lines: one row, one example. Reads a file that a recipe names."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.core.stage import Part
from tasks.core.store import open_outside
from tasks.stages.finetune.config import ExamplesConfig
from tasks.stages.finetune.encoding import Segments, asked, instruction, preference

_RENDER = {"instructions": instruction, "preferences": preference}


def rows_of_file(config: ExamplesConfig, path: str, part: Part) -> Iterator[tuple[dict[str, Any], list[Segments], str]]:
    """Yields the rows of a file: their origin (line and id), their texts, and what they are asked.

    Counts all rows, and sets aside those that cannot be read.
    """
    with open_outside(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            part.count_in()
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("the line is no JSON object")
                texts = _RENDER[config.kind](row, config.template)
                name = str(row.get("id", ""))
                for text in (name, *(text for some in texts for text, _ in some)):
                    text.encode()  # raises for half of a surrogate pair, as JSON's escapes can have
            except (ValueError, RecursionError) as error:
                part.quarantine(f"{Path(path).name}:{number}", error)
                continue
            yield {"line": number, "id": name}, texts, asked(texts)
