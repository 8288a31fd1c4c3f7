"""Options and files to a policy: the one way in for every command, the daemon and the Python API."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policyfs.host import mounts, own_code, places
from policyfs.host.errors import Exit, UserFault
from policyfs.host.mounts import Mount
from policyfs.host.ways import Walk, on_the_way
from policyfs.opening import git
from policyfs.opening.links import as_links_stand
from policyfs.policy.git import SOURCE as GIT_PROTECTION
from policyfs.policy.git_places import Machine
from policyfs.policy.levels import Level
from policyfs.policy.paths import ROOT, HostPath, PathFault, ViewPath, below, display, for_shell
from policyfs.policy.policy import CompiledPolicy, Surroundings, homes_of
from policyfs.policy.roots import Roots, split_roots
from policyfs.policy.session import Session, SessionFaults, denial_option, level_option, loads, loads_floors
from policyfs.policy.tree import ConflictingRules
from policyfs.source.root import Root


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What a command line says of a policy, as written. Plain texts, so that it can be handed to another process."""

    session_file: str | None = None
    grants: tuple[str, ...] = ()
    floors: tuple[str, ...] = ()
    floors_files: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    read_roots: tuple[str, ...] = ()
    write_roots: tuple[str, ...] = ()
    preset: str | None = None
    protect_git: bool | None = None
    """What the command line says of `[git] protect`, and `git_is_protected` what holds where neither it nor the session file
    says anything."""
    git_is_protected: bool = False
    own_files: tuple[str, ...] = ()
    """Files of policyfs's own that lie where a person says, by absolute names: what they hold is not a session's to see."""
    texts: tuple[tuple[str, str], ...] = ()
    """The session and floors files that were read already (`read`), by absolute names, with what is in them."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> PolicyOptions:
        """The options that `dataclasses.asdict` and JSON made plain values of."""
        fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        return cls(**{**fields, "texts": tuple((name, text) for name, text in values.get("texts", ()))})

    def absolute(self) -> PolicyOptions:
        """The same with file names that hold wherever the process works. What is in them stays as written, `..` too:
        behind a link it is not what its text says, and every link on the way is to be protected."""
        return dataclasses.replace(
            self,
            session_file=None if self.session_file is None else _from_here(self.session_file),
            floors_files=tuple(_from_here(text) for text in self.floors_files),
        )

    def read(self, table: Sequence[Mount]) -> PolicyOptions:
        """The same with the texts of its files, so that everything that is made of these options, in whichever process, goes
        by one reading. A file that cannot be read has none: its reader says why. `table` is the mount table."""
        options = self.absolute()
        texts = {}
        for name in _files_of(options):
            with contextlib.suppress(UserFault):
                texts[name] = _text_of(name, options, table)
        return dataclasses.replace(options, texts=tuple(texts.items()))

    def unread(self) -> PolicyOptions:
        """The same without the texts: what is made of them reads the files as they are then."""
        return dataclasses.replace(self, texts=())


def _from_here(name: str) -> str:
    # An empty name stays one: joined, it would be the directory.
    return name if not name or name.startswith("/") else os.path.join(os.fsdecode(places.working_directory()), name)


NO_GRANT = (
    "no grant: this view would open nothing; add a session file with -s, or a grant such as "
    '-g /=ro -g /Notes=stage (PATH=LEVEL, "/" is SOURCE; levels: none ro stage commit)'
)

HOME_PRESET = Session(read_roots=("~",), write_roots=("~/Downloads", "~/Documents/Lam Agent"))
"""Rule root-1: the home readable less the denylist, two directories of it writable."""


def _files_of(options: PolicyOptions) -> list[str]:
    """The session and floors files of options, the administrator's too where there is one."""
    files = [] if options.session_file is None else [options.session_file]
    return [*files, *_floors_files_of(options)]


def _floors_files_of(options: PolicyOptions) -> list[str]:
    admin = [os.fsdecode(places.ADMIN_FLOORS)] if places.is_there(places.ADMIN_FLOORS) else []
    return [*options.floors_files, *admin]


def session_of(options: PolicyOptions, table: Sequence[Mount] | None = None) -> Session:
    """The session that the options describe; `table` is the mount table where it was read. Raises `UserFault` with every
    fault found."""
    faults: list[str] = []
    session = HOME_PRESET if options.preset == "home" else Session()
    if options.session_file is not None:
        try:
            loaded = loads(_text_of(options.session_file, options, table), _shown(options.session_file))
            session = dataclasses.replace(
                loaded,
                read_roots=session.read_roots + loaded.read_roots,
                write_roots=session.write_roots + loaded.write_roots,
            )
        except SessionFaults as error:
            faults += _lines(error)
        except UserFault as fault:
            faults += fault.messages
    grants = _levels(options.grants, "--grant", faults)
    floors = _levels(options.floors, "--floor", faults)
    for rule in options.deny:
        try:
            denial_option(rule, "--deny")
        except SessionFaults as error:
            faults += _lines(error)
    if faults:
        raise UserFault(Exit.POLICY, *faults)
    read, write = _option_roots(options)
    said = options.protect_git
    if said is None and session.protect_git is None:
        said = options.git_is_protected
    return session.with_options(grants, floors, options.deny, _texts(read), _texts(write), protect_git=said)


