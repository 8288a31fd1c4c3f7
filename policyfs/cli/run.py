"""`policyfs run`: a program in a sandbox whose only tree is the view."""

from __future__ import annotations

import dataclasses

import click

from policyfs.cli.options import OnceEach, directories, files, policy_options, printable
from policyfs.daemon.interpreter import Interpreter
from policyfs.opening.load import PolicyOptions
from policyfs.sandbox.network import Network
from policyfs.sandbox.run import Wanted, run


class _BeforeCommand(OnceEach):
    """A command line of which the rest, after `--`, is somebody else's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; an option that is unknown may be one of COMMAND's, where nothing tells them apart."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if "--" not in args:
                ctx.fail(f"no such option '{error.option_name}'; if it is COMMAND's, write -- before COMMAND")
            raise


@click.command("run", cls=_BeforeCommand)
@click.argument("source", shell_complete=directories)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=files, metavar="-- COMMAND...")
@policy_options
@click.option(
    "--env",
    "environment",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Give the command an environment variable: yours, or VALUE. Without it only PATH, TERM, LANG and the like pass.",
)
@click.option(
    "--ro-bind",
    "read_only",
    multiple=True,
    metavar="PLACE",
    shell_complete=files,
    help="Show a place of this machine too, read-only.",
)
@click.option("--bind", "writable", multiple=True, metavar="PLACE", shell_complete=files, help="The same, to be changed.")
@click.option(
    "--home",
    metavar="DIR",
    shell_complete=directories,
    help="Keep the home in DIR between runs; without it the home is empty and goes.",
)
@click.option(
    "--network",
    type=click.Choice([each.value for each in Network]),
    help="What the command reaches: the internet, but not what listens on this machine (internet, the default); nothing but "
    "a loopback of its own (none); or what this machine does (host).",
)
@click.option("--no-network", is_flag=True, help="The same as --network none.")
@click.option("--allow-case-folding", is_flag=True, help="Take a SOURCE that takes Name and NAME for one file.")
@click.pass_obj
def command(
    interpreter: Interpreter | None,
    source: str,
    words: tuple[str, ...],
    options: PolicyOptions,
    environment: tuple[str, ...],
    read_only: tuple[str, ...],
    writable: tuple[str, ...],
    home: str | None,
    network: str | None,
    no_network: bool,
    allow_case_folding: bool,
) -> None:
    """Run COMMAND with the view of SOURCE in SOURCE's own place, and the rest of your home, SOURCE itself and this
    machine's processes out of its reach.

    It sees the system's programs read-only, a /tmp of its own and an empty home. It ends with this command, and this
    command with its exit status.

    \b
      policyfs run ~/tree -s session.toml -- claude
      policyfs run ~/tree -g /=ro --env ANTHROPIC_API_KEY --home ~/.agent -- sh
    """
    if no_network and network not in (None, Network.NONE):
        raise click.UsageError(f"--no-network is --network none, and --network {network} is given too; keep one")
    wanted = Wanted(
        source=source,
        options=dataclasses.replace(options, git_is_protected=True),
        command=words,
        environment=environment,
        read_only=read_only,
        writable=writable,
        home=home,
        network=Network.NONE if no_network else None if network is None else Network(network),
        allow_case_folding=allow_case_folding,
    )
    raise SystemExit(run(wanted, lambda text: click.echo(f"policyfs: {printable(text)}", err=True), interpreter))
