"""A small real stage: squares numbers part by part; rejects multiples of ten; a poison number is quarantined."""

import pyarrow as pa

from tasks.core.config import Config
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, part_names

VERSION = 1


class ToyConfig(Config):
    parts: int = 4
    rows: int = 10
    poison: int = 0
    lose: int = 0
    unmeasured: bool = False


def square(part: Part, numbers: list[int]) -> None:
    kept = []
    for number in numbers:
        part.count_in()
        if number % 10 == 0:
            part.reject("toy_round")
            continue
        kept.append(number * number)
    part.table("squares", pa.table({"square": kept}))


def lossy(part: Part, numbers: list[int]) -> None:
    part.count_in(len(numbers))
    part.table("squares", pa.table({"square": numbers[1:]}))


def poisonous(part: Part, numbers: list[int]) -> None:
    kept = []
    for number in numbers:
        part.count_in()
        try:
            kept.append(100 // (number - 13))
        except ZeroDivisionError as error:
            part.quarantine(str(number), error)
    part.table("squares", pa.table({"square": kept}))


def run(config: ToyConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    names = part_names(config.parts)
    specs = [
        PartSpec(name, list(range(index * config.rows, (index + 1) * config.rows))) for index, name in enumerate(names)
    ]
    output.map_parts(engine, poisonous if config.poison else lossy if config.lose else square, specs)
    return Report(metrics={"parts": float("nan") if config.unmeasured else float(config.parts)})
