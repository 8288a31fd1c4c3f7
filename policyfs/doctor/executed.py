"""Names of files that a person's own tools execute, or take orders from, without asking (rule doctor-1).

A session that may change one of them leaves an order that is carried out later, outside the view, by anyone who works
there. The list is of what is common; whether a file is run is the tool's choice, so it can only be a list.
"""

from __future__ import annotations

import json

FILES = {
    ".envrc": "direnv runs it on entering the directory",
    "conftest.py": "pytest runs it",
    "Makefile": "make runs it",
    "makefile": "make runs it",
    "GNUmakefile": "make runs it",
    "justfile": "just runs it",
    "noxfile.py": "nox runs it",
    "setup.py": "pip runs it on installing",
    "build.rs": "cargo runs it on building",
    ".mcp.json": "coding agents start the servers it names",
    ".pre-commit-config.yaml": "pre-commit runs what it names at each commit",
    ".gitlab-ci.yml": "the CI runs it",
}
"""Files in any directory, each with the program that executes it."""

DIRECTORIES = {
    ".vscode": "VS Code runs its tasks and takes programs from its settings",
    ".idea": "JetBrains editors run its configurations",
    ".husky": "git runs its scripts as hooks",
    ".claude": "Claude Code runs the hooks in its settings",
    ".cursor": "Cursor starts the servers it names",
    ".devcontainer": "editors run its commands on opening",
    ".hg": "Mercurial runs the hooks and extensions that its hgrc names",
    ".jj": "jj runs the programs that its configuration names",
}
"""Directories in any directory."""

GIT_REASON = "git runs its hooks and what its configuration names, and much of its state leads to either"
"""Of a git directory that can be written. No set of floors inside it is enough."""

HOME = {
    "~/.bashrc": "every shell runs it",
    "~/.bash_profile": "every login runs it",
    "~/.bash_login": "every login runs it",
    "~/.profile": "every login runs it",
    "~/.zshrc": "every shell runs it",
    "~/.zshenv": "every shell runs it",
    "~/.zprofile": "every login runs it",
    "~/.config/fish": "every shell runs it",
    "~/.config/autostart": "the desktop runs it at login",
    "~/.config/systemd/user": "systemd runs it",
    "~/.gitconfig": "git runs the programs it names",
    "~/.config/git": "git runs the programs it names",
    "~/.local/bin": "it is on the search path of every shell",
    "~/bin": "it is on the search path of every shell",
}
"""Places of the home. As with those of git, whether they exist does not matter."""

PACKAGE = "package.json"
PACKAGE_REASON = "npm runs its scripts"

LINKED = {**FILES, **DIRECTORIES, PACKAGE: PACKAGE_REASON}
"""Links in any directory, which tools follow to whatever their session put there."""

GIT_FILE_REASON = "git runs the programs of the repository that it names"
"""Of a `.git` that is a file or a link, and no directory."""

INSTALLED = frozenset({"node_modules", ".venv", "venv", "site-packages", ".tox", ".nox"})
"""Directories of installed code, all of which is executed: naming its files one by one would tell nothing."""


def has_scripts(package: bytes) -> bool:
    """Whether a package.json gives npm something to run. One that cannot be read counts: npm may read it some day."""
    try:
        content = json.loads(package)
    except (ValueError, RecursionError):
        return True
    return isinstance(content, dict) and bool(content.get("scripts"))
