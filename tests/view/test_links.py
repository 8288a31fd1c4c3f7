"""Where links land that no case of conformance/ can lay out: in views of `/`, mounted at SOURCE's own place, or of a
SOURCE that its owner knows by another name."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, ViewPath
from policyfs.policy.policy import Policy, Surroundings
from policyfs.policy.session import Session
from policyfs.source.root import Root
from policyfs.view.links import Landing, Links

Opens = Callable[..., Links]


@pytest.fixture
def links() -> Iterator[Opens]:
    """Opens the links of a view at `stage`, less what is hidden."""
    roots = []

    def opened(source: bytes, hidden: bytes = b"/hidden", named: bytes | None = None, at: bytes | None = None) -> Links:
        roots.append(Root(HostPath(source)))
        grants = {ViewPath(b"/"): Level.STAGE, ViewPath(hidden): Level.NONE}
        policy = Policy(Session(grants=grants, links_outside=(HostPath(b"/usr"),)), Surroundings(HostPath(source)))
        return Links(roots[-1], lambda: policy, HostPath(named or source), None if at is None else HostPath(at))

    yield opened
    for root in roots:
        root.close()


@pytest.fixture
def tree(source: Path) -> bytes:
    """SOURCE with a file, a hidden one, and a directory that is a link."""
    (source / "d").mkdir()
    (source / "d/f").write_text("f")
    (source / "hidden").mkdir()
    (source / "hidden/f").write_text("f")
    (source / "to-d").symlink_to("d")
    (source / "to-hidden").symlink_to("hidden")
    return os.fsencode(source)


LINK = ViewPath(b"/d/link")


def test_in_a_view_of_the_whole_machine(links: Opens, tree: bytes) -> None:
    """Every absolute place is inside, and judged there; above `/` is `/`."""
    of = links(b"/", hidden=tree + b"/hidden")
    link = ViewPath(tree + b"/d/link")
    assert of.landing(link, tree + b"/d/f") == tree + b"/d/f"
    assert of.landing(link, b"../" * 99 + tree[1:] + b"/d/f") == tree + b"/d/f"
    assert of.landing(link, tree + b"/hidden/f") is Landing.HIDDEN
    assert of.landing(link, b"../hidden/f") is Landing.HIDDEN
    assert of.landing(link, b"/") == b"/"


def test_by_every_name_that_source_has(links: Opens, tree: bytes) -> None:
    """SOURCE's real path, its owner's name for it and the place of the mount are all inside; anything else is not."""
    of = links(tree, named=b"/owner/tree", at=b"/mnt/view")
    for base in (tree, b"/owner/tree", b"/mnt/view", b"//mnt/./view/"):
        assert of.landing(LINK, base + b"/d/f") == b"/d/f"
        assert of.landing(LINK, base) == b"/"
        assert of.landing(LINK, base + b"/hidden/f") is Landing.HIDDEN
        assert not of.shows(LINK, base + b"/hidden/f")
    for base in (tree + b"-evil", b"/owner/tree2", b"/mnt", b"/owner", b"/mnt/view.old"):
        assert of.landing(LINK, base + b"/d/f") is Landing.HIDDEN
    assert of.landing(LINK, b"/usr/bin/env") is Landing.OUTSIDE
    assert of.shows(LINK, b"/usr/bin/env")


def test_what_an_absolute_link_says_in_the_view(links: Opens, tree: bytes) -> None:
    """Relative to the link where the path as it stands would lead out of the view; as it is where it would not, and where
    the view is mounted at SOURCE's own place."""
    elsewhere = links(tree, named=b"/owner/tree", at=b"/mnt/view")
    assert elsewhere.text_in_view(LINK, tree + b"/d/f") == b"../d/f"
    assert elsewhere.text_in_view(LINK, b"/owner/tree/d/f") == b"../d/f"
    assert elsewhere.text_in_view(ViewPath(b"/a/b/c"), tree) == b"../../."
    assert elsewhere.text_in_view(ViewPath(b"/link"), tree) == b"."
    for kept in (b"/mnt/view/d/f", b"/usr/bin", b"f", b"../d/f"):
        assert elsewhere.text_in_view(LINK, kept) == kept
    for own in (tree, b"/owner/tree"):
        assert links(tree, named=b"/owner/tree", at=own).text_in_view(LINK, tree + b"/d/f") == tree + b"/d/f"


