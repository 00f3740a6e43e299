"""Figure of the loss curve."""

import io
from typing import Any


def loss_curve(metrics: list[dict[str, Any]]) -> bytes:
    """Returns a PNG of the loss (nats per token) over the steps, with the learning rate beneath."""
    # Imported here: it takes half a second. The object interface needs no display.
    from matplotlib.figure import Figure

    trained = [line for line in metrics if line["loss"] is not None]
    steps = [line["step"] for line in trained]
    figure = Figure(figsize=(7, 5), layout="constrained")
    loss, rate = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    loss.plot(steps, [line["loss"] for line in trained], linewidth=1)
    loss.set_ylabel("loss, nats per token")
    loss.grid(alpha=0.3)
    rate.plot(steps, [line["lr"] for line in trained], linewidth=1)
    rate.set(xlabel="step", ylabel="learning rate")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()
