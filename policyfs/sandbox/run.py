"""One run from beginning to end: the order of things.

The daemon is started first and mounts while everything else is checked; nothing is run before all of it is well. The end
is the supervisor's, whatever ends the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from policyfs.daemon.interpreter import Interpreter
from policyfs.daemon.request import MountRequest
from policyfs.daemon.start import Daemon, log_file_for
from policyfs.host import mounts, places
from policyfs.host.errors import Exit, UserFault
from policyfs.opening.load import PolicyOptions, machine_policy, session_of, source_of
from policyfs.policy.paths import HostPath, PathFault, below, display, for_shell
from policyfs.sandbox import admission, confine, inside, layout, machine, network, seccomp
from policyfs.sandbox.command import Command, launcher
from policyfs.sandbox.course import Course
from policyfs.sandbox.environment import EnvironmentFault, environment
from policyfs.sandbox.layout import Place, Sandbox, SystemPlace
from policyfs.sandbox.network import Gateway, Network
from policyfs.sandbox.resolv_conf import RESOLV_CONF
from policyfs.sandbox.run_directory import RunDirectory
from policyfs.sandbox.signals import EndedBySignal, Ending, ignore_signals
from policyfs.sandbox.streams import RefusedStream, Streams
from policyfs.sandbox.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a command line asks for, as written."""

    source: str
    options: PolicyOptions
    command: tuple[str, ...]
    environment: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    home: str | None = None
    network: Network | None = None
    """None for one of its own, or this machine's where that cannot be made."""
    allow_case_folding: bool = False


@dataclass(frozen=True, slots=True)
class _Added:
    """A place that a person adds, by its real path, and by which option under which name."""

    option: str
    named: HostPath
    place: Place


@dataclass(frozen=True, slots=True)
class _Beside:
    """What of the machine is to stand beside the view: the system, and what a person adds, with the faults in that."""

    system: Sequence[SystemPlace]
    added: Sequence[_Added]
    faults: Sequence[str]

    @staticmethod
    def of(wanted: Wanted) -> _Beside:
        """As the options ask for it, not judged yet."""
        faults: list[str] = []
        return _Beside(machine.system_places(), _added(wanted, faults), faults)

    @property
    def paths(self) -> list[HostPath]:
        """The paths that mean the same inside and outside, so that a link may lead there. The private home and /tmp, /proc
        and all devices but one are something else outside."""
        added = [path for each in self.added for path in (each.named, each.place.path)]
        return [*(place.path for place in self.system), *added, HostPath(b"/dev/null")]


def run(wanted: Wanted, tell: Callable[[str], None], interpreter: Interpreter | None = None) -> int:
    """Run a command in a view, by an interpreter for its daemon that was started already, if there is one; its exit status.
    `tell` says to the person what they should know. Raises `UserFault` where nothing was run."""
    # A caller that ignores it (wrappers like nohup) would keep us from the exit status of what we start: waitpid(2).
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        return _run(wanted, tell, Ending(), interpreter)
    except EndedBySignal as ended:
        return 128 + ended.number


