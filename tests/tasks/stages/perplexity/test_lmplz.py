"""The model equals that of KenLM's lmplz for the same sentences (if lmplz is installed).

`make soak` builds it into the environment. Run it after a change of the training of n-gram models.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.filters.ngram.files import read_arpa
from tasks.filters.ngram.words import words
from tests.tasks.stages.perplexity.learning import babble, learnt
from tests.tasks.stages.perplexity.test_estimate import table

LMPLZ = shutil.which("lmplz") or shutil.which("lmplz", path=str(Path(sys.executable).parent)) or ""
REASON = "lmplz is not here, so nothing compares our training with its own: run tests/kenlm.sh (needs cmake and Boost)"
pytestmark = [pytest.mark.soak, pytest.mark.skipif(not LMPLZ, reason=REASON)]


@pytest.mark.parametrize(("order", "prune"), [(3, (0, 0, 0)), (4, (0, 0, 1, 1)), (5, (0, 0, 0, 1, 2))])
def test_lmplz_estimates_the_same_model(tmp_path: Path, order: int, prune: tuple[int, ...]) -> None:
    texts = babble(2000)
    lines = [" ".join(sentence) for text in texts for sentence in words(text)]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    files = ["--text", str(tmp_path / "text"), "--arpa", str(tmp_path / "m.arpa"), "-T", str(tmp_path)]
    subprocess.run(
        [LMPLZ, "-o", str(order), "-S", "100M", "--prune", *map(str, prune), *files], check=True, capture_output=True
    )
    theirs, ours = table(read_arpa(str(tmp_path / "m.arpa"))), table(learnt(texts, order, prune).ngrams)
    assert theirs.keys() == ours.keys()
    # The only difference: lmplz gives <s>, which is never predicted, the probability 1.
    del theirs[("<s>",)], ours[("<s>",)]
    for gram, (prob, back) in theirs.items():
        assert ours[gram] == pytest.approx((prob, back), abs=1e-5), gram
