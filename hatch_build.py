"""Build hook of the wheel: adds `dags/` under the name `sluice_dags`.

A top-level package `dags` would hide that of another project in a stranger's Airflow. DAG files do not import each
other, so the folder works under both names. An editable install uses the folder itself and gets no copy.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """Called by hatchling for each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the folder to a wheel of version "standard"; "editable" is the other one."""
        if version == "standard":
            for pattern in ("*.py", "pools.json", "recipes/**/*.toml"):
                for path in Path(self.root, "dags").glob(pattern):
                    build_data["force_include"][str(path)] = f"sluice_dags/{path.relative_to(self.root, 'dags')}"
