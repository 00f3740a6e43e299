"""`python -m tasks.demo`: commands for the local stack and for runs of the demo.

Prints one line per error; exits with status 2 for a permanent error, 1 for a transient one.
"""

import argparse
import os
import sys
from pathlib import Path

from tasks.core.errors import SluiceError
from tasks.core.terminal import handling_broken_pipe


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except SluiceError as error:
        print(f"sluice: {error}", file=sys.stderr)
        return 2 if error.permanent else 1
    except KeyboardInterrupt:
        print("interrupted; the services keep running (stop them: make down)", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tasks.demo", description="The demo: services, site, run.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, text, command in (
        ("up", "start Airflow, MLflow, Dask and the site, and wait until they are healthy", _up),
        ("down", "stop everything", _down),
        ("status", "show the state of the services", _status),
        ("supervise", "run the supervisor in the foreground", _supervise),
    ):
        commands.add_parser(name, help=text, description=text).set_defaults(run=command)
    run = commands.add_parser("run", help="run the demo and print a report; starts the services if necessary")
    run.add_argument("--recipe", default="demo", help="recipe for the loopback site")
    run.add_argument("--version", default="", help="version of the artifacts; default: the recipe's")
    run.add_argument(
        "--seeds", default=os.environ.get("SEEDS", ""), help="file with URLs: crawl the public web instead"
    )
    run.add_argument(
        "--contact", default=os.environ.get("CONTACT", ""), help="URL or e-mail address where site owners can reach you"
    )
    run.set_defaults(run=_run)
    tune = commands.add_parser("finetune", help="fine-tune a model on manuals and print a report")
    base = (
        "base model: demo/checkpoint@dev, or a Hugging Face folder or URL to import; default: the newest of the demo, "
        "or else a small one trained first"
    )
    tune.add_argument("--base", default=os.environ.get("BASE", ""), help=base)
    tune.set_defaults(run=_finetune)
    site = commands.add_parser("site", help="serve the documentation of this Python as three loopback hosts")
    site.add_argument("--port", type=int, default=18701, help="port of the first host; the others follow")
    site.add_argument("--cache", type=Path, default=Path(".sluice/site"), help="folder for the rendered pages")
    site.set_defaults(run=_site)
    return parser


def _up(_options: argparse.Namespace) -> None:
    from tasks.demo import stack
    from tasks.demo.home import Home

    home = Home.here()
    stack.up(home)
    print(stack.addresses(home))


def _down(_options: argparse.Namespace) -> None:
    from tasks.demo import stack
    from tasks.demo.home import Home

    stack.down(Home.here())


def _status(_options: argparse.Namespace) -> int:
    from tasks.demo import stack
    from tasks.demo.home import Home

    return 0 if stack.show(Home.here()) else 3


def _supervise(_options: argparse.Namespace) -> int:
    from tasks.demo.supervise import main as supervise

    return supervise()


def _run(options: argparse.Namespace) -> None:
    from tasks.demo.home import Home
    from tasks.demo.run import run, run_request

    home = Home.here()
    run(home, run_request(home, options.recipe, options.version, options.seeds, options.contact))


def _finetune(options: argparse.Namespace) -> None:
    from tasks.demo.finetune import finetune
    from tasks.demo.home import Home

    finetune(Home.here(), options.base)


def _site(options: argparse.Namespace) -> None:
    from tasks.demo.site import serve

    serve(options.port, options.cache)


if __name__ == "__main__":
    sys.exit(handling_broken_pipe(main))
