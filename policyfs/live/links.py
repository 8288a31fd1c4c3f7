"""The symbolic links that a rule's path leads through, watched: a rule guards a place wherever links lead from it.

Theory. The owner may put a link on the way to what a rule names while a view is open: `~/.docker -> dotfiles/docker`, and a
moment later a token stands in `dotfiles/docker/config.json`. So every directory on such a way is watched, and before each
answer the watch is asked whether a name on a way was made since (one poll(2), half a microsecond). inotify(7) notes a name
before the call that made it returns. So a program that wrote the token after the link was made is followed before the token
is read: there is no moment in between for a session to be quicker in.

What was guarded stays guarded as long as the view is open. Otherwise a link that is replaced would open what it led to
between the removal of the old and the making of the new one.

Not all can be watched: a network file system tells nothing of what others change, and a user has so many watches. There,
every way is looked at again when the last look is a second old (`SHORT`).
"""

from __future__ import annotations

import errno
import logging
import os
import select
import time

import inotify_simple
from inotify_simple import flags as events

from policyfs.host import mounts
from policyfs.host.ways import Walk
from policyfs.opening.links import as_links_stand
from policyfs.policy.paths import HostPath, below, display, folded
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.session import Session

log = logging.getLogger("policyfs")

SHORT = 1.0
"""Seconds for which a look holds where nothing tells of changes: as long as names are kept there (`fuse.kernel_cache`)."""

_EVENTS = int(events.CREATE | events.MOVED_TO | events.ONLYDIR | events.DONT_FOLLOW)
"""A name that goes away takes nothing from a rule; one that comes may be a link."""
_OVERFLOW = int(events.Q_OVERFLOW)
_LOST = int(events.IGNORED | events.UNMOUNT)


class LinkWatch:
    """Watches the ways to what the rules of one view name."""

    def __init__(self, source: HostPath, at: HostPath | None = None) -> None:
        """`at` is where the view is mounted: a link that leads there is followed into `source`."""
        self._source = source
        self._instead = {} if at is None else {at: source}
        self._names: dict[int, set[str]] = {}
        self._unwatched = True
        """Whether something on a way is not watched: at first, all of it."""
        self._looked_at = 0.0
        self._poll = select.poll()
        self._inotify: inotify_simple.INotify | None = None
        try:
            self._inotify = inotify_simple.INotify(nonblocking=True)
            self._poll.register(self._inotify.fileno(), select.POLLIN)
        except OSError as error:
            log.info("no inotify (%s): links that the rules lead through are looked at once a second", error.strerror)

    def close(self) -> None:
        """Watch nothing any more."""
        if self._inotify is not None:
            self._poll.unregister(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None
        self._unwatched = False

    def fileno(self) -> int | None:
        """What becomes readable when something changes, where anything tells of it."""
        return None if self._inotify is None else self._inotify.fileno()

    def may_have_changed(self) -> bool:
        """Whether something happened, or may have, that `followed` has to look at. Asked before each answer."""
        return bool(self._poll.poll(0)) or (self._unwatched and time.monotonic() - self._looked_at > SHORT)

    def followed(self, policy: CompiledPolicy) -> CompiledPolicy | None:
        """The policy that holds now, None where it is the one that held."""
        if not self._concerns_a_way():
            return None
        followed = self.applied(policy)
        return None if followed is policy else followed

    def applied(self, policy: CompiledPolicy) -> CompiledPolicy:
        """The policy with what links make now of the places that its rules name, the same object where that is nothing new.
        Their ways are watched from now on."""
        surroundings = self.look(policy.session, policy.surroundings)
        if surroundings is policy.surroundings:
            return policy
        for place, paths in surroundings.ways.items():
            for path in paths:
                if path not in policy.surroundings.ways.get(place, ()):
                    log.info("a link leads from %s to %s: the rule holds there too", display(place), display(path))
        return CompiledPolicy(policy.session, surroundings, fold_case=policy.fold_case)

    def look(self, session: Session, surroundings: Surroundings) -> Surroundings:
        """Watch the ways to what these rules name, and tell what links make of them now (`as_links_stand`)."""
        table = mounts.mounts()
        mine = [mount.point for mount in table if below(self._source, mount.point) is not None]
        closed = [
            mount.point
            for mount in table
            if mount.type == mounts.FILE_SYSTEM_TYPE or (mounts.is_served(mount) and mount.point not in mine)
        ]
        watched: dict[HostPath, set[bytes]] = {}
        while True:
            walk = Walk(closed, self._instead)
            found = as_links_stand(session, surroundings, walk)
            names = {directory: self._that_matter(directory, each) for directory, each in walk.names.items()}
            names = {directory: each for directory, each in names.items() if each}
            if names == watched:
                break
            # Watched first and then looked at: what changes in between is noticed.
            watched = names
            self._watch(watched, table)
        self._looked_at = time.monotonic()
        return found

    def _that_matter(self, directory: HostPath, names: set[bytes]) -> set[bytes]:
        """Without those that lead to SOURCE itself: it was reached once, and stays what it is."""
        return {name for name in names if below(self._source, HostPath(directory.rstrip(b"/") + b"/" + name)) is None}

    def _watch(self, directories: dict[HostPath, set[bytes]], table: list[mounts.Mount]) -> None:
        names: dict[int, set[str]] = {}
        self._unwatched = self._inotify is None
        for directory, each in directories.items():
            if self._inotify is not None:
                try:
                    descriptor = self._inotify.add_watch(directory, _EVENTS)
                except OSError as error:
                    # Where it is not there, the directory above tells when it comes; where it may not even be searched,
                    # nobody with the rights of this user gets further.
                    absent = error.errno in (errno.ENOENT, errno.ENOTDIR) or not os.access(directory, os.X_OK)
                    self._unwatched = self._unwatched or not absent
                    continue
                names.setdefault(descriptor, set()).update(map(folded, each))
            self._unwatched = self._unwatched or not mounts.is_local(directory, table)
        for descriptor in self._names.keys() - names.keys():
            try:
                if self._inotify is not None:
                    self._inotify.rm_watch(descriptor)
            except OSError:
                pass  # The directory is gone, and its watch went with it.
        self._names = names

    def _concerns_a_way(self) -> bool:
        """Whether what happened concerns a name on a way, or cannot be known."""
        concerns = self._unwatched
        for event in [] if self._inotify is None else self._inotify.read(timeout=0):
            names = self._names.get(event.wd)
            lost = event.mask & _OVERFLOW or (names is not None and event.mask & _LOST)
            concerns = concerns or bool(lost) or (names is not None and folded(os.fsencode(event.name)) in names)
        return concerns
