"""Prints the requirements of an image: the dependencies in pyproject.toml, and the extras named on the command line.

pip then chooses the versions by `--constraint requirements.txt`, the same lock file for laptop and images. Runs in a
build stage of its own, so that the layer of installed packages is rebuilt only when the requirements or the lock file
change, not with every change of pyproject.toml.
"""

import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
for requirement in [*project["dependencies"], *(extra for name in sys.argv[1:] for extra in extras[name])]:
    print(requirement)
