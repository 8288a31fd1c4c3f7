"""The life of one mount: protect the process, build the view, mount, serve, unmount.

One process per mount, since pyfuse3 keeps its session in module globals. It is started by `policyfs mount` with two
descriptors: the request comes in by the one, the answer goes out by the other. It ends on SIGTERM and SIGINT, when the
mount is unmounted from outside, and it unmounts as it ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import syslog
from collections.abc import Iterator
from pathlib import Path

import pyfuse3
import trio

from policyfs.audit.writer import Journal
from policyfs.daemon.control import Control
from policyfs.daemon.request import MountRequest, Ready
from policyfs.daemon.start import open_log
from policyfs.fuse import polling
from policyfs.fuse.handlers import MAX_HANDLES, Operations
from policyfs.fuse.memory import collect_seldom
from policyfs.fuse.policy_switch import PolicySwitch, fuse_device
from policyfs.fuse.pruning import prune_cold
from policyfs.host import mounts, places
from policyfs.host.errors import Exit, UserFault
from policyfs.host.harden import close_inherited, harden, raise_descriptor_limit
from policyfs.live.policy import LivePolicy, no_record
from policyfs.opening.view import nothing_open, open_policy, root_of
from policyfs.policy.paths import HostPath, display
from policyfs.view.credentials import HELD_SHARE
from policyfs.view.monitor import ReferenceMonitor

log = logging.getLogger("policyfs")

_OPTIONS = frozenset({"fsname=policyfs", "subtype=policyfs", "nosuid", "nodev"})
"""No source in the mount table, no set-id program and no device behind the mount, nobody but its user in it: neither
allow_other nor auto_unmount, which would uncover what lies beneath when the daemon dies (rules daemon-4 and special-3)."""

_SPARE_DESCRIPTORS = 64
"""Kept from handles for reaching, watching and logging."""


def main() -> None:
    """The daemon's entry: `argv` holds the two descriptors, request and answer."""
    request_descriptor, answer_descriptor = int(sys.argv[1]), int(sys.argv[2])
    harden()
    close_inherited({request_descriptor, answer_descriptor})
    with os.fdopen(request_descriptor, "rb") as pipe:
        text = pipe.read()
    if not text:
        # The command ended before it had anything to mount: a wrong option, Ctrl-C.
        return
    request = MountRequest.loads(text)
    try:
        _log_to(request.log_file)
        serve(request, answer_descriptor)
    except UserFault as fault:
        _give_up(fault, answer_descriptor)
    except Exception as error:
        log.exception("the mount ends")
        where = "standard error" if request.log_file is None else display(os.fsencode(request.log_file))
        _give_up(UserFault(Exit.FAILED, f"the mount daemon failed: {error!r}; see {where}"), answer_descriptor)


def _give_up(fault: UserFault, answer_descriptor: int) -> None:
    """Answer the command that waits, if it still does, and end."""
    with contextlib.suppress(OSError):
        Ready(fault=fault.messages, exit_code=fault.exit_code).send(answer_descriptor)
        # In the foreground a child tells the person; its words come before this process's exit code.
        os.waitpid(-1, 0)
    sys.exit(fault.exit_code)


