"""The commands. `main` is the entry of the `policyfs` program."""

from policyfs.cli.commands import main

__all__ = ["main"]
