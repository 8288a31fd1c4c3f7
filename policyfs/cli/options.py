"""The options that commands share, and the one place where a fault becomes a message and an exit code."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem

from policyfs.host.errors import Exit, UserFault
from policyfs.opening.load import PolicyOptions, root_notes
from policyfs.policy.paths import display
from policyfs.policy.session import SessionFaults

Command = Callable[..., Any]


class OnceEach(click.Command):
    """A command that refuses an option given twice, unless its values add up: click would take the last, and a session
    file that closes something would be dropped in silence."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, which this asks once more for the order of what was given."""
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
            for option, times in Counter(order).items():
                if isinstance(option, click.Option) and not option.is_flag and not option.multiple and times > 1:
                    ctx.fail(f"{', '.join(option.opts)} is given {times} times, and takes one value; keep one")
        return super().parse_args(ctx, args)


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a shell completes for the name of a file: its own files."""
    return [CompletionItem(incomplete, type="file")]


def directories(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a shell completes for the name of a directory: its own directories."""
    return [CompletionItem(incomplete, type="dir")]


_POLICY_OPTIONS = (
    click.option(
        "-s", "--session", "session_file", metavar="FILE", shell_complete=files,
        help="Session file (TOML): grants, floors, denylist.",
    ),
    click.option(
        "-g", "--grant", "grants", multiple=True, metavar="PATH=LEVEL",
        help="Open PATH of the view, and all below it, at none, ro, stage or commit. The most specific grant wins; one "
        "given here replaces the session file's for the same path.",
    ),
    click.option(
        "--floor", "floors", multiple=True, metavar="PATH=LEVEL", help="Cap PATH at LEVEL, whatever is granted below it."
    ),
    click.option(
        "--floors", "floors_files", multiple=True, metavar="FILE", shell_complete=files,
        help="One more floor source (TOML, keys are places on this machine), which a session cannot widen.",
    ),
    click.option(
        "--deny", "deny", multiple=True, metavar="RULE",
        help="Hide a path (/x of the view, ~/x of the home) or every name that a glob matches ('*.sql').",
    ),
    click.option(
        "--read-root", "read_roots", multiple=True, metavar="PLACES",
        help="Places on this machine that can be read, apart by newlines or commas, ~ expanded: sugar for grants at ro.",
    ),
    click.option(
        "--write-root", "write_roots", multiple=True, metavar="PLACES",
        help="Places on this machine that can be changed, written alike: sugar for grants at stage.",
    ),
    click.option(
        "--preset", type=click.Choice(["home"]),
        help="home: the home readable, ~/Downloads and ~/Documents/Lam Agent writable.",
    ),
    click.option(
        "--protect-git/--no-protect-git", "protect_git", default=None,
        help="Keep a session from making your git execute anything new: configuration and hooks stay as they are, and no "
        "git directory is made. On for `run`, else off, unless the session file says.",
    ),
)  # fmt: skip


def policy_options(command: Command) -> Command:
    """Give a command the policy options; it gets them as one `options: PolicyOptions`."""

    @functools.wraps(command)
    def with_options(**values: Any) -> Any:
        names = PolicyOptions.__dataclass_fields__
        options = PolicyOptions(**{name: values.pop(name) for name in list(values) if name in names})
        for note in root_notes(options):
            click.echo(f"policyfs: note: {printable(note)}", err=True)
        return command(options=options, **values)

    for option in reversed(_POLICY_OPTIONS):
        with_options = option(with_options)
    return with_options


@contextlib.contextmanager
def session_faults_told() -> Iterator[None]:
    """What is wrong with a path or a level on a command line, for a message. Raises `UserFault`."""
    try:
        yield
    except SessionFaults as error:
        raise UserFault(Exit.POLICY, *(f"{error.where}: {fault}" for fault in error.faults)) from None


def report(fault: UserFault) -> None:
    """Say what is wrong on standard error, a line each."""
    for message in fault.messages:
        click.echo(f"policyfs: {printable(message)}", err=True)


def usage_text(error: click.UsageError) -> str:
    """What click finds wrong with a command line, as a part of one line. click writes sentences, some over several."""
    said = " ".join(error.format_message().split()).removesuffix(".")
    return said[:1].lower() + said[1:]


def printable(text: str) -> str:
    """A text that may hold names, as a person may see it: one line, undecodable bytes (surrogates) and control characters
    as escapes."""
    return display(text.encode("utf-8", "surrogateescape"))


def translating_faults(main: Callable[[], Any]) -> int:
    """Run a program; a `UserFault` becomes its messages and its exit code. No traceback for a person's mistake."""
    try:
        main()
    except UserFault as fault:
        report(fault)
        return int(fault.exit_code)
    except click.UsageError as error:
        command = "policyfs" if error.ctx is None else error.ctx.command_path
        report(UserFault(Exit.USAGE, f"{usage_text(error)}; see `{command} --help`"))
        return int(Exit.USAGE)
    except (KeyboardInterrupt, click.Abort):
        # click makes the one of the other.
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of the output has seen enough; say so to the interpreter, which flushes once more at exit.
        sys.stdout = None
        return int(Exit.FAILED)
    except OSError as error:
        # The machine's, a full disk under the output most of all, and no fault of the program: a line, no traceback.
        sys.stdout = None
        of = f" ({display(os.fsencode(error.filename))})" if isinstance(error.filename, str | bytes) else ""
        report(UserFault(Exit.FAILED, f"{error.strerror or error}{of}"))
        return int(Exit.FAILED)
    return int(Exit.DONE)


def print_open(granted: list[dict[str, str]]) -> None:
    """Print what is open in a view, and what was closed in it live, a line each."""
    width = max((len(printable(entry["path"])) for entry in granted), default=0)
    for entry in granted:
        click.echo(f"  {printable(entry['path']).ljust(width)}  {entry['level']}")