def _log_to(file: str | None) -> None:
    if file is None:
        handler = logging.StreamHandler()
    else:
        descriptor = open_log(file)
        # What the interpreter or a library prints is not for the person's terminal, which a run shares with its command.
        os.dup2(descriptor, 2)
        handler = logging.StreamHandler(os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace"))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def view_of(request: MountRequest) -> tuple[ReferenceMonitor, list[str]]:
    """The view that a request asks for, and what a person should know of it. Raises `UserFault`."""
    source = HostPath(os.fsencode(request.source))
    shown = display(source)
    root = root_of(source)
    folds = root.folds_case()
    if folds and not request.allow_case_folding:
        raise UserFault(
            Exit.PLACE,
            f"SOURCE {shown} takes `Name` and `NAME` for one file, so a hidden name has many spellings; "
            "mount it with --allow-case-folding, and rules compare names without regard to case",
        )
    table = mounts.mounts()
    policy = open_policy(root, request.policy_options, table)
    if policy.opens_nothing:
        raise nothing_open(policy)
    warnings = [
        f"{display(mount.point)} is another mount ({mount.type}) and is hidden; mount a view of it on its own"
        for mount in mounts.nested_in(source, table)
    ]
    if policy.has_passages and not policy.unknown_missing:
        warnings.append(
            "the view has passages, where unknown names answer EACCES; if pytest, black or uv stumble over that, set "
            '[passages] unknown = "missing" in the session file'
        )
    named = source if request.named is None else HostPath(os.fsencode(request.named))
    at = HostPath(os.fsencode(request.appears_at or request.mountpoint))
    beside = None if request.beside is None else [HostPath(os.fsencode(place)) for place in request.beside]
    return ReferenceMonitor(root, policy, named=named, at=at, beside=beside), warnings


def serve(request: MountRequest, answer_descriptor: int) -> None:
    """Mount, tell that it answers, and serve until the end. Raises `UserFault` while nothing is mounted yet."""
    mounts.require_fuse()
    descriptors = raise_descriptor_limit()
    view, warnings = view_of(request)
    # Files and directories each so many, a sixteenth of that for what was removed; and what credentials are known by, twice
    # while a policy takes another's place.
    most = min(MAX_HANDLES, max(16, (descriptors - 2 * descriptors // HELD_SHARE - _SPARE_DESCRIPTORS) * 16 // 33))
    if most < MAX_HANDLES:
        warnings.append(
            f"only {descriptors} descriptors are allowed here, so {most} files can be open at once; raise it with ulimit -n"
        )
    socket = _control_socket(request)
    # The kernel has applied the session's umask; ours would take from modes that are already right.
    polling.install()
    os.umask(0)
    os.chdir("/")
    journal = _journal(request)
    operations = Operations(view, most, journal, journal_opens=request.journal_opens)
    with _mounted(operations, request):
        ready = Ready(
            tuple((path.decode("utf-8", "surrogateescape"), str(level)) for path, level in view.policy.granted()),
            tuple(warnings),
        )
        collect_seldom()
        trio.run(_serve, operations, request, socket, ready, answer_descriptor)
    log.info("unmounted %s", request.mountpoint.encode("utf-8", "surrogateescape"))


def _control_socket(request: MountRequest) -> Path | None:
    """Where the control socket is to be, in a directory that only its owner can enter. Raises `UserFault`."""
    if not request.control:
        return None
    path = places.control_socket(HostPath(os.fsencode(request.mountpoint)))
    try:
        places.private_directory(path.parent)
    except OSError as error:
        raise UserFault(Exit.MACHINE, f"no place for the control socket: {error}") from None
    return path


def _journal(request: MountRequest) -> Journal | None:
    if not request.journal:
        return None
    # A run is found again by its SOURCE, where its command saw the view; its own mountpoint is gone with it.
    place = HostPath(os.fsencode(request.appears_at or request.mountpoint))
    journal = Journal(places.journal_directory(place), request.options.session_file or "command line")
    journal.event("mount", source=request.source, mountpoint=request.mountpoint)
    return journal


@contextlib.contextmanager
def _mounted(operations: Operations, request: MountRequest) -> Iterator[None]:
    try:
        pyfuse3.init(operations, request.mountpoint, set(_OPTIONS))
    except (RuntimeError, OSError) as error:
        raise UserFault(
            Exit.FAILED,
            f"{display(os.fsencode(request.mountpoint))} could not be mounted ({error}); see `dmesg` and the daemon's log",
        ) from None
    mounts.read_ahead(HostPath(os.fsencode(request.mountpoint)))
    try:
        yield
    finally:
        pyfuse3.close(unmount=True)


async def _serve(
    operations: Operations, request: MountRequest, socket: Path | None, ready: Ready, answer_descriptor: int
) -> None:
    device = None if request.old_kernel else fuse_device()
    switch = PolicySwitch(operations, device=device)
    live = LivePolicy(
        operations.view.root,
        operations.view.policy,
        request.policy_options,
        record=no_record if operations.journal is None else operations.journal.event,
        at=HostPath(os.fsencode(request.mountpoint)),
    )
    control = Control(request, operations, live)
    # Before the mount, which may wait for the kernel: no follower goes on by the old policy meanwhile.
    live.subscribe(control.take, control.end_leases)
    live.subscribe(switch.take, switch.take_at_once)
    if live.policy is not operations.view.policy:
        # A link was made since the view was opened.
        switch.take_at_once(live.policy)
    operations.catch_up = live.catch_up
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_follow_signals, live)
        nursery.start_soon(operations.watch.run)
        nursery.start_soon(operations.watch.drop_suspect_pages)
        nursery.start_soon(operations.watch.look_at_unshown)
        nursery.start_soon(operations.memory.run)
        nursery.start_soon(live.expire)
        nursery.start_soon(live.follow_links)
        nursery.start_soon(switch.follow)
        nursery.start_soon(prune_cold, operations.nodes, device)
        if operations.journal is not None:
            nursery.start_soon(operations.journal.run)
        if socket is not None:
            await nursery.start(control.serve, socket, False)
        if request.ask is not None:
            await nursery.start(control.serve, Path(request.ask), True)
        ready.send(answer_descriptor)
        log.info("serving, process %d", os.getpid())
        await pyfuse3.main()
        if operations.journal is not None:
            operations.journal.event("unmount")
        nursery.cancel_scope.cancel()
    live.close()
    operations.close()
    _report_end(operations.journal)


def _report_end(journal: Journal | None) -> None:
    """Send the end of the journal to syslog, where no program of this user can change it: lines that somebody removes at the
    end of the journal are found by comparing (syslog(3) does nothing where nobody listens)."""
    if journal is not None and journal.end.seq:
        syslog.openlog("policyfs", syslog.LOG_PID)
        syslog.syslog(syslog.LOG_INFO, f"the journal ends with line {journal.end.seq}, sha256 {journal.end.hash}")


async def _follow_signals(live: LivePolicy) -> None:
    """SIGTERM and SIGINT end the mount in order, SIGHUP reads the session again; signal handlers of the usual kind would
    break trio."""
    receiver = trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    async with trio.open_nursery() as nursery:
        with receiver as signals:
            async for number in signals:
                if number != signal.SIGHUP:
                    log.info("ends on %s", signal.Signals(number).name)
                    pyfuse3.terminate()
                    return
                nursery.start_soon(_reload, live)


async def _reload(live: LivePolicy) -> None:
    try:
        await live.reload()
        log.info("took another policy, on SIGHUP")
    except UserFault as fault:
        log.error("the policy stays as it is: %s", fault)
    except Exception:
        log.exception("the policy stays as it is")
