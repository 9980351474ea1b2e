"""The command line: one file, one verb.

A verb's file has `arguments(parser)` and `run(args) -> exit status`; its docstring's first line is its help.
Files whose name starts with an underscore are no verbs.
"""

import argparse
import ast
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import anyformer
from anyformer.card import did_you_mean
from anyformer.cli._terminal import reader_may_leave


def main(argv: Sequence[str] | None = None) -> int:
    """0: done; 1: a law or check failed; 2: the request made no sense; 130: interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    status = 0
    try:
        with reader_may_leave(), working_folder_importable():
            parser = command_line(argv)
            args = parser.parse_args(argv)
            if args.verb is None:
                parser.print_help()
            else:
                status = args.run(args)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except SystemExit as leaving:  # argparse after --help and --version
        return int(leaving.code or 0)
    except (ValueError, TypeError, ImportError, OSError) as error:
        if sys.flags.dev_mode:  # python -X dev -m anyformer: the whole story
            raise
        print("anyformer: error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    return status


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see `{self.prog} --help`")


def command_line(argv: Sequence[str]) -> argparse.ArgumentParser:
    """All verbs, of which only the chosen one is imported."""
    parser = Parser(prog="anyformer", description=anyformer.__doc__)
    parser.add_argument("--version", action="version", version=f"anyformer {anyformer.__version__}")
    parsers = parser.add_subparsers(dest="verb", metavar="verb", title="verbs")
    chosen = next((word for word in argv if not word.startswith("-")), None)
    if chosen is not None and chosen not in verbs():
        raise ValueError(f"there is no verb {chosen!r}{did_you_mean(chosen, verbs())}; see `{parser.prog} --help`")
    for name, path in verbs().items():
        parser_of_verb = parsers.add_parser(name, help=about(path), description=about(path))
        if name == chosen:
            verb = importlib.import_module(f"anyformer.cli.{name}")
            verb.arguments(parser_of_verb)
            if "--json" not in parser_of_verb._option_string_actions:  # a verb may have one that takes a file too
                parser_of_verb.add_argument("--json", action="store_true", help="print JSON")
            parser_of_verb.set_defaults(run=verb.run)
    return parser


def verbs() -> dict[str, Path]:
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("[!_]*.py"))}


def about(path: Path) -> str:
    """The first line of a verb's docstring, without importing it."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


@contextmanager
def working_folder_importable() -> Iterator[None]:
    """As `python -m` has it, so that package.module:factory is found where the user stands."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
