"""Limits of a language as tables of a recipe, and as an entry of the file of shipped values.

Reads reference text (JSON lines); writes, if asked, the file of values (`tasks/filters/limits.json`).
"""

import io
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.core.errors import InputError
from tasks.filters.language_limits import FEWEST_DOCUMENTS, Spread, Text, Values, derive
from tasks.filters.language_values import FILE


def values_of(language: str, paths: Sequence[str]) -> Values:
    """Returns the values of a language from files of reference text.

    Raises:
        InputError: a file cannot be read, or there is too little text.
    """
    texts = [text for path in paths for text in _texts(path)]
    if len(texts) < FEWEST_DOCUMENTS:
        cause = f"{', '.join(paths)}: {len(texts)} pages are too few to derive limits from"
        raise InputError(cause, f"give {FEWEST_DOCUMENTS} pages or more")
    english = {} if language == "en" else _content(FILE)["languages"]["en"]["reference"]["spreads"]
    return derive(language, texts, {path: Spread(*spread) for path, spread in english.items()})


def write(language: str, values: Values, path: str) -> None:
    """Adds the values to a file of values, or replaces those of the language; a new file begins as a copy."""
    file = Path(path)
    content = _content(file if file.exists() else FILE)
    content["derived"] = datetime.now(UTC).date().isoformat()
    entry = {"reference": values.reference, "stop_words": values.stop_words, "limits": values.limits}
    content["languages"] = dict(sorted({**content["languages"], language: entry}.items()))
    file.write_text(render(content))


def render(content: dict[str, Any]) -> str:
    """Returns the file of values as JSON with a line for each field of a language."""
    head = {key: value for key, value in content.items() if key != "languages"}
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    languages = []
    for code, entry in content["languages"].items():
        fields = [f"   {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
        languages.append(f"  {json.dumps(code)}: {{\n" + ",\n".join(fields) + "\n  }")
    return "{\n" + ",\n".join([*lines, ' "languages": {\n' + ",\n".join(languages) + "\n }"]) + "\n}\n"


def toml(language: str, values: Values) -> str:
    """Returns the values as tables of a recipe."""
    lines = ["[annotate.settings.gopher_quality.stop_words]"]
    lines.append(f"{_toml(language)} = {_toml(values.stop_words)}")
    for name, limits in values.limits.items():
        lines += ["", f"[consolidate.limits.lang.{language}.{name}]"]
        lines += [f"{key} = {_toml(value)}" for key, value in limits.items()]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def _texts(path: str) -> Iterator[Text]:
    import pyarrow as pa

    try:
        with pa.input_stream(path, compression="detect") as file:
            for line in io.TextIOWrapper(file, encoding="utf-8"):
                row = json.loads(line)
                yield Text(row["text"], row.get("source", ""))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error})", "give JSON lines with the field text") from None


def _content(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    return content
