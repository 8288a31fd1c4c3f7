"""The commands. `main` is the entry of the `policyfs` program."""

import sys

__all__ = ["main"]


def main() -> None:
    """The program. Ends the process with a documented exit code."""
    interpreter = None
    try:
        # Here and not above: Ctrl-C may come while the commands are imported, which is most of a short command's life.
        if sys.argv[1:2] == ["run"]:
            from policyfs.daemon.interpreter import Interpreter
            from policyfs.host.processes import ensure_standard_streams

            # Its pipes would take the numbers of the closed ones.
            ensure_standard_streams()
            interpreter = Interpreter()
        from policyfs.cli.commands import main as program

        program(interpreter)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if interpreter is not None:
            interpreter.discard()
