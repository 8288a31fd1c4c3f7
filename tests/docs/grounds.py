"""The ground that some pages stand on: a mount namespace in which the machine is as the page takes it to be."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.expecting import absent
from tests.mount.harness import TIMEOUT, Person, myself

Ground = tuple[Person, str]
"""Who follows a page, and what their shell does before it."""


@contextlib.contextmanager
def namespace(script: str, *arguments: str | Path) -> Iterator[Person]:
    """Root in a private mount namespace that the script has set up, with a home of their own."""
    if os.geteuid() != 0:
        pytest.skip("only root can set this up")
    for tool in ("nsenter", "setpriv", "unshare"):
        if shutil.which(tool) is None:
            absent(f"no {tool} here (Debian: util-linux)")
    with myself() as person:
        holder = subprocess.Popen(
            # The copies of other tests' views in this namespace would keep their daemons alive after they were unmounted.
            ["unshare", "-m", "--propagation", "private", "bash", "-uc"]
            + [f"umount -a -l -t fuse.policyfs; set -e\nhome=$1; shift\n{script}\necho ready; exec cat", "ground"]
            + [str(argument) for argument in (person.home, *arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"ready\n", "the namespace could not be set up; what it said is above"
            yield Person(person.home, holder.pid, 0)
        finally:
            holder.stdin.close()
            holder.wait(TIMEOUT)
            holder.stdout.close()


# -- fstab.md: /sbin has the helper, and /etc/fstab can be written to

_HELPER = "from policyfs.cli.mount_helper import main; main()"

_WITH_HELPER = r"""
mkdir -p "$home/.ground/was" "$home/.ground/is"
mount -t tmpfs none "$home/.ground"
mkdir "$home/.ground/was" "$home/.ground/is"
mount --bind "$(readlink -f /sbin)" "$home/.ground/was"
ln -s "$home"/.ground/was/* "$home/.ground/is/"
printf '#!/bin/sh\nexec "%s" -I -c "%s" "$@"\n' "$1" "$2" > "$home/.ground/is/mount.fuse.policyfs"
chmod +x "$home/.ground/is/mount.fuse.policyfs"
mount --bind "$home/.ground/is" "$(readlink -f /sbin)"
: > "$home/.ground/fstab"
[ -e /etc/fstab ] || : > /etc/fstab
mount --bind "$home/.ground/fstab" /etc/fstab
"""


@contextlib.contextmanager
def with_mount_helper() -> Iterator[Ground]:
    """A machine where docs/recipes/fstab.md has been followed as far as its link."""
    with namespace(_WITH_HELPER, sys.executable, _HELPER) as person:
        yield person, ""


# -- container.md: podman, an image without a registry, and what a machine that is a container itself lacks

_IN_IMAGE = ("cat", "ls", "sh", "touch")

_CGROUPS = r"""
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir "$home/.podman"
mount -t tmpfs none "$home/.podman"
"""


def image() -> bytes:
    """A file system of a few of this machine's own programs and their libraries, as a tar archive."""
    files: set[str] = set()
    for name in _IN_IMAGE:
        program = shutil.which(name, path="/usr/bin:/bin")
        assert program is not None
        needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        files |= {program, *(word for word in needed.split() if word.startswith("/"))}
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", dereference=True) as archive:
        for file in sorted(files):
            archive.add(file)
    return held.getvalue()


@contextlib.contextmanager
def with_podman() -> Iterator[Ground]:
    """A machine with podman and an image `debian:12`, which is made of this machine's own programs."""
    if shutil.which("podman") is None:
        absent("no podman here (Debian: podman crun)")
    with namespace(_CGROUPS) as person:
        store = person.home / ".podman"
        before = (
            f'podman() {{ if [ "$1" = run ]; then shift; set -- run --cgroups=disabled --network=none '
            f'--ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$@"; fi; '
            f"command podman --root {store}/root --runroot {store}/run --storage-driver vfs --log-level error "
            f'"$@"; }}\n'
        )
        imported = subprocess.run(
            person.command(
                "bash", "-c", f"{before}\npodman import -q - docker.io/library/debian:12 && podman run --rm debian:12 ls /"
            ),
            env=person.environment,
            input=image(),
            capture_output=True,
            check=False,
            timeout=120,
        )
        if imported.returncode:
            pytest.skip(f"podman does not run here: {imported.stderr.decode(errors='replace').strip()}")
        yield person, before


GROUNDS: dict[str, Callable[[], contextlib.AbstractContextManager[Ground]]] = {
    "docs/recipes/container.md": with_podman,
    "docs/recipes/fstab.md": with_mount_helper,
}
"""The pages that need one, as paths in the checkout."""
