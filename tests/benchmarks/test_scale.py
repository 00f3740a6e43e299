"""`benchmarks.scale` finds the exponent of a growth whatever does not grow, and the size that fills a process."""

import sys

import pytest

from benchmarks import scale
from benchmarks.scale import exponent, figures
from benchmarks.scale_curves import CPU, MEMORY, REQUESTS, Curve
from tasks.run.scale.plan import plan_corpus

SIZES = (10, 20, 40, 80)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_is_that_of_what_grows(power: float) -> None:
    for fixed in (0, 20 * 3 * SIZES[-1] ** power / 2):
        assert exponent(SIZES, [fixed + 3 * size**power for size in SIZES]) == power
    assert exponent(SIZES, [7, 7, 7, 7]) == exponent(SIZES, [0] * 4) == exponent(SIZES, [100, 100, 100, 101]) == 0
    with pytest.raises(ValueError, match="equal ratio"):
        exponent((1, 2, 3), (1, 2, 3))


def test_a_cost_that_grows_faster_is_out_of_the_bound_and_memory_has_a_wall() -> None:
    square = figures(Curve("", "parts", REQUESTS, SIZES, [size**2 for size in SIZES]))
    linear = figures(Curve("", "parts", MEMORY, SIZES, [64e3 * size for size in SIZES]))
    noisy = figures(Curve("", "parts", CPU, SIZES, [size**1.1 for size in SIZES]))
    assert [row["within_bound"] for row in (square, linear, noisy)] == [False, True, True]
    assert [row["wall_pages"] for row in (square, noisy)] == [None, None]
    corpus = plan_corpus(1e10).corpus
    assert linear["wall_pages"] == pytest.approx(1e6 * corpus.pages / corpus.parts)
    assert linear["each_more"] == 64e3


def test_the_command_measures_the_named_curves_and_keeps_nothing_of_a_quick_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scale, "keep", lambda *_: pytest.fail("a quick run is no result"))
    monkeypatch.setattr(sys, "argv", ["scale", "--quick", "requests", "steps"])
    scale.main()
    rows = {line.split("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["resume"][-2:] == ["1.00", "yes"]
    assert rows["remove files"][-2:] == ["0.00", "yes"]
    assert "restart of a training" in rows