def root_notes(options: PolicyOptions) -> list[str]:
    """What a person should know of the roots that options give: each entry that is none. The others hold
    (rule root-3; docs/decisions/0003-roots.md)."""
    return [
        f"{option}: {bad}; the other roots hold"
        for option, roots in zip(("--read-root", "--write-root"), _option_roots(options), strict=True)
        for bad in roots.reported
    ]


def _option_roots(options: PolicyOptions) -> tuple[Roots, Roots]:
    """The read and the write roots of options, each of which is a text of roots."""
    home = places.home()
    return split_roots("\n".join(options.read_roots), home), split_roots("\n".join(options.write_roots), home)


def _texts(roots: Roots) -> tuple[str, ...]:
    return tuple(root.decode("utf-8", "surrogateescape") for root in roots.roots)


def policy_for(
    source: HostPath,
    options: PolicyOptions,
    *,
    fold_case: bool = False,
    mount: int | None = None,
    root: Root | None = None,
    table: Sequence[Mount] | None = None,
) -> CompiledPolicy:
    """The policy of the view of `source` (a real path), opened by `root` in the mount of that number if it was. `table` is
    the mount table where it was read. Raises `UserFault` with every fault found."""
    options = options.absolute()
    table = mounts.mounts() if table is None else table
    faults: list[str] = []
    session = Session()
    try:
        session = session_of(options, table)
    except UserFault as fault:
        faults += fault.messages
    return _policy(
        source,
        session,
        options,
        faults,
        table,
        fold_case=fold_case,
        elsewhere=mounts.elsewhere(source, table),
        tops=mounts.tops(source, mount, table),
        root=root,
    )


def machine_policy(options: PolicyOptions, table: Sequence[Mount]) -> CompiledPolicy:
    """What the denylist, the floors and policyfs's own places leave of the whole machine when everything is granted: the
    judgement of a place that a session is shown beside its view. It judges a path as it is given; the caller asks for every
    path by which a mount shows the place. Raises `UserFault`."""
    options = options.absolute()
    deny = session_of(options, table).deny
    # A path of the view means nothing outside it; places of the home and names do.
    deny = dataclasses.replace(deny, paths=tuple(path for path in deny.paths if not path.startswith("/")))
    return _policy(HostPath(b"/"), Session(grants={ROOT: Level.COMMIT}, deny=deny), options, [], table)


def _policy(
    source: HostPath,
    session: Session,
    options: PolicyOptions,
    faults: list[str],
    table: Sequence[Mount],
    *,
    fold_case: bool = False,
    elsewhere: tuple[tuple[ViewPath, HostPath], ...] = (),
    tops: tuple[HostPath, ...] = (),
    root: Root | None = None,
) -> CompiledPolicy:
    """The policy of a session's view of `source`, once the floors are read; `faults` are those found until now."""
    home = places.home()
    homes = homes_of(home, places.real(home))
    other_homes = _other_homes((source, *session.links_outside), homes, table)
    files = _floors_files_of(options)
    floors: dict[str, dict[HostPath, Level]] = {}
    for name in files:
        try:
            floors[name] = loads_floors(_text_of(name, options, table), _shown(name), home)
        except SessionFaults as error:
            faults += _lines(error)
        except UserFault as fault:
            faults += fault.messages
    if faults:
        raise UserFault(Exit.POLICY, *faults)
    if options.session_file is not None:
        files.append(options.session_file)
    floors[own_code.AUTHOR] = dict.fromkeys(own_code.own_code(), Level.RO)
    found = git.Found({})
    views = _views(table)
    if session.protect_git:
        found = _look_for_git(root, source, session, (*homes, *other_homes), views)
        floors[GIT_PROTECTION] = found.floors
    surroundings = Surroundings(
        source=source,
        homes=homes,
        other_homes=other_homes,
        floors=floors,
        elsewhere=elsewhere,
        own=places.own_places(),
        files=tuple(map(os.fsencode, (*files, *options.own_files))),
        tops=tops,
        unwalked=places.unwalked_places(),
        git_directories=found.directories,
        git_programs_of_work_trees=found.programs_of_work_trees,
    )
    try:
        return CompiledPolicy(session, as_links_stand(session, surroundings, Walk(closed=views)), fold_case=fold_case)
    except SessionFaults as error:
        raise UserFault(Exit.POLICY, *_lines(error)) from None
    except ConflictingRules as error:
        raise UserFault(Exit.POLICY, f"two rules for one path: {error}; keep one") from None


def _look_for_git(
    root: Root | None, source: HostPath, session: Session, homes: Sequence[HostPath], views: Sequence[HostPath]
) -> git.Found:
    """What the owner's git reads and executes of the tree."""
    paths = (session.start, *session.grants)
    if root is not None:
        return git.look(root, paths, homes, views)
    root = Root(source)
    try:
        return git.look(root, paths, homes, views)
    finally:
        root.close()


