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

from policyfs.policy import permissions
from policyfs.policy.git import How
from policyfs.policy.levels import Standing
from policyfs.policy.paths import ROOT
from policyfs.policy.refusals import Refusal
from policyfs.source.files import OpenFile
from policyfs.source.tree import RENAME_EXCHANGE, RENAME_NOREPLACE
from policyfs.view import removal
from policyfs.view.attributes import Attributes, FileSystem, settable_mode, shown, shown_file_system
from policyfs.view.judge import Judge, Reached
from policyfs.view.listing import Listing
from policyfs.view.location import Location, Target
from policyfs.view.moved import both_still_there, made_there, renamed_there, still_there
from policyfs.view.outcomes import Changed, Changes, Removed, Renamed
from policyfs.view.raced import tried_again
from policyfs.view.refused import Refused
from policyfs.view.trees import Entry

_PASSED_ON = os.O_ACCMODE | os.O_APPEND | os.O_TRUNC | os.O_SYNC | os.O_DSYNC
"""The flags of open(2) that mean something to the source. The rest is the kernel's (O_CLOEXEC), is dealt with before
(O_CREAT, O_EXCL) or would ask for an alignment that no request keeps (O_DIRECT)."""

_USER = os.geteuid()
_IS_ROOT = _USER == 0

_USER_ATTRIBUTES = b"user."
LEVEL_ATTRIBUTE = b"user.policyfs.level"
"""For programs in a view that want to know why (rule attribute-6); read-only, and in no listing."""


