"""What each operation needs, as total functions from places to a refusal or None: the table of docs/rules.md.

A function here takes places, never paths: that is what keeps an answer from depending on what exists. `None` means that
the policy has nothing against it; the source may still refuse.

A place with rules below it (`Place.leads`) is a directory or nothing. Were it a link, what the rules name would be
reached where the link leads, and other rules hold there. So nothing but a directory is made there, and what stands there is
neither removed nor moved. The answer is the same whether anything is there or not.

The refusals of the table that speak of a parent at `ro` come out READ_ONLY and those under a passage DENIED, before
anything else is asked: `_within` is that column of the table.
"""

from __future__ import annotations

from policyfs.policy.levels import Level, Standing
from policyfs.policy.refusals import Refusal
from policyfs.policy.tree import Place

READ = 4
WRITE = 2
EXECUTE = 1
"""The bits of access(2)."""


def unseen(nearest: Place, *, unknown_missing: bool) -> Refusal:
    """The answer for what is not seen, by its nearest ancestor that is visible or a passage (rule
    passage-4). `unknown_missing` is `[passages] unknown = "missing"`."""
    if nearest.standing is Standing.PASSAGE and not unknown_missing:
        return Refusal.DENIED
    return Refusal.MISSING


def lookup(parent: Place, child: Place, *, unknown_missing: bool) -> Refusal | None:
    """May this name be looked up at all. A visible name or a passage may; whether it is there the source says."""
    if child.standing is Standing.HIDDEN:
        return unseen(parent, unknown_missing=unknown_missing)
    return None


def look(place: Place) -> Refusal | None:
    """Read a file, list a directory, read attributes of one: needs `ro`. `place` is visible or a passage."""
    return Refusal.DENIED if place.standing is Standing.PASSAGE else None


def change(place: Place) -> Refusal | None:
    """Change what is there: contents, mode, times, attributes. `place` is visible or a passage."""
    if place.standing is Standing.PASSAGE:
        return Refusal.DENIED
    return None if place.level >= Level.STAGE else Refusal.READ_ONLY


def commit(place: Place, *, in_repository: bool) -> Refusal | None:
    """Send a change to the forge: needs `commit`, inside a repository (rule level-7)."""
    if place.standing is Standing.PASSAGE:
        return Refusal.DENIED
    if not in_repository:
        return Refusal.NOTHING_TO_COMMIT
    if place.level is Level.RO:
        return Refusal.READ_ONLY
    return None if place.level is Level.COMMIT else Refusal.NOT_COMMITTED


def access(place: Place, wanted: int) -> Refusal | None:
    """The answer to access(2). X_OK on a passage succeeds: it can be walked through."""
    if place.standing is Standing.PASSAGE:
        return Refusal.DENIED if wanted & (READ | WRITE) else None
    if wanted & WRITE:
        return change(place)
    return None


def create(parent: Place, child: Place, *, directory: bool) -> Refusal | None:
    """Make a name: create, mkdir, mknod, symlink, the new name of link. `directory` says that a directory is to be made."""
    refused = new_name(parent, child)
    if refused is None and child.leads and not directory:
        return _outranked(Refusal.RULES_BELOW, parent)
    return refused


def new_name(parent: Place, child: Place) -> Refusal | None:
    """The new name of a rename, before it is known what is moved there."""
    refused = _within(parent, child)
    if refused is None and child.level is Level.NONE:
        return Refusal.DENIED
    return refused or change(child)


def taken(parent: Place) -> Refusal:
    """Making a name that something which is not shown has taken. It says that the name is taken and nothing else."""
    return Refusal.READ_ONLY if parent.level is Level.RO else Refusal.DENIED


def remove(parent: Place, child: Place, *, directory: bool, unknown_missing: bool) -> Refusal | None:
    """Take a name away: unlink, or rmdir with `directory`."""
    refused = old_name(parent, child, unknown_missing=unknown_missing)
    if refused is None and (child.leads or (directory and child.named)):
        return _outranked(Refusal.NAMED_BY_RULE, parent)
    return refused


def old_name(parent: Place, child: Place, *, unknown_missing: bool) -> Refusal | None:
    """The old name of a rename, before it is known what is moved away."""
    refused = lookup(parent, child, unknown_missing=unknown_missing)
    if refused is not None:
        return refused
    if parent.standing is Standing.PASSAGE or child.standing is Standing.PASSAGE:
        return Refusal.DENIED
    return _within(parent, child) or change(child)


def link(old: Place, new_parent: Place, new: Place) -> Refusal | None:
    """Give a file a second name. Both names are at one level, or one file would be at two, and have one part in a git
    directory, or what is written under the one would not be judged under the other."""
    refused = look(old) or create(new_parent, new, directory=False)
    if refused is None and (old.level is not new.level or old.git is not new.git):
        return _outranked(Refusal.CROSSES_RULES, new_parent)
    return refused


def move_away(parent: Place, child: Place, *, directory: bool) -> Refusal | None:
    """What a rename answers once it is known whether a directory is moved: one that a rule names stays."""
    return _outranked(Refusal.NAMED_BY_RULE, parent) if directory and child.named else None


def move(old_parent: Place, old: Place, new_parent: Place, new: Place) -> Refusal | None:
    """What a rename answers once the old name may be taken away and the new one made: nothing may change its level by
    moving, neither the thing itself nor what lies below it, nor its part in a git directory. Whether it is a directory is
    not asked: with rules below, it is one, or it is what is not to stand there."""
    crosses = old.level is not new.level or not old.git.may_become(new.git) or old.leads or new.leads
    if not crosses:
        return None
    return _outranked(_outranked(Refusal.CROSSES_RULES, old_parent), new_parent)


def mount_point(parent: Place) -> Refusal:
    """Removing, renaming or replacing a name at or below which a tree is mounted, and making anything but a directory above
    a mount point (rule tree-2)."""
    return _outranked(Refusal.MOUNT_POINT, parent)


def between_trees(old_parent: Place, new_parent: Place) -> Refusal:
    """Link or rename from one tree into another (rule tree-3)."""
    return _outranked(_outranked(Refusal.CROSSES_TREES, old_parent), new_parent)


def _within(parent: Place, child: Place) -> Refusal | None:
    """The columns of the table: under a passage nothing is made or taken away; under `ro` only what is itself at stage."""
    if parent.standing is Standing.PASSAGE:
        return Refusal.DENIED
    if parent.level is Level.RO and child.level < Level.STAGE:
        return Refusal.READ_ONLY
    return None


def _outranked(refusal: Refusal, parent: Place) -> Refusal:
    """The same columns for EBUSY and EXDEV: a parent at ro answers first."""
    return Refusal.READ_ONLY if parent.level is Level.RO else refusal
