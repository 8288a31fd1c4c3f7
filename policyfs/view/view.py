"""The one gate: it decides by the policy, and only then touches the source.

Theory. Each method takes a `Location`, a path with the places the policy gives it, and answers in one order: the policy
by the text alone; then the object, reached by exactly the names that were judged; then whether that object may be shown
at all (devices, other mounts and, in a bare mount, links that lead out of it may not). So neither an answer nor its
timing depends on whether something exists that the rules hide, and what is swapped in between is judged again or not
reached.

`expect` is the object a caller means, where it knows one from an earlier look (the mount's nodes). If the names lead
elsewhere by now the answer is STALE, never MISSING: the thing was moved away, and a reader who races a rename must not
take it for gone (rule file-2). An open file is meant by itself, whatever became of its names (rule file-3).

Methods raise `Refused` for what the policy or the judgement of the object refuses, and pass on the source's OSError.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from policyfs.policy import permissions
from policyfs.policy.git import How
from policyfs.policy.levels import Standing
from policyfs.policy.paths import ROOT, HostPath, Name, ViewPath, child, components, joined
from policyfs.policy.policy import Policy
from policyfs.policy.refusals import Refusal
from policyfs.source.files import OpenFile
from policyfs.source.root import RENAME_EXCHANGE, RENAME_NOREPLACE, Root
from policyfs.source.tree import Identity
from policyfs.view import removal
from policyfs.view.attributes import Attributes, FileSystem, settable_mode, shown, shown_file_system
from policyfs.view.credentials import Credentials
from policyfs.view.links import Links
from policyfs.view.listing import Listing
from policyfs.view.location import Location, Target
from policyfs.view.moved import all_still_there, made_there, renamed_there, still_there
from policyfs.view.outcomes import Changed, Changes, Removed, Renamed
from policyfs.view.raced import Raced, tried_again
from policyfs.view.refused import Refused
from policyfs.view.repositories import Repositories

_PASSED_ON = os.O_ACCMODE | os.O_APPEND | os.O_TRUNC | os.O_SYNC | os.O_DSYNC
"""The flags of open(2) that mean something to the source. The rest is the kernel's (O_CLOEXEC), is dealt with before
(O_CREAT, O_EXCL) or would ask for an alignment that no request keeps (O_DIRECT)."""

_USER = os.geteuid()
_IS_ROOT = _USER == 0

_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})
"""What a walk answers where nothing is, or something that no view enters: a link or another mount."""

_USER_ATTRIBUTES = b"user."
LEVEL_ATTRIBUTE = b"user.policyfs.level"
"""For programs in a view that want to know why (rule attribute-6); read-only, and in no listing."""


class View:
    """A directory tree under a policy."""

    def __init__(
        self,
        root: Root,
        policy: Policy,
        *,
        named: HostPath | None = None,
        at: HostPath | None = None,
        beside: Sequence[HostPath] | None = None,
    ) -> None:
        """`named` is SOURCE as its owner calls it, `at` where the view is mounted, `beside` what stands beside it in a
        sandbox; they matter to links (`Links`)."""
        self.root = root
        self.policy = policy
        self.links = Links(root, lambda: self.policy, named or root.source, at, beside)
        own = (root.source, named or root.source)
        self.repositories = Repositories(root, lambda: self.policy, own if at is None else (at, *own))
        self._credentials = Credentials(*_places_of(policy))

    def close(self) -> None:
        """Let go of SOURCE, and of the places that were looked into. Nothing can be asked after it."""
        self.root.close()
        del self._credentials

    def take(self, policy: Policy) -> None:
        """Go by another policy from now on."""
        if _places_of(policy) != _places_of(self.policy):
            self._credentials = Credentials(*_places_of(policy))
        self.policy = policy

    def is_credential(self, file: OpenFile) -> bool:
        """Whether an open file is one that the denylist hides under another name."""
        status = os.fstat(file.descriptor)
        return status.st_nlink > 1 and self._credentials.holds(status)

    # -- where --------------------------------------------------------------------------------------------------------

    @property
    def top(self) -> Location:
        """The location of `/`."""
        root = self.policy.root
        return Location(ROOT, root, root, root)

    def child(self, location: Location, name: Name, within: Identity | None = None) -> Location:
        """The location of a name in a directory, in this very one if it is said. Decides nothing yet."""
        place = location.place
        return Location(
            child(location.path, name),
            self.policy.child(place, name),
            place,
            location.above if place.standing is Standing.HIDDEN else place,
            within,
        )

    def locate(self, path: ViewPath) -> Location:
        """The location of a path, by its text. Decides nothing yet."""
        location = self.top
        for name in components(path):
            location = self.child(location, name)
        return location

    # -- looking ------------------------------------------------------------------------------------------------------

    def attributes(self, location: Location, expect: Target = None) -> Attributes:
        """What stat(2) shows of a visible object or a passage; of a link, the link's own."""
        self._seen(location)
        if isinstance(expect, OpenFile):
            status = os.fstat(expect.descriptor)
            return shown(location.place, self.root.identify(status), status)
        try:
            if location.within is None:
                status = self.root.stat(location.path)
            else:
                with self._directory(location) as (directory, _):
                    status = self.root.stat_within(directory, location.path)
        except OSError as error:
            raise self._absent(location, error, expect) from None
        identity = self.root.identify(status)
        if expect is not None and expect != identity:
            raise Refused(Refusal.STALE, location.path, absent=True)
        return shown(location.place, identity, status, self._judge(location, status))

    def link_text(self, location: Location, expect: Target = None) -> bytes:
        """What readlink(2) gives: an absolute target inside SOURCE relative to the link."""
        with self._reached(location, expect) as (reached, status):
            if not stat.S_ISLNK(status.st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return self.links.text_in_view(location.path, self.root.link_text(reached))

    def may_list(self, location: Location, expect: Target = None) -> None:
        """The policy's word on listing a directory. Nothing is touched."""
        self._seen(location)
        self._unless(permissions.look(location.place), location)

    def listing(self, location: Location, expect: Target = None) -> Listing:
        """A directory, to be listed. The caller closes it."""
        self.may_list(location)
        with self._reached(location, expect) as (reached, status):
            if not stat.S_ISDIR(status.st_mode):
                raise Refused(Refusal.NOT_DIRECTORY, location.path)
            directory = self.root.reopen(reached, os.O_RDONLY | os.O_DIRECTORY)
        return Listing(self, location, directory, removed=isinstance(expect, OpenFile))

    def access(self, location: Location, wanted: int, expect: Target = None) -> None:
        """access(2): the policy's word, then the source's permissions for the session's own user."""
        self._seen(location)
        self._unless(permissions.access(location.place, wanted), location)
        if location.place.standing is Standing.PASSAGE:
            return
        with self._reached(location, expect) as (reached, status):
            if not stat.S_ISLNK(status.st_mode) and not self.root.accessible(reached, wanted):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    def file_system(self) -> FileSystem:
        """What statfs(2) tells: the source's, with the free space rounded down so that it does not count what hidden
        writers write (rule attribute-7)."""
        return shown_file_system(self.root.file_system())

    # -- files --------------------------------------------------------------------------------------------------------

    def may_open(self, location: Location, flags: int) -> None:
        """The policy's word on open(2), before anything is touched."""
        self._seen(location)
        writes = flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC
        self._unless(permissions.change(location.place) if writes else permissions.look(location.place), location)
        if writes:
            self.repositories.may_write(location)

    def open(self, location: Location, flags: int, expect: Target = None, *, lazily: bool = False) -> OpenFile:
        """Open a regular file that is there. `flags` are open(2)'s; O_RDONLY with O_TRUNC is a write.

        `lazily`, a file that is only read is reached now and opened at the first read; the decision, and whether the
        source lets it be read, is told now.
        """
        self.may_open(location, flags)
        reached, status = self._reach(location, expect)
        try:
            if (
                lazily
                and flags & (os.O_ACCMODE | os.O_TRUNC) == os.O_RDONLY
                and stat.S_ISREG(status.st_mode)
                and (_IS_ROOT or (status.st_uid == _USER and status.st_mode & stat.S_IRUSR))
            ):
                file = OpenFile(reached, unopened=flags & _PASSED_ON)
                reached = -1
                return file
            return self._opened(location, reached, status, flags)
        finally:
            if reached >= 0:
                os.close(reached)

    def _opened(self, location: Location, reached: int, status: os.stat_result, flags: int) -> OpenFile:
        if stat.S_ISDIR(status.st_mode):
            raise Refused(Refusal.IS_DIRECTORY, location.path)
        if not stat.S_ISREG(status.st_mode):
            code = errno.ELOOP if stat.S_ISLNK(status.st_mode) else errno.ENXIO
            raise OSError(code, os.strerror(code))
        writes = flags & os.O_ACCMODE != os.O_RDONLY or bool(flags & os.O_TRUNC)
        if writes and status.st_mode & (stat.S_ISUID | stat.S_ISGID) and status.st_mode & 0o111:
            # A daemon of root's would leave the bits in place, and the session would write a program that runs as
            # somebody else (rule attribute-2). Setgid without execute is mandatory locking of old, and harmless.
            raise Refused(Refusal.SET_ID, location.path)
        file = OpenFile(self.root.reopen(reached, flags & _PASSED_ON), flags)
        file.guard = self.repositories.guard(location)
        return file

    @tried_again
    def create(self, location: Location, flags: int, mode: int, umask: int = 0) -> tuple[OpenFile, Attributes]:
        """Make a regular file and open it; without O_EXCL, open the one that is there."""
        self._may_make(location, How.FILE)
        with self._directory(location) as (directory, name):
            self.repositories.may_complete(location, directory, name)
            try:
                descriptor = self.root.create(
                    directory, name, flags & _PASSED_ON & ~os.O_TRUNC, settable_mode(mode, directory=False) & ~umask
                )
            except FileExistsError:
                status = self._status_of_taken(location, directory, name)
                if flags & os.O_EXCL:
                    raise Refused(Refusal.EXISTS, location.path) from None
                file = self.open(location, flags, self.root.identify(status))
                return file, self.judged(location, status)
            file = OpenFile(descriptor, flags)
            file.guard = self.repositories.guard(location)
            try:
                made = made_there(self.root, location, directory, name, os.fstat(descriptor))
                return file, shown(location.place, self.root.identify(made), made)
            except BaseException:
                file.close()
                raise

    # -- names --------------------------------------------------------------------------------------------------------

    @tried_again
    def make_directory(self, location: Location, mode: int, umask: int = 0) -> Attributes:
        """mkdir(2)."""
        with self._making(location, How.DIRECTORY) as (directory, name):
            self.root.make_directory(directory, name, settable_mode(mode, directory=True) & 0o1777 & ~umask)
            return self._made(location, directory, name)

    @tried_again
    def make_node(self, location: Location, mode: int, umask: int = 0) -> Attributes:
        """mknod(2) of a regular file, a fifo or a socket; a device cannot be made."""
        kind = stat.S_IFMT(mode)
        how = How.FILE if kind == stat.S_IFREG else How.SPECIAL
        self._may_make(location, how)
        if kind not in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK):
            raise Refused(Refusal.NO_DEVICES, location.path)
        with self._making(location, how) as (directory, name):
            self.root.make_node(directory, name, kind | settable_mode(mode, directory=False) & ~umask)
            return self._made(location, directory, name)

    @tried_again
    def make_link(self, location: Location, text: bytes) -> Attributes:
        """symlink(2), of a link that may be made (`Links`)."""
        with self._making(location, How.SYMBOLIC_LINK) as (directory, name):
            if not self.links.may_be_made(location.path, text):
                raise Refused(Refusal.DENIED, location.path)
            still_there(self.root, location, directory)
            self.root.make_link(directory, name, text)
            return self._made(location, directory, name)

    @tried_again
    def link(self, old: Location, new: Location, expect: Target = None) -> Attributes:
        """link(2): a second name at the same level."""
        self._seen(old)
        self._parent_seen(new)
        self._unless(permissions.link(old.place, new.parent, new.place), new)
        with self._reached(old, expect) as (reached, status):
            if stat.S_ISDIR(status.st_mode):
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            with self._making(new, How.HARD_LINK) as (directory, name):
                self._may_be_named(old, new, reached, b"", status)
                self.root.link(reached, directory, name)
                return self._made(new, directory, name)

    def unlink(self, location: Location, *, hold: bool = False) -> Removed:
        """unlink(2). `hold` keeps what lost the name in reach, for a request that found it by the name a moment ago."""
        return self._removed(location, directory=False, hold=hold)

    def remove_directory(self, location: Location, *, hold: bool = False) -> Removed:
        """rmdir(2): ENOTEMPTY while anything is in it, hidden or not; but links that are not shown since they lead out of
        the mount go with it, if nothing else is in it."""
        return self._removed(location, directory=True, hold=hold)

    def _removed(self, location: Location, *, directory: bool, hold: bool) -> Removed:
        self._may_remove(location, directory=directory)
        with self._directory(location) as (parent, name):
            reached = self._reach_shown(location, parent, name)
            try:
                status = os.fstat(reached)
                if stat.S_ISDIR(status.st_mode) != directory:
                    raise Refused(Refusal.NOT_DIRECTORY if directory else Refusal.IS_DIRECTORY, location.path)
                self.repositories.may_take_away(location, parent, name)
                links: tuple[Location, ...] = ()
                still_there(self.root, location, parent)
                if directory:
                    links = removal.remove_directory(self, location, parent, reached)
                else:
                    self.root.unlink(parent, name)
                held = OpenFile(reached, unopened=os.O_RDONLY) if hold else None
                if held is not None:
                    reached = -1
                return Removed(self.root.identify(status), held, links)
            finally:
                if reached >= 0:
                    os.close(reached)

    @tried_again
    def rename(self, old: Location, new: Location, flags: int = 0, *, hold: bool = False) -> Renamed:
        """renameat2(2) with RENAME_NOREPLACE or RENAME_EXCHANGE, or neither; EINVAL for anything else. `hold` keeps what
        is replaced in reach."""
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE) or flags == RENAME_NOREPLACE | RENAME_EXCHANGE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        exchange = flags == RENAME_EXCHANGE
        self._may_rename(old, new)
        if exchange:
            self._may_rename(new, old)
        with self._directory(old) as (old_parent, old_name), self._directory(new) as (new_parent, new_name):
            moved = self._status_shown(old, old_parent, old_name)
            replaced = self._status_of_target(new, new_parent, new_name)
            if replaced is None and exchange:
                raise Refused(self._unseen(new), new.path)
            if replaced is not None and flags == RENAME_NOREPLACE:
                raise Refused(Refusal.EXISTS, new.path)
            directory = stat.S_ISDIR(moved.st_mode)
            self._may_move(old, new, directory=directory)
            self._may_be_named(old, new, old_parent, old_name, moved)
            self.repositories.may_move(old, new, old_parent, old_name, moved)
            self.repositories.may_complete(new, new_parent, new_name)
            if exchange and replaced is not None:
                self._may_move(new, old, directory=stat.S_ISDIR(replaced.st_mode))
                self.repositories.may_move(new, old, new_parent, new_name, replaced)
                self._may_be_named(new, old, new_parent, new_name, replaced)
            held = None
            if hold and replaced is not None and not exchange:
                held = removal.kept(self.root, new_parent, new_name, replaced)
            # Where nothing is shown, nothing may be replaced: what turned up since is judged, not overwritten.
            careful = RENAME_NOREPLACE if replaced is None else flags
            parents = (old, old_parent), (new, new_parent)
            try:
                all_still_there(self.root, parents)
                try:
                    self.root.rename(old_parent, old_name, new_parent, new_name, careful)
                except FileExistsError:
                    replaced = self._status_of_taken(new, new_parent, new_name)
                    if flags == RENAME_NOREPLACE:
                        raise Refused(Refusal.EXISTS, new.path) from None
                    all_still_there(self.root, parents)
                    self.root.rename(old_parent, old_name, new_parent, new_name, flags)
                if replaced is None or exchange:
                    renamed_there(self.root, parents, moved, flags)
            except BaseException:
                if held is not None:
                    held.close()
                raise
            return Renamed(
                self.root.identify(moved),
                None if replaced is None else self.root.identify(replaced),
                directory or (replaced is not None and stat.S_ISDIR(replaced.st_mode)),
                held,
            )

    def _may_move(self, old: Location, new: Location, *, directory: bool) -> None:
        """The policy's word on moving what is known to be a directory or not: what a rule names stays where it is, and
        nothing changes its level."""
        self._unless(permissions.move_away(old.parent, old.place, directory=directory), old)
        self._unless(permissions.move(old.parent, old.place, new.parent, new.place), new)

    # -- attributes ---------------------------------------------------------------------------------------------------

    def change(self, location: Location, changes: Changes, expect: Target = None) -> Changed:
        """What setattr asks for at once: truncate(2), chmod(2), chown(2), utimensat(2), as far as the source lets the
        session's user. Gives what came of it."""
        with self._changing(location, expect) as (reached, status):
            if changes.size is not None:
                self.repositories.may_write(location, changes.size)
                self._opened(location, reached, status, os.O_WRONLY).close()
                self.root.truncate(reached, changes.size)
            if changes.mode is not None:
                mode = settable_mode(changes.mode, directory=stat.S_ISDIR(status.st_mode))
                self.root.change_mode(reached, mode)
            if changes.uid != -1 or changes.gid != -1:
                self.root.change_owner(reached, changes.uid, changes.gid)
            if changes.access_ns is not None or changes.modify_ns is not None:
                self.root.set_times(reached, status, changes.access_ns, changes.modify_ns)
            return Changed(status.st_ctime_ns, self.judged(location, os.fstat(reached), reached))

    def extended(self, location: Location, name: bytes, expect: Target = None) -> bytes:
        """getxattr(2) of a `user.*` attribute."""
        self._seen(location)
        self._unless(permissions.look(location.place), location)
        if not name.startswith(_USER_ATTRIBUTES):
            raise Refused(Refusal.UNSUPPORTED, location.path)
        with self._reached(location, expect) as (reached, _):
            return self.root.attribute(reached, name)

    def level_of(self, location: Location, expect: Target = None) -> bytes:
        """The level of a visible path, as the attribute `user.policyfs.level` gives it to programs in the view. No listing
        names the attribute, so that no copy carries it."""
        self._seen(location)
        self._unless(permissions.look(location.place), location)
        with self._reached(location, expect):
            return str(location.place.level).encode("ascii")

    def extended_names(self, location: Location, expect: Target = None) -> list[bytes]:
        """listxattr(2): the `user.*` names."""
        self._seen(location)
        self._unless(permissions.look(location.place), location)
        with self._reached(location, expect) as (reached, status):
            if stat.S_ISLNK(status.st_mode):
                return []
            return [
                name
                for name in self.root.attributes(reached)
                if name.startswith(_USER_ATTRIBUTES) and name != LEVEL_ATTRIBUTE
            ]

    def set_extended(self, location: Location, name: bytes, value: bytes, flags: int = 0, expect: Target = None) -> None:
        """setxattr(2) of a `user.*` attribute, with XATTR_CREATE or XATTR_REPLACE."""
        with self._changing(location, expect) as (reached, _):
            self._settable(location, name)
            self.root.set_attribute(reached, name, value, flags)

    def remove_extended(self, location: Location, name: bytes, expect: Target = None) -> None:
        """removexattr(2) of a `user.*` attribute."""
        with self._changing(location, expect) as (reached, _):
            self._settable(location, name)
            self.root.remove_attribute(reached, name)

    @staticmethod
    def _settable(location: Location, name: bytes) -> None:
        if not name.startswith(_USER_ATTRIBUTES) or name == LEVEL_ATTRIBUTE:
            raise Refused(Refusal.UNSUPPORTED, location.path)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def _unseen(self, location: Location) -> Refusal:
        return permissions.unseen(location.above, unknown_missing=self.policy.unknown_missing)

    def _seen(self, location: Location) -> None:
        """Refuse what is hidden by rule. Before any touch of the source."""
        if location.place.standing is Standing.HIDDEN:
            raise Refused(self._unseen(location), location.path, location.place)

    def _may_make(self, location: Location, how: How) -> None:
        """The policy's word on making a name."""
        self._parent_seen(location)
        self._unless(permissions.create(location.parent, location.place, directory=how is How.DIRECTORY), location)
        self.repositories.may_make(location, how)

    def _may_remove(self, location: Location, *, directory: bool) -> None:
        """The policy's word on taking a name away."""
        self._parent_seen(location)
        unknown_missing = self.policy.unknown_missing
        self._unless(
            permissions.remove(location.parent, location.place, directory=directory, unknown_missing=unknown_missing),
            location,
        )

    def _may_rename(self, old: Location, new: Location) -> None:
        """The policy's word on a rename, before it is known what is moved."""
        self._parent_seen(old)
        self._unless(permissions.old_name(old.parent, old.place, unknown_missing=self.policy.unknown_missing), old)
        self._parent_seen(new)
        self._unless(permissions.new_name(new.parent, new.place), new)
        self.repositories.may_make(new, How.MOVED)

    def _parent_seen(self, location: Location) -> None:
        """Refuse what lies in a hidden directory as what it is, not seen. Only for callers that come with whole paths:
        the kernel's lookup of the directory is refused before."""
        if location.parent.standing is Standing.HIDDEN:
            raise Refused(self._unseen(location), location.path, location.place)

    @staticmethod
    def _unless(refusal: Refusal | None, location: Location) -> None:
        if refusal is not None:
            raise Refused(refusal, location.path, location.place)

    def _absent(self, location: Location, error: OSError, expect: Target = None) -> OSError:
        """What a failed walk means: for an object that was there, that it is elsewhere now; else that it is missing."""
        if error.errno not in _NOT_THERE:
            return error
        if expect is not None:
            return Refused(Refusal.STALE, location.path, absent=True)
        if error.errno == errno.ENOTDIR:
            at = self._file_on_the_way(location)
            if at is not None:
                return Refused(Refusal.NOT_DIRECTORY, at)
        # Where another mount or a link stands something is there; should it go, no event may tell.
        absent = error.errno not in (errno.EXDEV, errno.ELOOP)
        return Refused(self._unseen(location), location.path, location.place, absent=absent)

    def _file_on_the_way(self, location: Location) -> ViewPath | None:
        """The visible file that a path tries to walk through: only for callers that come with whole paths, since the
        kernel asks name by name."""
        names = components(location.path)
        for length in range(1, len(names)):
            above = self.locate(ViewPath(joined(names[:length])))
            try:
                if not self.attributes(above).is_directory:
                    return location.path
            except OSError:
                return None
        return None

    # -- judging objects ----------------------------------------------------------------------------------------------

    def judged(self, location: Location, status: os.stat_result, reached: int | None = None) -> Attributes:
        """The attributes of an object, if a view shows such an object there; else it is missing."""
        return shown(location.place, self.root.identify(status), status, self._judge(location, status, reached))

    def _judge(self, location: Location, status: os.stat_result, reached: int | None = None) -> int | None:
        """Refuse an object that no view shows there, as missing. Gives the length of what a link is shown to say."""
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            return None
        if stat.S_ISREG(mode):
            hidden = location.place.standing is Standing.PASSAGE or (status.st_nlink > 1 and self._credentials.holds(status))
        elif stat.S_ISLNK(mode) and location.place.standing is not Standing.PASSAGE:
            if self.links.all_shown:
                return None
            text = self._text(location, status, reached)
            if self.links.shows(location.path, text):
                return len(self.links.text_in_view(location.path, text))
            hidden = True
        else:
            hidden = not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) or location.place.standing is Standing.PASSAGE
        if hidden:
            raise Refused(self._unseen(location), location.path, location.place)
        return None

    def _text(self, location: Location, status: os.stat_result, reached: int | None) -> bytes:
        if reached is not None:
            return self.root.link_text(reached)
        try:
            link = self.root.reach(location.path)
        except OSError as error:
            raise self._absent(location, error) from None
        try:
            if self.root.identity(link) != self.root.identify(status):
                raise Refused(Refusal.STALE, location.path, absent=True)
            return self.root.link_text(link)
        finally:
            os.close(link)

    def _may_be_named(self, old: Location, new: Location, directory: int, name: bytes, status: os.stat_result) -> None:
        """Refuse a link, in a directory or by its descriptor and no name, another path where it may not be."""
        if stat.S_ISLNK(status.st_mode):
            text = self.root.link_text(directory, name)
            if not self.links.may_be_moved(old.path, new.path, text):
                raise Refused(Refusal.DENIED, new.path)

    def _status_shown(self, location: Location, directory: int, name: Name) -> os.stat_result:
        """The status of an entry that is shown; missing otherwise."""
        reached = self._reach_shown(location, directory, name)
        try:
            return os.fstat(reached)
        finally:
            os.close(reached)

    def _reach_shown(self, location: Location, directory: int, name: Name) -> int:
        """An entry that is shown, by a descriptor that is the caller's to close; missing otherwise."""
        try:
            reached = self.root.reach_name(directory, name)
        except OSError as error:
            raise self._absent(location, error) from None
        try:
            self._judge(location, os.fstat(reached), reached)
        except BaseException:
            os.close(reached)
            raise
        return reached

    def _status_of_target(self, location: Location, directory: int, name: Name) -> os.stat_result | None:
        """The status of what a rename would replace, None where nothing is; refused where it is not shown."""
        try:
            status = self.root.stat_name(directory, name)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise Refused(permissions.taken(location.parent), location.path) from None
        try:
            self._judge(location, status)
        except Refused:
            raise Refused(permissions.taken(location.parent), location.path) from None
        return status

    def _status_of_taken(self, location: Location, directory: int, name: Name) -> os.stat_result:
        """After EEXIST: the status of what has the name; refused as taken where it is not shown."""
        status = self._status_of_target(location, directory, name)
        if status is None:
            # It was there and is gone again: as good a moment as any for the caller to try once more.
            raise Raced
        return status

    # -- reaching -----------------------------------------------------------------------------------------------------

    def _reach(self, location: Location, expect: Target) -> tuple[int, os.stat_result]:
        """An object that is seen and shown, by an O_PATH descriptor that is the caller's to close."""
        self._seen(location)
        try:
            if isinstance(expect, OpenFile):
                reached = os.dup(expect.descriptor)
            else:
                reached = self.root.reach(location.path)
        except OSError as error:
            raise self._absent(location, error, expect) from None
        try:
            status = os.fstat(reached)
            if not isinstance(expect, OpenFile):
                if expect is not None and expect != self.root.identify(status):
                    raise Refused(Refusal.STALE, location.path, absent=True)
                self._judge(location, status, reached)
        except BaseException:
            os.close(reached)
            raise
        return reached, status

    @contextmanager
    def _reached(self, location: Location, expect: Target) -> Iterator[tuple[int, os.stat_result]]:
        """The same for as long as it is used."""
        reached, status = self._reach(location, expect)
        try:
            yield reached, status
        finally:
            os.close(reached)

    @contextmanager
    def _changing(self, location: Location, expect: Target) -> Iterator[tuple[int, os.stat_result]]:
        """An object that may be changed."""
        self._seen(location)
        self._unless(permissions.change(location.place), location)
        self.repositories.may_change(location)
        with self._reached(location, expect) as found:
            yield found

    @contextmanager
    def _directory(self, location: Location) -> Iterator[tuple[int, Name]]:
        """The directory that holds a location's name, and that name."""
        parent, _, name = location.path.rpartition(b"/")
        if not name:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        try:
            directory = self.root.reach_directory(ViewPath(parent or b"/"))
        except OSError as error:
            raise self._absent(location, error, location.within) from None
        try:
            if location.within is not None and self.root.identity(directory) != location.within:
                raise Refused(Refusal.STALE, location.path, absent=True)
            try:
                yield directory, Name(name)
            except OSError:
                # What a name in it answers is of the place where it stands by now.
                still_there(self.root, location, directory)
                raise
        finally:
            os.close(directory)

    @contextmanager
    def _making(self, location: Location, how: How) -> Iterator[tuple[int, Name]]:
        """The directory in which a name may be made. A name that is taken is refused by what has it."""
        self._may_make(location, how)
        with self._directory(location) as (directory, name):
            self.repositories.may_complete(location, directory, name)
            try:
                yield directory, name
            except FileExistsError:
                self._status_of_taken(location, directory, name)
                raise Refused(Refusal.EXISTS, location.path) from None

    def _made(self, location: Location, directory: int, name: Name) -> Attributes:
        made = self.root.stat_name(directory, name)
        return self.judged(location, made_there(self.root, location, directory, name, made))


def _places_of(policy: Policy) -> tuple[tuple[HostPath, ...], ...]:
    """Where credentials are looked for under a policy: in which places, from which mountpoints, and where not."""
    return policy.denied_places, policy.surroundings.tops, policy.surroundings.unwalked