def test_climbing_out_of_the_view(links: Opens, tree: bytes) -> None:
    """A text that climbs above `/` goes on from where the view is mounted, as the kernel will: outside, or back in."""
    of = links(tree, at=b"/mnt/view")
    assert of.landing(LINK, b"../../view/d/f") == b"/d/f"
    assert of.landing(LINK, b"../../view/hidden/f") is Landing.HIDDEN
    assert of.landing(LINK, b"../../view/../view/./d//f") == b"/d/f"
    assert of.landing(LINK, b"../../../usr/bin") is Landing.OUTSIDE
    assert of.landing(LINK, b"../../../etc") is Landing.HIDDEN
    assert of.landing(LINK, b"../../" + os.path.basename(tree) + b"/d/f") is Landing.HIDDEN
    not_mounted = links(tree)
    assert not_mounted.landing(LINK, b"../../" + os.path.basename(tree) + b"/d/f") == b"/d/f"
    assert not_mounted.landing(LINK, b"../../" + os.path.basename(tree) + b"/hidden/f") is Landing.HIDDEN


def test_where_a_path_leads(links: Opens, tree: bytes) -> None:
    """Every link on the way is followed, the last one only if asked; what is missing is taken by its text."""
    of = links(tree)
    for path, followed, last_kept in (
        (b"/d/f", b"/d/f", b"/d/f"),
        (b"/to-d/f", b"/d/f", b"/d/f"),
        (b"/to-d", b"/d", b"/to-d"),
        (b"/to-d/gone/f", b"/d/gone/f", b"/d/gone/f"),
        (b"/to-d/f/x", b"/d/f/x", b"/d/f/x"),
        (b"/to-hidden/f", Landing.HIDDEN, Landing.HIDDEN),
        (b"/to-hidden", Landing.HIDDEN, b"/to-hidden"),
        (b"/", b"/", b"/"),
    ):
        assert of.resolve(ViewPath(path), follow_last=True) == followed
        assert of.resolve(ViewPath(path), follow_last=False) == last_kept


def test_a_text_that_goes_on_after_no_directory(links: Opens, tree: bytes) -> None:
    """A link that says `f/`, `f/.` or `f/../d` stops whoever follows it, as the kernel does; it is shown by where its text
    lands all the same, and no `..` leads out of what is judged."""
    of = links(tree)
    for name, text, lands, leads in (
        (b"slash", b"f/", b"/d/f", Landing.NOT_DIRECTORY),
        (b"dot", b"f/.", b"/d/f", Landing.NOT_DIRECTORY),
        (b"file-up", b"f/../f", b"/d/f", Landing.NOT_DIRECTORY),
        (b"below-up", b"f/x/../../f", b"/d/f", Landing.NOT_DIRECTORY),
        (b"gone-slash", b"gone/", b"/d/gone", Landing.MISSING),
        (b"gone-up", b"gone/../f", b"/d/f", Landing.MISSING),
        (b"both", b"gone/../f/", b"/d/f", Landing.MISSING),
        (b"by-slash", b"slash", b"/d/f", Landing.NOT_DIRECTORY),
        (b"to-hidden-up", b"f/../../hidden/f", Landing.HIDDEN, Landing.HIDDEN),
        (b"directory", b"../to-d/", b"/d", b"/d"),
        (b"directory-up", b"../to-d/../d/./f", b"/d/f", b"/d/f"),
        (b"file", b"f", b"/d/f", b"/d/f"),
        (b"gone-file", b"gone", b"/d/gone", b"/d/gone"),
    ):
        os.symlink(text, tree + b"/d/" + name)
        path = ViewPath(b"/d/" + name)
        assert of.landing(path, text) == lands, name
        assert of.resolve(path, follow_last=True) == leads, name
        assert of.resolve(ViewPath(path + b"/x"), follow_last=True) == (
            leads if isinstance(leads, Landing) else leads + b"/x"
        ), name