def _run(wanted: Wanted, tell: Callable[[str], None], ending: Ending, interpreter: Interpreter | None) -> int:
    source = source_of(wanted.source)
    unfit = admission.unfit_source(source)
    if unfit is not None:
        raise UserFault(Exit.PLACE, unfit)
    mounts.require_fuse()
    tools = machine.tools()
    log = _log_for(source)
    directory = RunDirectory.make()
    try:
        daemon = Daemon(log, interpreter)
        supervisor = Supervisor(directory, daemon.pidfd, log)
    except BaseException:
        directory.remove()
        raise
    try:
        ending.from_now_on()
        # The daemon, what is shown beside the view, and the directory to start in go by one reading.
        table = mounts.mounts()
        wanted = dataclasses.replace(wanted, options=wanted.options.read(table))
        beside = _Beside.of(wanted)
        daemon.ask(
            MountRequest(
                os.fsdecode(source),
                os.fsdecode(directory.view),
                wanted.options,
                wanted.allow_case_folding,
                log,
                appears_at=os.fsdecode(source),
                named=os.fsdecode(places.absolute(wanted.source)),
                beside=tuple(os.fsdecode(place) for place in beside.paths),
                ask=os.fsdecode(directory.ask),
            )
        )
        gateway = network.begin(wanted.network, supervisor, tools.bubblewrap, tell)
        probe = tools.probe()
        try:
            streams = _streams()
            sandbox, files = _sandbox(wanted, source, directory, beside, table)
            filters = seccomp.filters()
            probe.require()
            ready = daemon.ready()
            sandbox = dataclasses.replace(sandbox, directory=_directory(wanted, source, directory.view))
            gateway = network.ready(wanted.network, gateway, tell)
            if gateway is not None:
                files[RESOLV_CONF] = gateway.resolv_conf
        finally:
            probe.end()
        for warning in ready.warnings:
            tell(f"note: {warning}")
        if sandbox.ask is None:
            tell(
                f"note: the command has no `policyfs explain`: it stands in {display(layout.CLIENT)}, where SOURCE or a "
                "place of yours does"
            )
        shares_network = gateway is None and wanted.network is not Network.NONE
        close_sockets = shares_network and confine.abstract_sockets_can_be_closed(tools.bubblewrap)
        if shares_network and not close_sockets:
            tell(
                "note: nothing here keeps the command from abstract sockets of this machine, such as X11's: that takes "
                "Linux 6.12 and a bubblewrap that is not set-uid, or another --network"
            )
        command = [os.fsencode(word) for word in wanted.command]
        started = _Started(
            tools, sandbox, files, filters, command, streams, supervisor, gateway, close_sockets=close_sockets
        )
        status = started.finish(streams)
        for error in streams.errors():
            tell(f"{error}; what the command wrote there after that is lost")
            status = status or Exit.FAILED
        lost = None if gateway is None else gateway.lost()
        if lost is not None:
            tell(f"the command's network ended before the command did: {lost}")
        if daemon.ended():
            tell(f"the mount daemon ended before the command did, which then saw nothing of the view; see {log}")
        return status
    finally:
        ignore_signals()
        cleared = supervisor.finish()
        daemon.forget()
        if not cleared:
            tell(f"the view could not be cleared away; see `findmnt {for_shell(directory.view)}` and {log}")


def _log_for(source: HostPath) -> str:
    try:
        places.private_directory(places.state_directory())
    except OSError as error:
        raise UserFault(Exit.MACHINE, f"no place for the log: {error}; set XDG_STATE_HOME to a directory of yours") from None
    return log_file_for(source)


def _streams() -> Streams:
    try:
        return Streams()
    except RefusedStream as fault:
        raise UserFault(Exit.USAGE, f"{fault}; redirect it from a file or a pipe") from None


