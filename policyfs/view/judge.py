"""What the operations of a view are made of: what they decide, what they judge, and how they reach it.

`View` has the operations, and the theory of them. Here is what they have in common: the policy's word by a location alone,
the judgement of an object that was reached, and the ways to reach one in the tree that holds the location.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from policyfs.policy import permissions
from policyfs.policy.git import How
from policyfs.policy.levels import Standing
from policyfs.policy.paths import ROOT, HostPath, Name, ViewPath, child, components, joined
from policyfs.policy.policy import CompiledPolicy
from policyfs.policy.refusals import Refusal
from policyfs.source.files import OpenFile
from policyfs.source.root import Root
from policyfs.source.tree import TOP, Identity, Status, Tree, TreePath
from policyfs.view.attributes import Attributes, shown
from policyfs.view.credentials import Credentials
from policyfs.view.links import Links
from policyfs.view.location import Location, Target
from policyfs.view.moved import made_there, still_there
from policyfs.view.raced import Raced
from policyfs.view.refused import Refused
from policyfs.view.repositories import Repositories
from policyfs.view.trees import NO_TREES, Entry, Trees

_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})
"""What a walk answers where nothing is, or something that no view enters: a link or another mount."""


class Reached(NamedTuple):
    """An object that was reached in its tree, with its status then."""

    tree: Tree
    reached: int
    status: Status


class Judge:
    """The trees of one view under its policy."""

    def __init__(
        self,
        root: Root,
        policy: CompiledPolicy,
        *,
        named: HostPath | None = None,
        at: HostPath | None = None,
        beside: Sequence[HostPath] | None = None,
        mounted: Mapping[ViewPath, Tree] = NO_TREES,
    ) -> None:
        """`root` is SOURCE, `named` is SOURCE as its owner calls it, `at` where the view is mounted, `beside` what stands
        beside it in a sandbox; they matter to links (`Links`). `mounted` are further trees, each with its mount point,
        which is not `/`; the view closes them."""
        self.root = root
        self.trees = Trees(root, mounted)
        self.policy = policy
        self.links = Links(self.trees, lambda: self.policy, root.source, named or root.source, at, beside)
        own = (root.source, named or root.source)
        bases = (*((base, ROOT) for base in (own if at is None else (at, *own))), *self.trees.places())
        self.repositories = Repositories(self.trees, lambda: self.policy, bases)
        self._credentials = Credentials(*_places_of(policy))

    def close(self) -> None:
        """Let go of the trees, and of the places that were looked into. Nothing can be asked after it."""
        self.trees.close()
        del self._credentials

    def take(self, policy: CompiledPolicy) -> None:
        """Go by another policy from now on."""
        if _places_of(policy) != _places_of(self.policy):
            self._credentials = Credentials(*_places_of(policy))
        self.policy = policy

    def is_credential(self, file: OpenFile) -> bool:
        """Whether an open file is one that the denylist hides under another name."""
        status = file.status()
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
        tree, path = self.trees.of(location.path)
        status: Status
        if isinstance(expect, OpenFile):
            status = expect.status()
            return shown(location.place, tree.identify(status), status)
        try:
            if location.within is None or path == TOP:
                status = tree.stat(path)
            else:
                with self._directory(location) as entry:
                    status = tree.stat_within(entry.directory, path)
        except OSError as error:
            raise self._absent(location, error, expect) from None
        identity = tree.identify(status)
        if expect is not None and expect != identity:
            raise Refused(Refusal.STALE, location.path, absent=True)
        return shown(location.place, identity, status, self._judge(location, status))

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
        directory = how is How.DIRECTORY
        self._unless(permissions.create(location.parent, location.place, directory=directory), location)
        if self.trees.hold(location.path):
            if self.trees.is_point(location.path):
                raise Refused(Refusal.EXISTS, location.path)
            if not directory:
                raise Refused(permissions.mount_point(location.parent), location.path)
        self.repositories.may_make(location, how)

    def _may_remove(self, location: Location, *, directory: bool) -> None:
        """The policy's word on taking a name away."""
        self._parent_seen(location)
        unknown_missing = self.policy.unknown_missing
        self._unless(
            permissions.remove(location.parent, location.place, directory=directory, unknown_missing=unknown_missing),
            location,
        )
        self._stays(location)

    def _may_rename(self, old: Location, new: Location) -> None:
        """The policy's word on a rename, before it is known what is moved."""
        self._parent_seen(old)
        self._unless(permissions.old_name(old.parent, old.place, unknown_missing=self.policy.unknown_missing), old)
        self._parent_seen(new)
        self._unless(permissions.new_name(new.parent, new.place), new)
        self._in_one_tree(old, new, self.trees.of_name(old.path)[0])
        self._stays(old)
        self._stays(new)
        self.repositories.may_make(new, How.MOVED)

    def _in_one_tree(self, old: Location, new: Location, tree: Tree) -> None:
        """Refuse a new name in another tree than the one that has the old name, or the object."""
        if self.trees.of_name(new.path)[0] is not tree:
            raise Refused(permissions.between_trees(old.parent, new.parent), new.path)

    def _stays(self, location: Location) -> None:
        """Refuse to take away or replace a name at or below which a tree is mounted."""
        if self.trees.hold(location.path):
            raise Refused(permissions.mount_point(location.parent), location.path)

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

    def judged(self, location: Location, status: Status, reached: int | None = None) -> Attributes:
        """The attributes of an object, if a view shows such an object there; else it is missing."""
        tree, _ = self.trees.of(location.path)
        return shown(location.place, tree.identify(status), status, self._judge(location, status, reached))

    def _judge(self, location: Location, status: Status, reached: int | None = None) -> int | None:
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

    def _text(self, location: Location, status: Status, reached: int | None) -> bytes:
        tree, path = self.trees.of(location.path)
        if reached is not None:
            return tree.link_text(reached)
        try:
            link = tree.reach(path)
        except OSError as error:
            raise self._absent(location, error) from None
        try:
            if tree.identity(link) != tree.identify(status):
                raise Refused(Refusal.STALE, location.path, absent=True)
            return tree.link_text(link)
        finally:
            tree.release(link)

    def _may_be_named(self, old: Location, new: Location, tree: Tree, directory: int, name: bytes, status: Status) -> None:
        """Refuse a link, in a directory or by what was reached and no name, another path where it may not be."""
        if stat.S_ISLNK(status.st_mode):
            text = tree.link_text(directory, name)
            if not self.links.may_be_moved(old.path, new.path, text):
                raise Refused(Refusal.DENIED, new.path)

    def _status_shown(self, location: Location, entry: Entry) -> Status:
        """The status of an entry that is shown; missing otherwise."""
        reached = self._reach_shown(location, entry)
        try:
            return entry.tree.status(reached)
        finally:
            entry.tree.release(reached)

    def _reach_shown(self, location: Location, entry: Entry) -> int:
        """An entry that is shown, which is the caller's to release; missing otherwise."""
        try:
            reached = entry.tree.reach_name(entry.directory, entry.name)
        except OSError as error:
            raise self._absent(location, error) from None
        try:
            self._judge(location, entry.tree.status(reached), reached)
        except BaseException:
            entry.tree.release(reached)
            raise
        return reached

    def _status_of_target(self, location: Location, entry: Entry) -> Status | None:
        """The status of what a rename would replace, None where nothing is; refused where it is not shown."""
        try:
            status = entry.tree.stat_name(entry.directory, entry.name)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise Refused(permissions.taken(location.parent), location.path) from None
        try:
            self._judge(location, status)
        except Refused:
            raise Refused(permissions.taken(location.parent), location.path) from None
        return status

    def _status_of_taken(self, location: Location, entry: Entry) -> Status:
        """After EEXIST: the status of what has the name; refused as taken where it is not shown."""
        status = self._status_of_target(location, entry)
        if status is None:
            # It was there and is gone again: as good a moment as any for the caller to try once more.
            raise Raced
        return status

    # -- reaching -----------------------------------------------------------------------------------------------------

    def _reach(self, location: Location, expect: Target) -> Reached:
        """An object that is seen and shown, which is the caller's to release."""
        self._seen(location)
        tree, path = self.trees.of(location.path)
        try:
            reached = tree.open_again(expect) if isinstance(expect, OpenFile) else tree.reach(path)
        except OSError as error:
            raise self._absent(location, error, expect) from None
        try:
            status = tree.status(reached)
            if not isinstance(expect, OpenFile):
                if expect is not None and expect != tree.identify(status):
                    raise Refused(Refusal.STALE, location.path, absent=True)
                self._judge(location, status, reached)
        except BaseException:
            tree.release(reached)
            raise
        return Reached(tree, reached, status)

    @contextmanager
    def _reached(self, location: Location, expect: Target) -> Iterator[Reached]:
        """The same for as long as it is used."""
        found = self._reach(location, expect)
        try:
            yield found
        finally:
            found.tree.release(found.reached)

    @contextmanager
    def _changing(self, location: Location, expect: Target) -> Iterator[Reached]:
        """An object that may be changed."""
        self._seen(location)
        self._unless(permissions.change(location.place), location)
        self.repositories.may_change(location)
        with self._reached(location, expect) as found:
            yield found

    @contextmanager
    def _directory(self, location: Location) -> Iterator[Entry]:
        """A location's name in the directory that holds it."""
        if location.path == ROOT:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        tree, path = self.trees.of_name(location.path)
        parent, _, name = path.rpartition(b"/")
        try:
            directory = tree.reach_directory(TreePath(parent) or TOP)
        except OSError as error:
            raise self._absent(location, error, location.within) from None
        try:
            if location.within is not None and tree.identity(directory) != location.within:
                raise Refused(Refusal.STALE, location.path, absent=True)
            entry = Entry(tree, path, directory, Name(name))
            try:
                yield entry
            except OSError:
                # What a name in it answers is of the place where it stands by now.
                still_there(location, entry)
                raise
        finally:
            tree.release(directory)

    @contextmanager
    def _making(self, location: Location, how: How) -> Iterator[Entry]:
        """A name that may be made. One that is taken is refused by what has it."""
        self._may_make(location, how)
        with self._directory(location) as entry:
            self.repositories.may_complete(location, entry)
            try:
                yield entry
            except FileExistsError:
                self._status_of_taken(location, entry)
                raise Refused(Refusal.EXISTS, location.path) from None

    def _made(self, location: Location, entry: Entry) -> Attributes:
        made = entry.tree.stat_name(entry.directory, entry.name)
        return self.judged(location, made_there(location, entry, made))


def _places_of(policy: CompiledPolicy) -> tuple[tuple[HostPath, ...], ...]:
    """Where credentials are looked for under a policy: in which places, from which mountpoints, and where not."""
    return policy.denied_places, policy.surroundings.tops, policy.surroundings.unwalked
