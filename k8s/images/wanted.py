"""Prints what an image installs: the dependencies of pyproject.toml and of the extras named on the command line.

pip then chooses versions by `--constraint requirements.txt`, so that file stays the one lock of laptop and images. A
stage of its own runs this: the layer of installed packages is built anew only when what it prints, or the lock, has
changed, and not for every other line of pyproject.toml.
"""

import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
for requirement in [*project["dependencies"], *(one for name in sys.argv[1:] for one in extras[name])]:
    print(requirement)