class _Started:
    """bubblewrap with the command in it."""

    def __init__(
        self,
        tools: machine.Tools,
        sandbox: Sandbox,
        files: Mapping[HostPath, bytes],
        filters: Sequence[bytes],
        command: Sequence[bytes],
        streams: Streams,
        supervisor: Supervisor,
        gateway: Gateway | None,
        *,
        close_sockets: bool,
    ) -> None:
        status_read, status_write = os.pipe()
        held = {path: _memory(content) for path, content in files.items()}
        programs = [_memory(program) for program in filters]
        handed = [*held.values(), *programs]
        # By a descriptor: a command line can be read by all, in the sandbox too, and this tells of paths and secrets.
        listed = _memory(b"".join(argument + b"\0" for argument in layout.arguments(sandbox, held, programs)))
        words = [*launcher(tools.setpriv, tools.setsid, has_terminal=streams.controls), *command]

        shown = layout.shown(sandbox)

        def confined() -> None:
            try:
                confine.leave_session_keyring()
                if gateway is not None:
                    gateway.enter()
                confine.own_mounts(shown)
                if sandbox.devices is not None:
                    confine.make_devices(sandbox.devices)
                    confine.take_devices(sandbox.devices)
                if close_sockets:
                    confine.close_abstract_sockets()
            except OSError as error:
                # The parent learns that it failed, not why; standard error is the person's already.
                os.write(2, f"policyfs: {error}\n".encode())
                raise

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [
                    *(tools.bubblewrap, b"--args", b"%d" % listed, b"--json-status-fd", b"%d" % status_write),
                    *(b"--", *words),
                ],
                stdin=streams.given[0],
                stdout=streams.given[1],
                stderr=streams.given[2],
                # A variable that the person names (LD_PRELOAD) is the command's, not that of a program outside.
                env={},
                cwd="/",
                pass_fds=(listed, status_write, *handed),
                # Away from the person's terminal: what is typed there is passed on, not sent to bubblewrap.
                start_new_session=True,
                preexec_fn=confined,
            )

        self._supervisor = supervisor
        self._bubblewrap = supervisor.hold(start)
        for descriptor in (listed, status_write, *handed):
            os.close(descriptor)
        self._status = os.fdopen(status_read, "rb")
        self._init = _child_of(self._status.readline())

    def finish(self, streams: Streams) -> int:
        """Pass signals and streams on until the command has ended, and everything it started with it."""
        # From here on no signal raises.
        course = Course(streams)
        try:
            streams.started()
            if self._init is not None:
                course.until_ended(Command(self._init), self._bubblewrap.ended, self._supervisor.end_sandbox)
            else:
                self._bubblewrap.wait()
            # What bubblewrap complained of, too.
            course.deliver()
        finally:
            streams.give_back()
        status = self._bubblewrap.status()
        if self._init is None:
            raise self._not_made()
        if course.ended_by is not None:
            return 128 + course.ended_by
        if status < 0:
            # Killed, as what does not end by itself is.
            return course.status if course.status is not None else 128 - status
        if b"exit-code" not in self._status.read() and not _was_killed(status):
            raise self._not_made()
        return status

    def _not_made(self) -> UserFault:
        return UserFault(
            Exit.MACHINE,
            "bubblewrap could not make the sandbox (what it said is above); nothing was run",
        )


def _was_killed(status: int) -> bool:
    """Whether bubblewrap tells of a first process that a signal ended, which can be ours."""
    return status == 128 + signal.SIGKILL


def _memory(content: bytes) -> int:
    """A file in memory, to be read from its beginning."""
    descriptor = os.memfd_create("policyfs-run")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _child_of(line: bytes) -> int | None:
    """The first process of the sandbox, from the first line that bubblewrap tells; None where it did not come to that."""
    return int(json.loads(line)["child-pid"]) if line.endswith(b"\n") else None


