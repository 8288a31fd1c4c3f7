"""The commands. `main` is the entry of the `policyfs` program."""

import sys

__all__ = ["main"]


def main() -> None:
    """The program. Ends the process with a documented exit code."""
    try:
        # Here and not above: Ctrl-C may come while the commands are imported, which is most of a short command's life.
        from policyfs.cli.commands import main as program

        program()
    except KeyboardInterrupt:
        sys.exit(130)