def test_work_that_a_link_makes_is_bounded(links: Opens, tree: bytes) -> None:
    """256 components are walked and no more, and 40 links. A name of more than 255 bytes is one that is missing: no file
    system has it, so nothing hidden is behind it."""
    of = links(tree)
    assert of.landing(LINK, b"x/../" * 127 + b"f/g") == b"/d/f/g"
    assert of.landing(LINK, b"x/../" * 128 + b"f") is Landing.HIDDEN
    assert of.landing(LINK, b"./" * 300 + b"f") == b"/d/f"
    assert of.landing(LINK, b"n" * 255) == b"/d/" + b"n" * 255
    assert of.landing(LINK, b"n" * 256) == b"/d/" + b"n" * 256
    assert of.landing(LINK, b"n" * 256 + b"/../f") == b"/d/f"
    assert of.landing(LINK, b"n" * 256 + b"/../../hidden") is Landing.HIDDEN
    for below in (b"/x", b"/x/../y"):
        assert of.landing(LINK, b"n" * 256 + below) == b"/d/" + b"n" * 256 + below.replace(b"/x/..", b"")
    for name in (b"down", b"m" * 255):
        os.symlink(b"../hidden", tree + b"/d/" + name)
        assert of.landing(LINK, name) is Landing.HIDDEN
        assert of.landing(LINK, b"n" * 256 + b"/../" + name) is Landing.HIDDEN
    for number in range(41):
        os.symlink(b"%d" % (number + 1), tree + b"/d/%d" % number)
    assert of.landing(LINK, b"2") == b"/d/41"
    assert of.landing(LINK, b"1") is Landing.HIDDEN
    assert of.resolve(ViewPath(b"/d/1"), follow_last=True) == b"/d/41"
    assert of.resolve(ViewPath(b"/d/0"), follow_last=True) is Landing.HIDDEN


def test_a_link_that_leads_back_to_itself(links: Opens, tree: bytes) -> None:
    """Is a loop, whether it is there already or not; what its text names after that is judged all the same."""
    for name, text in ((b"self", b"self"), (b"one", b"two"), (b"two", b"./one"), (b"down", b"../hidden")):
        os.symlink(text, tree + b"/d/" + name)
    of = links(tree)
    here, new = ViewPath(b"/d/self"), ViewPath(b"/d/new")
    for link, looping in (
        (here, b"self"), (here, b"../d/self"), (here, tree + b"/d/self"), (here, b"self/x"), (here, b"self/x/../y"),
        (new, b"new"), (new, b"../to-d/new"), (new, b"new/x/../f"), (new, b"one"), (new, b"two/.."),
    ):  # fmt: skip
        assert of.landing(link, looping) is Landing.LOOP
        assert of.shows(link, looping)
    assert of.resolve(here, follow_last=True) is Landing.LOOP
    assert of.resolve(here, follow_last=False) == here
    for link, hidden in (
        (here, b"self/../down"), (here, b"self/../../hidden"), (here, b"self/../../to-hidden/f"), (here, b"one/../down/x"),
        (new, b"new/../down"), (new, b"new/x/../../../hidden/f"),
    ):  # fmt: skip
        assert of.landing(link, hidden) is Landing.HIDDEN


def test_a_link_met_twice_is_no_loop(links: Opens, tree: bytes) -> None:
    """One that has been walked to its end may come again in the same text."""
    of = links(tree)
    assert of.landing(LINK, b"../to-d/../to-d/../to-d/f") == b"/d/f"


def test_links_on_an_absolute_way_are_followed(links: Opens, tree: bytes) -> None:
    """After something that is missing, too: the way begins anew."""
    of = links(tree)
    os.symlink(tree + b"/to-d", tree + b"/d/again")
    assert of.landing(LINK, tree + b"/to-d/f") == b"/d/f"
    assert of.landing(LINK, tree + b"/to-hidden/f") is Landing.HIDDEN
    assert of.landing(LINK, b"gone/../again/f") == b"/d/f"
    assert of.landing(LINK, b"gone/../again/../to-hidden") is Landing.HIDDEN


@pytest.mark.usefixtures("as_root")
def test_a_link_to_a_device_is_not_shown(links: Opens, tree: bytes) -> None:
    """No view shows the device, so none shows that it is there."""
    of = links(tree)
    for name, kind in ((b"character", stat.S_IFCHR), (b"block", stat.S_IFBLK)):
        try:
            os.mknod(tree + b"/d/" + name, kind | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("no device can be made here")
        assert of.landing(LINK, name) is Landing.HIDDEN
    os.mkfifo(tree + b"/d/fifo")
    assert of.landing(LINK, b"fifo") == b"/d/fifo"
