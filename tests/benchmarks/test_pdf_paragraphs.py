"""Paragraph breaks of PDF files are scored against their sources; on twelve foreign documents the score holds."""

import os
import shutil
from pathlib import Path

import pytest

from benchmarks.pdf_paragraphs import TWELVE, Manual, Unit, html_units, score_of, scored, tex_units

MEAN = 0.95
LEAST = 0.93
"""F1 of the breaks: the mean of the twelve, and of each, at least."""


def test_a_displayed_formula_and_a_figure_end_no_paragraph_of_a_source_and_code_does() -> None:
    source = r"""
\begin{document}
\section{The ice}
It was cold \citep{one}, and % a remark
\begin{equation} x = 1 \end{equation}
where $x$ is \emph{the} ice.\footnote{It is said.}
\begin{figure}
\caption{Nothing}
\end{figure}
It went on.
<<plot>>=
plot(x)
@
Then it ended.

\begin{itemize}
\item One way
\item[Two] ways
\end{itemize}
\paragraph{After it}

nothing came.
\end{document}
"""
    assert [" ".join(unit.words) for unit in tex_units(source)] == [
        "the ice",
        "it was cold and where is the ice it went on",
        "it is said",
        "then it ended",
        "one way",
        "two ways",
        "after it nothing came",
    ]


def test_html_is_read_chapter_by_chapter_and_a_definition_may_share_the_line_of_its_term(
    tmp_path: Path,
) -> None:
    pages = {
        "index": "<p>All of it<ul><li><a href=a.html>First</a><li><a href=b.html>Last</a></ul>",
        "a": "<div class=header><a href=b.html>Next</a></div><dl><dt>Ice<dd><p>is cold<p>and<pre>x</pre>hard</dl>"
        "<a href=c.html>in it</a>",
        "b": "<p>one<br>two",
        "c": "<h2>Within</h2>",
    }
    for name, body in pages.items():
        (tmp_path / f"{name}.html").write_text(f"<html><body>{body}</body></html>")
    found = [(" ".join(unit.words), unit.soft) for unit in html_units(tmp_path / "index.html")]
    texts = ["all of it", "first", "last", "ice", "is cold", "and", "hard", "in it", "within", "one", "two"]
    assert found == [(text, text == "is cold") for text in texts]


def test_breaks_are_counted_between_words_adjacent_in_both_texts() -> None:
    gold = [
        Unit(["the", "ship", "went", "to", "sea", "with", "nine", "men"]),
        Unit(["none", "of", "them", "had", "seen", "the", "ice"], soft=False),
    ]
    term = [*gold, Unit(["ice"]), Unit(["is", "frozen", "water", "that", "is", "cold"], soft=True)]
    right = [unit.words for unit in term]
    assert scored(term, right).f1 == 1.0
    assert scored(term, [*right[:2], right[2] + right[3]]).f1 == 1.0
    assert scored(gold, [right[0] + right[1]]).missed == 1
    wrong = scored(gold, [right[0][:4], right[0][4:], right[1]])
    assert (wrong.right, wrong.wrong, wrong.missed) == (1, 1, 0)


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Debian packages; SLUICE_DEBIAN_DOCS can name a folder that persists between runs."""
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here: the packages with PDF files cannot be fetched")
    kept = os.environ.get("SLUICE_DEBIAN_DOCS")
    return Path(kept) if kept else tmp_path_factory.mktemp("packages")


@pytest.mark.soak
def test_paragraphs_of_twelve_foreign_documents_break_where_their_sources_do(packages: Path) -> None:
    found = {}
    for manual in TWELVE:
        found[manual.name] = f1_of(manual, packages)
    assert sum(found.values()) / len(found) >= MEAN, found
    assert min(found.values()) >= LEAST, found


def f1_of(manual: Manual, packages: Path) -> float:
    try:
        score = score_of(manual, packages)
    except OSError as error:
        pytest.skip(str(error))
    assert score.covered > 0.7, f"{manual.name}: {score.covered:.2f} of the words of its source are in the text"
    return score.f1
