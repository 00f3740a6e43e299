"""What `airflow providers` lists: the modules of all operators and triggers, and no others."""

import importlib
from pathlib import Path

import operators


def test_the_provider_info_lists_the_modules_of_all_operators_and_triggers():
    from airflow.sdk import BaseOperator
    from airflow.triggers.base import BaseTrigger

    info, found = operators.get_provider_info(), {"operators": set(), "triggers": set()}
    package = Path(operators.__file__).parent
    for path in sorted(package.rglob("*.py")):
        name = ".".join(["operators", *path.relative_to(package).with_suffix("").parts]).removesuffix(".__init__")
        for one in vars(importlib.import_module(name)).values():
            if isinstance(one, type) and one.__module__ == name:
                found["operators"] |= {name} if issubclass(one, BaseOperator) else set()
                found["triggers"] |= {name} if issubclass(one, BaseTrigger) else set()
    listed = {kind: {module for one in info[kind] for module in one["python-modules"]} for kind in found}
    assert listed == found