class ReferenceMonitor(Judge):
    """Trees under a policy, as a session sees and changes them."""

    # -- looking ------------------------------------------------------------------------------------------------------

    def link_text(self, location: Location, expect: Target = None) -> bytes:
        """What readlink(2) gives: an absolute target inside SOURCE relative to the link."""
        with self._reached(location, expect) as (tree, reached, status):
            if not stat.S_ISLNK(status.st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return self.links.text_in_view(location.path, tree.link_text(reached))

    def may_list(self, location: Location, expect: Target = None) -> None:
        """The policy's word on listing a directory. Nothing is touched."""
        self._seen(location)
        self._unless(permissions.look(location.place), location)

    def listing(self, location: Location, expect: Target = None) -> Listing:
        """A directory, to be listed. The caller closes it."""
        self.may_list(location)
        with self._reached(location, expect) as (tree, reached, status):
            if not stat.S_ISDIR(status.st_mode):
                raise Refused(Refusal.NOT_DIRECTORY, location.path)
            directory = tree.open_directory(reached)
        return Listing(self, location, directory, removed=isinstance(expect, OpenFile))

    def access(self, location: Location, wanted: int, expect: Target = None) -> None:
        """access(2): the policy's word, then the source's permissions for the session's own user."""
        self._seen(location)
        self._unless(permissions.access(location.place, wanted), location)
        if location.place.standing is Standing.PASSAGE:
            return
        with self._reached(location, expect) as (tree, reached, status):
            if not stat.S_ISLNK(status.st_mode) and not tree.accessible(reached, wanted):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    def file_system(self) -> FileSystem:
        """What statfs(2) tells: the source's, with the free space rounded down so that it does not count what hidden
        writers write (rule attribute-7)."""
        tree, _ = self.trees.of(ROOT)
        return shown_file_system(tree.file_system())

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
        tree, reached, status = self._reach(location, expect)
        try:
            if (
                lazily
                and flags & (os.O_ACCMODE | os.O_TRUNC) == os.O_RDONLY
                and stat.S_ISREG(status.st_mode)
                and (_IS_ROOT or (status.st_uid == _USER and status.st_mode & stat.S_IRUSR))
            ):
                file = tree.open_lazily(reached, flags & _PASSED_ON)
                reached = -1
                return file
            return self._opened(location, Reached(tree, reached, status), flags)
        finally:
            if reached >= 0:
                tree.release(reached)

    def _opened(self, location: Location, found: Reached, flags: int) -> OpenFile:
        tree, reached, status = found
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
        file = tree.open(reached, flags & _PASSED_ON)
        file.guard = self.repositories.guard(location)
        return file

    @tried_again
    def create(self, location: Location, flags: int, mode: int, umask: int = 0) -> tuple[OpenFile, Attributes]:
        """Make a regular file and open it; without O_EXCL, open the one that is there."""
        if not flags & os.O_EXCL and self.trees.is_point(location.path):
            return self.open(location, flags), self.attributes(location)
        self._may_make(location, How.FILE)
        with self._directory(location) as entry:
            tree = entry.tree
            permitted = settable_mode(mode, directory=False) & ~umask
            self.repositories.may_complete(location, entry)
            try:
                file = tree.create(entry.directory, entry.name, flags & _PASSED_ON & ~os.O_TRUNC, permitted)
            except FileExistsError:
                status = self._status_of_taken(location, entry)
                if flags & os.O_EXCL:
                    raise Refused(Refusal.EXISTS, location.path) from None
                file = self.open(location, flags, tree.identify(status))
                return file, self.judged(location, status)
            file.guard = self.repositories.guard(location)
            try:
                made = made_there(location, entry, file.status())
                return file, shown(location.place, tree.identify(made), made)
            except BaseException:
                file.close()
                raise

    # -- names --------------------------------------------------------------------------------------------------------

    @tried_again
    def make_directory(self, location: Location, mode: int, umask: int = 0) -> Attributes:
        """mkdir(2)."""
        with self._making(location, How.DIRECTORY) as entry:
            permitted = settable_mode(mode, directory=True) & 0o1777 & ~umask
            entry.tree.make_directory(entry.directory, entry.name, permitted)
            return self._made(location, entry)

    @tried_again
    def make_node(self, location: Location, mode: int, umask: int = 0) -> Attributes:
        """mknod(2) of a regular file, a fifo or a socket; a device cannot be made."""
        kind = stat.S_IFMT(mode)
        how = How.FILE if kind == stat.S_IFREG else How.SPECIAL
        self._may_make(location, how)
        if kind not in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK):
            raise Refused(Refusal.NO_DEVICES, location.path)
        with self._making(location, how) as entry:
            permitted = settable_mode(mode, directory=False) & ~umask
            entry.tree.make_node(entry.directory, entry.name, kind | permitted)
            return self._made(location, entry)

    @tried_again
    def make_link(self, location: Location, text: bytes) -> Attributes:
        """symlink(2), of a link that may be made (`Links`)."""
        with self._making(location, How.SYMBOLIC_LINK) as entry:
            if not self.links.may_be_made(location.path, text):
                raise Refused(Refusal.DENIED, location.path)
            still_there(location, entry)
            entry.tree.make_link(entry.directory, entry.name, text)
            return self._made(location, entry)

    @tried_again
    def link(self, old: Location, new: Location, expect: Target = None) -> Attributes:
        """link(2): a second name at the same level."""
        self._seen(old)
        self._parent_seen(new)
        self._unless(permissions.link(old.place, new.parent, new.place), new)
        with self._reached(old, expect) as (tree, reached, status):
            if stat.S_ISDIR(status.st_mode):
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            self._in_one_tree(old, new, tree)
            with self._making(new, How.HARD_LINK) as entry:
                self._may_be_named(old, new, tree, reached, b"", status)
                tree.link(reached, entry.directory, entry.name)
                return self._made(new, entry)

    def unlink(self, location: Location, *, hold: bool = False) -> Removed:
        """unlink(2). `hold` keeps what lost the name in reach, for a request that found it by the name a moment ago."""
        return self._removed(location, directory=False, hold=hold)

    def remove_directory(self, location: Location, *, hold: bool = False) -> Removed:
        """rmdir(2): ENOTEMPTY while anything is in it, hidden or not; but links that are not shown since they lead out of
        the mount go with it, if nothing else is in it."""
        return self._removed(location, directory=True, hold=hold)

    def _removed(self, location: Location, *, directory: bool, hold: bool) -> Removed:
        self._may_remove(location, directory=directory)
        with self._directory(location) as entry:
            tree = entry.tree
            reached = self._reach_shown(location, entry)
            try:
                status = tree.status(reached)
                if stat.S_ISDIR(status.st_mode) != directory:
                    raise Refused(Refusal.NOT_DIRECTORY if directory else Refusal.IS_DIRECTORY, location.path)
                self.repositories.may_take_away(location, entry)
                links: tuple[Location, ...] = ()
                still_there(location, entry)
                if directory:
                    links = removal.remove_directory(self, location, entry, reached)
                else:
                    tree.unlink(entry.directory, entry.name)
                held = tree.open_lazily(reached, os.O_RDONLY) if hold else None
                if held is not None:
                    reached = -1
                return Removed(tree.identify(status), held, links)
            finally:
                if reached >= 0:
                    tree.release(reached)

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
        with self._directory(old) as old_entry, self._directory(new) as new_entry:
            tree = old_entry.tree
            moved = self._status_shown(old, old_entry)
            replaced = self._status_of_target(new, new_entry)
            if replaced is None and exchange:
                raise Refused(self._unseen(new), new.path)
            if replaced is not None and flags == RENAME_NOREPLACE:
                raise Refused(Refusal.EXISTS, new.path)
            directory = stat.S_ISDIR(moved.st_mode)
            self._may_move(old, new, directory=directory)
            self._may_be_named(old, new, tree, old_entry.directory, old_entry.name, moved)
            self.repositories.may_move(old, new, old_entry, moved)
            self.repositories.may_complete(new, new_entry)
            if exchange and replaced is not None:
                self._may_move(new, old, directory=stat.S_ISDIR(replaced.st_mode))
                self.repositories.may_move(new, old, new_entry, replaced)
                self._may_be_named(new, old, tree, new_entry.directory, new_entry.name, replaced)
            held = None
            if hold and replaced is not None and not exchange:
                held = removal.kept(new_entry, replaced)
            # Where nothing is shown, nothing may be replaced: what turned up since is judged, not overwritten.
            careful = RENAME_NOREPLACE if replaced is None else flags
            ends = (old, old_entry), (new, new_entry)
            try:
                both_still_there(ends)
                try:
                    _rename(old_entry, new_entry, careful)
                except FileExistsError:
                    replaced = self._status_of_taken(new, new_entry)
                    if flags == RENAME_NOREPLACE:
                        raise Refused(Refusal.EXISTS, new.path) from None
                    both_still_there(ends)
                    _rename(old_entry, new_entry, flags)
                if replaced is None or exchange:
                    renamed_there(ends, moved, flags)
            except BaseException:
                if held is not None:
                    held.close()
                raise
            return Renamed(
                tree.identify(moved),
                None if replaced is None else tree.identify(replaced),
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
        with self._changing(location, expect) as found:
            tree, reached, status = found
            if changes.size is not None:
                self.repositories.may_write(location, changes.size)
                self._opened(location, found, os.O_WRONLY).close()
                tree.truncate(reached, changes.size)
            if changes.mode is not None:
                mode = settable_mode(changes.mode, directory=stat.S_ISDIR(status.st_mode))
                tree.change_mode(reached, mode)
            if changes.uid != -1 or changes.gid != -1:
                tree.change_owner(reached, changes.uid, changes.gid)
            if changes.access_ns is not None or changes.modify_ns is not None:
                tree.set_times(reached, status, changes.access_ns, changes.modify_ns)
            return Changed(status.st_ctime_ns, self.judged(location, tree.status(reached), reached))

    def extended(self, location: Location, name: bytes, expect: Target = None) -> bytes:
        """getxattr(2) of a `user.*` attribute."""
        self._seen(location)
        self._unless(permissions.look(location.place), location)
        if not name.startswith(_USER_ATTRIBUTES):
            raise Refused(Refusal.UNSUPPORTED, location.path)
        with self._reached(location, expect) as (tree, reached, _):
            return tree.attribute(reached, name)

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
        with self._reached(location, expect) as (tree, reached, status):
            if stat.S_ISLNK(status.st_mode):
                return []
            return [
                name for name in tree.attributes(reached) if name.startswith(_USER_ATTRIBUTES) and name != LEVEL_ATTRIBUTE
            ]

    def set_extended(self, location: Location, name: bytes, value: bytes, flags: int = 0, expect: Target = None) -> None:
        """setxattr(2) of a `user.*` attribute, with XATTR_CREATE or XATTR_REPLACE."""
        with self._changing(location, expect) as (tree, reached, _):
            self._settable(location, name)
            tree.set_attribute(reached, name, value, flags)

    def remove_extended(self, location: Location, name: bytes, expect: Target = None) -> None:
        """removexattr(2) of a `user.*` attribute."""
        with self._changing(location, expect) as (tree, reached, _):
            self._settable(location, name)
            tree.remove_attribute(reached, name)

    @staticmethod
    def _settable(location: Location, name: bytes) -> None:
        if not name.startswith(_USER_ATTRIBUTES) or name == LEVEL_ATTRIBUTE:
            raise Refused(Refusal.UNSUPPORTED, location.path)


def _rename(old: Entry, new: Entry, flags: int) -> None:
    """Both are entries of one tree."""
    old.tree.rename(old.directory, old.name, new.directory, new.name, flags)
