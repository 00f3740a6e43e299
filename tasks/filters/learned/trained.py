"""Compatibility of annotators with the models that this pipeline trains.

Reads descriptions of models. Light to import, like everything that recipes import.
"""


def misfit(annotator: str, method: str, positive: str) -> tuple[str, str] | None:
    """Returns why an annotator cannot use a model, and the remedy; None where it can.

    Args:
        annotator: "classifier", "topic" or "quality".
        method: how the model was trained, `fasttext` or `signals`.
        positive: its positive label; "" where it has none.

    >>> misfit("classifier", "signals", "good")
    ('is of the method signals', 'ask it through "quality"')
    >>> misfit("topic", "fasttext", "")
    """
    fits, other = ("signals", "classifier") if annotator == "quality" else ("fasttext", "quality")
    if method != fits:
        return f"is of the method {method}", f'ask it through "{other}"'
    if annotator == "classifier" and not positive:
        return "has no positive label", 'give it one, or ask it through "topic"'
    return None