def git_machine(root: Root, policy: CompiledPolicy) -> Machine:
    """How git is looked at in the tree of a policy: what holds in every repository, and a look at files."""
    return git.machine_of(root, (*policy.surroundings.homes, *policy.surroundings.other_homes), _views(mounts.mounts()))


def _views(table: Sequence[Mount]) -> list[HostPath]:
    """The mountpoints of views. To ask one where its links lead is to ask a daemon, at a reload the very one that asks."""
    return [mount.point for mount in table if mount.type == mounts.FILE_SYSTEM_TYPE]


def _other_homes(
    shown: Sequence[HostPath], homes: Sequence[HostPath], table: Sequence[Mount]
) -> tuple[HostPath, ...]:
    """The homes beside the user's that a view may show something of, by the password database: under the names it has, and
    by their real paths, but where that is to ask a server that may not answer."""
    named = places.account_homes()
    real = {places.real(home) for home in named if mounts.is_local(home, table)}
    near = {
        home
        for home in named | real
        if any(below(home, place) is not None or below(place, home) is not None for place in shown)
    }
    return tuple(sorted(near.difference(homes)))


def source_of(text: str) -> HostPath:
    """SOURCE as a command line names it, as its real path. Raises `UserFault`."""
    try:
        named = places.absolute(text)
    except PathFault as fault:
        raise UserFault(Exit.PLACE, f"SOURCE: {fault}; name a directory") from None
    shown = display(named)
    try:
        mode = os.stat(named).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise UserFault(Exit.PLACE, f"SOURCE {shown} does not exist; name a directory that does") from None
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            reason = f"is a mount whose daemon is gone; clean up with `policyfs umount {for_shell(named)}`"
        else:
            reason = f"cannot be reached: {error.strerror}; name a directory of yours"
        raise UserFault(Exit.PLACE, f"SOURCE {shown} {reason}") from None
    if not stat.S_ISDIR(mode):
        raise UserFault(Exit.PLACE, f"SOURCE {shown} is a file; name a directory, and grant the file in it with -g")
    if not os.access(named, os.R_OK | os.X_OK):
        advice = f"see its permissions with `ls -ld {for_shell(named)}`"
        raise UserFault(Exit.PLACE, f"SOURCE {shown} cannot be read by you; {advice}")
    return places.real(named)


_MAX_BYTES = 16 << 20
"""Longest session or floors file, in bytes: half a million rules."""


def _text_of(name: str, options: PolicyOptions, table: Sequence[Mount] | None) -> str:
    """The text of a session or floors file, as it was read for these options if it was. A command or the daemon may ask, now
    or at a reload, and all must read the same: so it is a regular file, and no name of /proc, which leads each process
    somewhere else (`/dev/stdin`)."""
    read = dict(options.texts).get(name)
    if read is not None:
        return read
    shown = _shown(name) or "``"
    reason = None
    try:
        if any(below(place, proc) is not None for proc in _proc_mounts(table) for place in on_the_way(name)):
            reason = "leads through /proc, and so each process to another file"
        else:
            with open(name, "rb", opener=_never_waiting) as file:
                regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                content = file.read(_MAX_BYTES + 1) if regular else b""
            if not regular:
                reason = "is not a regular file, and could not be read again at a reload"
            elif len(content) > _MAX_BYTES:
                reason = f"has more than {_MAX_BYTES >> 20} MiB, which no session file needs"
            else:
                return content.decode("utf-8")
    except OSError as error:
        raise UserFault(Exit.POLICY, f"{shown} cannot be read: {error.strerror}; name a readable file") from None
    except UnicodeDecodeError as error:
        raise UserFault(Exit.POLICY, f"{shown} is not UTF-8 (byte {error.start}); TOML is written in UTF-8") from None
    except ValueError:
        raise UserFault(Exit.POLICY, "a file name with a NUL in it; name a readable file") from None
    raise UserFault(Exit.POLICY, f"{shown} {reason}; write the rules to a file and name that")


def _never_waiting(name: str, flags: int) -> int:
    """How a file is opened that may be a FIFO or a terminal: neither is waited for nor taken."""
    return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _proc_mounts(table: Sequence[Mount] | None) -> list[HostPath]:
    return [mount.point for mount in (mounts.mounts() if table is None else table) if mount.type == "proc"]


def _levels(texts: tuple[str, ...], option: str, faults: list[str]) -> dict[ViewPath, Level]:
    levels: dict[ViewPath, Level] = {}
    for text in texts:
        try:
            path, level = level_option(text, option)
        except SessionFaults as error:
            faults += _lines(error)
            continue
        if levels.setdefault(path, level) is not level:
            faults.append(f"{option}: gives {display(path)} two levels; keep one")
    return levels


def _shown(name: str) -> str:
    return display(os.fsencode(name))


def _lines(error: SessionFaults) -> list[str]:
    return [f"{error.where}: {fault}" for fault in error.faults]