def _sandbox(
    wanted: Wanted, source: HostPath, directory: RunDirectory, beside: _Beside, table: Sequence[mounts.Mount]
) -> tuple[Sandbox, dict[HostPath, bytes]]:
    """Everything the command gets to see, judged by the mount table. Raises `UserFault` with every fault found."""
    faults, added, system = list(beside.faults), beside.added, beside.system
    shown = [place.content or place.path for place in system if place.link is None]
    real_added = [each.place.path for each in added]
    facts = admission.Facts(
        source,
        machine_policy(wanted.options, table),
        {place: machine.origins(place, table) for place in (source, *real_added, *shown)},
        machine.SYSTEM,
        {place: machine.aliases(place, table) for place in real_added},
        machine.kernel_mounts(table),
    )
    alias = admission.alias_of_source(facts, shown)
    if alias is not None:
        faults.append(
            f"SOURCE {display(source)} is also in {display(alias)}, under the path of another mount, which every sandbox "
            "shows; name that one as SOURCE"
        )
    for each in added:
        reason = admission.refused(each.place.path, facts, writable=each.place.writable)
        if reason is not None:
            faults.append(f"{each.option} {display(each.named)}: {reason}")
    if faults:
        raise UserFault(Exit.PLACE, *faults)
    user_home = places.home()
    taken = [source, *real_added, *machine.SYSTEM, *admission.KERNEL]
    kept = next((each for each in added if each.option == "--home"), None)
    home = kept.place.path if kept is not None else layout.private_home(user_home, taken)
    if home is None:
        raise UserFault(Exit.PLACE, "no place is left for an empty home; name one with --home DIR")
    account = machine.account(home)
    ask = directory.ask if layout.client_fits([source, *real_added]) else None
    programs = () if ask is None else (layout.CLIENT_PROGRAMS,)
    try:
        values = environment(os.environb, wanted.environment, home, account.name, account.shell, programs)
    except EnvironmentFault as fault:
        raise UserFault(Exit.USAGE, str(fault)) from None
    if kept is not None:
        _make_home(kept)
    named = {places.absolute(wanted.source): source, **{each.named: each.place.path for each in added}}
    closed_files, closed_directories = machine.closed_places()
    sandbox = Sandbox(
        source=source,
        view=directory.view,
        home=home,
        home_is_private=kept is None,
        directory=source,
        environment=values,
        system=system,
        closed_files=closed_files,
        closed_directories=closed_directories,
        places=[each.place for each in added],
        names=layout.links_to(named, taken, [home, layout.CLIENT, *layout.PRIVATE]),
        network=wanted.network is not Network.NONE,
        devices=directory.devices if confine.owns_devices() else None,
        ask=ask,
    )
    files = {HostPath(b"/etc/passwd"): account.passwd, HostPath(b"/etc/group"): account.group}
    if ask is not None:
        files |= {layout.CLIENT_PROGRAM: Path(inside.__file__).read_bytes(), layout.CLIENT_SOURCE: bytes(source)}
    return sandbox, files


def _make_home(kept: _Added) -> None:
    """A home that is not there yet is made, for its owner alone."""
    try:
        os.makedirs(kept.place.path, 0o700, exist_ok=True)
    except OSError as error:
        raise UserFault(Exit.PLACE, f"--home {display(kept.named)}: {error.strerror}; name a directory of yours") from None


def _added(wanted: Wanted, faults: list[str]) -> list[_Added]:
    """The places that the options name, as they really are."""
    asked = [("--ro-bind", text, False) for text in wanted.read_only]
    asked += [("--bind", text, True) for text in wanted.writable]
    if wanted.home is not None:
        asked.append(("--home", wanted.home, True))
    found: dict[HostPath, _Added] = {}
    for option, text, writable in asked:
        try:
            named = places.absolute(text, places.home())
        except PathFault as fault:
            faults.append(f"{option}: {fault}; name a place of this machine")
            continue
        real = places.real(named)
        if not os.path.exists(real) and option != "--home":
            faults.append(f"{option} {display(named)} does not exist; name a place that does")
        elif option == "--home" and os.path.exists(real) and not os.path.isdir(real):
            faults.append(f"--home {display(named)} is not a directory; name one")
        else:
            earlier = found.get(real)
            if earlier is not None and earlier.place.writable != writable:
                faults.append(f"{option} {display(named)} is given as {earlier.option} too; keep one")
            found[real] = _Added(option, named, Place(real, writable))
    return list(found.values())


def _directory(wanted: Wanted, source: HostPath, view: HostPath) -> HostPath:
    """Where the command starts: where the person stands, if that is in SOURCE and open to the session; else the session's
    start directory, else SOURCE."""
    rest = None
    with contextlib.suppress(FileNotFoundError):
        # Of no use where it was removed; everything else may be named from the root.
        rest = below(HostPath(os.getcwdb()), source)
    candidates = [] if rest is None else [b"/" + rest]
    candidates.append(session_of(wanted.options).start)
    for candidate in candidates:
        path = candidate.rstrip(b"/")
        # Asked of the view, which knows what of it is there.
        if os.path.isdir(view + path) and os.access(view + path, os.X_OK):
            return HostPath(source + path)
    return source
