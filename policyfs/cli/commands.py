"""The group of commands and its help. Each command stands in a module of its own, imported when it is used: a mount is
not to wait for what only `doctor` needs."""

from __future__ import annotations

import importlib
import io
import sys
from functools import partial

import click

import policyfs
from policyfs.cli.options import translating_faults
from policyfs.daemon.interpreter import Interpreter
from policyfs.host.errors import Exit
from policyfs.host.processes import ensure_standard_streams

_COMMANDS = {
    "mount": "Mount a view of SOURCE at MOUNTPOINT.",
    "umount": "End a mounted view.",
    "run": "Run a program inside a view, with the source out of its reach.",
    "check": "Check a session file and show the levels it gives.",
    "explain": "Say what a session may do with a path, and which rule says so.",
    "view": "List what a session is given, as an agent reads it.",
    "instructions": "Print the instruction files of a session, as an agent is given them.",
    "status": "Show your mounted views and what they are doing.",
    "reload": "Give a mounted view its session again, or another one.",
    "grant": "Open a path of a mounted view.",
    "revoke": "Close a path of a mounted view.",
    "log": "Print what happened in a view: what was refused, by which rule, and what was changed.",
    "doctor": "Find what is dangerous in a tree under a policy.",
}

_EXIT_CODES = """\b
Exit codes:
  0  done
  1  understood, but it could not be done
  2  the command line is wrong
  3  a session file, a floors file or a rule is wrong
  4  SOURCE or MOUNTPOINT is wrong
  5  this machine lacks something (/dev/fuse, openat2, ...)
  130  interrupted (Ctrl-C)
"""


class _Commands(click.Group):
    """Commands by name, imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"policyfs.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Before click sees it, which would print a line for it.
            sys.exit(Exit.INTERRUPTED)
        except click.UsageError as error:
            # click's parser of options does not say whose command line it reads.
            if error.ctx is None and ctx.invoked_subcommand is not None:
                command = self.get_command(ctx, ctx.invoked_subcommand)
                assert command is not None  # noqa: S101 - for the type checker
                error.ctx = click.Context(command, parent=ctx, info_name=ctx.invoked_subcommand)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.command(
    cls=_Commands,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
    # No command is a fault like any other; click of one release printed the help and exited with 0, of the next with 2.
    no_args_is_help=False,
)
@click.version_option(policyfs.__version__, prog_name="policyfs")
def commands() -> None:
    """Show programs a directory tree as a session may see it.

    A view opens paths of SOURCE at a level: ro can be read, stage can be changed, commit can also be committed. What no
    grant opens is missing; a directory on the way to something open can be walked through but not listed.

    \b
    Try it:
      policyfs mount ~/tree /mnt/view -g /=ro -g /Notes=stage
      ls /mnt/view
      policyfs umount /mnt/view
    """


def main(interpreter: Interpreter | None) -> None:
    """The program, with the interpreter of a daemon that was started for a run. Ends the process with a documented exit
    code."""
    ensure_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # Names in a tree are not asked whether the terminal has their letters: stderr does this by itself.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(translating_faults(partial(_run, interpreter)))


def _run(interpreter: Interpreter | None) -> None:
    # Not standalone: click would print its own faults, in its own form. What it returns then is a code or a command's None.
    code = commands.main(prog_name="policyfs", standalone_mode=False, obj=interpreter)
    if code:
        sys.exit(code)
