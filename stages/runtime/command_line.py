"""Run one stage.

    python -m stages <attempt directory>/request.json
    python -m stages dpo config.yaml --input policy=DIR --input reference=DIR --out DIR

The first form is the command of a Ray job; the request was written by a flow. The second form is
for people, e.g. under a debugger. It needs no flow, store or service, and resumes an unfinished
run. `stages.runtime.exit_codes` lists the exit codes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from stages.catalog import STAGES
from stages.runtime.process import run_request
from stages.runtime.standalone import run_standalone


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line in this process.

    Args:
        arguments: arguments of the command line; None uses those of this process.

    Returns:
        The exit code.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    is_request = given.what.endswith(".json") or Path(given.what).is_file()
    if given.config is None and is_request:
        if given.input or given.out:
            parser.error("--input and --out need the name of a stage; a request.json contains both")
        return run_request(Path(given.what))
    if given.config is None:
        parser.error(f"expected a request.json, or a stage and its config, found '{given.what}'")
    inputs = dict(given.input)
    if len(inputs) < len(given.input):
        parser.error("--input is given twice for one role")
    return run_standalone(given.what, given.config, inputs, given.out or Path(f"{given.what}-out"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m stages",
        description=__doc__,
        epilog=f"stages: {', '.join(STAGES)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", help="request.json of an attempt, or the name of a stage")
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        help="the stage's config as YAML; relative paths start from its folder",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        type=_role_and_directory,
        metavar="ROLE=DIR",
        help="output of an earlier stage, e.g. policy=./sft-out/artifact; may be repeated",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the result (default: ./<stage>-out)"
    )
    return parser


def _role_and_directory(text: str) -> tuple[str, Path]:
    role, equals, directory = text.partition("=")
    if not (role and equals and directory):
        raise argparse.ArgumentTypeError(f"expected ROLE=DIR, found '{text}'")
    return role, Path(directory)
