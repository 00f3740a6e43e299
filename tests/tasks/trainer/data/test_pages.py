"""The structure of a page is in the tokens of a training step: its table, formula and code."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tasks.core.stage import Inputs
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import read_page
from tasks.trainer.data.batches import Batches
from tasks.trainer.spec import make_spec
from tests.corpora import kept_document, tokens_in
from tests.tasks.trainer.small_run import small_config

STORY = "<p>The mass of a door is the mass of its parts, and most of it is in the wood from which it was once made.</p>"
PAGE = f"""<html><body><nav><a href=/>Home</a></nav><article><h1>Doors</h1>{STORY * 4}
<table><tr><th>Part</th><th>Mass</th></tr><tr><td>Hinge</td><td>3 kg</td></tr><tr><td>Lock</td><td></td></tr></table>
{STORY}<p>Energy is <math><semantics><mrow><mi>E</mi><mo>=</mo><mi>m</mi><msup><mi>c</mi><mn>2</mn></msup></mrow>
<annotation encoding="application/x-tex">E=mc^2</annotation></semantics></math>, at 10<sup>8</sup> m/s.</p>
<pre><code class="language-python">def mass(parts):
    return sum(parts)


def main():
    pass</code></pre>{STORY * 4}</article></body></html>"""


@pytest.mark.parametrize(
    ("form", "structure"),
    [
        (
            "markdown",
            "| Part | Mass |\n| --- | --- |\n| Hinge | 3 kg |\n| Lock |  |\n\n{story}\n\n"
            "Energy is $E=mc^2$, at 10⁸ m/s.\n\n"
            "```python\ndef mass(parts):\n    return sum(parts)\n\n\ndef main():\n    pass\n```\n\n",
        ),
        (
            "plain",
            "Part\tMass\nHinge\t3 kg\nLock\n\n{story}\n\nEnergy is $E=mc^2$, at 10⁸ m/s.\n\n"
            "def mass(parts):\n    return sum(parts)\n\n\ndef main():\n    pass\n\n",
        ),
    ],
)
def test_the_tokens_of_a_step_have_the_table_the_formula_and_the_code_of_the_page(
    tmp_path: Path, form: str, structure: str
) -> None:
    text = read_page(PAGE, ExtractConfig.model_validate({"text": form})).text
    pages = [kept_document(f"https://a.example/{number}", text) for number in range(4)]
    made = tokens_in(tmp_path, pages, parts=1, seq_len=2_048, method="best_fit")
    run = small_config(batch_size=1, microbatch=1)
    batches = Batches(make_spec(run, Inputs({"shards": made.shards, "plan": made.plan}), tmp_path))
    try:
        tokens = batches.batch(0).tokens[0].tolist()
    finally:
        batches.close()
    decoded = Tokenizer.from_file(str(made.tokenizer.local("tokenizer.json"))).decode(tokens)
    assert structure.format(story=STORY[3:-4]) in decoded
    assert "Home" not in decoded
