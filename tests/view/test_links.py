"""Which links a view shows, where they lead and which may be made, as far as no case of conformance/ can lay it out: in
views of `/`, mounted at SOURCE's own place, in a sandbox, or of a SOURCE that its owner knows by another name."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, ViewPath
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.session import Session
from policyfs.source.root import Root
from policyfs.view.links import Landing, Links
from policyfs.view.trees import Trees

Opens = Callable[..., Links]


@pytest.fixture
def links() -> Iterator[Opens]:
    """Opens the links of a view at `stage`, less what is hidden."""
    roots = []

    def opened(
        source: bytes,
        hidden: bytes = b"/hidden",
        named: bytes | None = None,
        at: bytes | None = None,
        beside: Sequence[bytes] | None = None,
        elsewhere: Sequence[tuple[bytes, bytes]] = (),
        outside: Sequence[bytes] = (b"/usr",),
    ) -> Links:
        roots.append(Root(HostPath(source)))
        grants = {ViewPath(b"/"): Level.STAGE, ViewPath(hidden): Level.NONE}
        session = Session(grants=grants, links_outside=tuple(map(HostPath, outside)))
        surroundings = Surroundings(
            HostPath(source), elsewhere=tuple((ViewPath(part), HostPath(other)) for part, other in elsewhere)
        )
        policy = CompiledPolicy(session, surroundings)
        return Links(
            Trees(roots[-1]),
            lambda: policy,
            HostPath(source),
            HostPath(named or source),
            None if at is None else HostPath(at),
            None if beside is None else [HostPath(place) for place in beside],
        )

    yield opened
    for root in roots:
        root.close()


@pytest.fixture
def tree(source: Path) -> bytes:
    """SOURCE with a file, a hidden one, and links to the directories that they are in."""
    (source / "d").mkdir()
    (source / "d/f").write_text("f")
    (source / "hidden").mkdir()
    (source / "hidden/f").write_text("f")
    (source / "to-d").symlink_to("d")
    (source / "to-hidden").symlink_to("hidden")
    return os.fsencode(source)


LINK = ViewPath(b"/d/link")


def leads(of: Links, tree: bytes, text: bytes) -> ViewPath | Landing:
    """Where a link leads that is there and says `text`."""
    os.symlink(text, tree + LINK)
    try:
        return of.resolve(LINK, follow_last=True)
    finally:
        os.unlink(tree + LINK)


def test_in_a_view_of_the_whole_machine(links: Opens, tree: bytes) -> None:
    """Every absolute place is inside, and judged there; above `/` is `/`."""
    of = links(b"/", hidden=tree + b"/hidden")
    link = ViewPath(tree + b"/d/link")
    for text in (tree + b"/d/f", b"../" * 99 + tree[1:] + b"/d/f", b"/"):
        assert of.shows(link, text)
        assert of.may_be_made(link, text)
    for text in (tree + b"/hidden/f", b"../hidden/f"):
        assert of.shows(link, text)
        assert not of.may_be_made(link, text)
    os.symlink(b"../" * 99 + tree[1:] + b"/d/f", link)
    assert of.resolve(link, follow_last=True) == tree + b"/d/f"


def test_by_every_name_that_source_has(links: Opens, tree: bytes) -> None:
    """SOURCE's real path, its owner's name for it and the place of the mount are all inside; anything else is not."""
    of = links(tree, named=b"/owner/tree", at=b"/mnt/view")
    for base in (tree, b"/owner/tree", b"/mnt/view", b"//mnt/./view/"):
        assert leads(of, tree, base + b"/d/f") == b"/d/f"
        assert leads(of, tree, base) == b"/"
        assert of.shows(LINK, base + b"/hidden/f")
        assert of.may_be_made(LINK, base + b"/d/f")
        assert not of.may_be_made(LINK, base + b"/hidden/f")
    for base in (tree + b"-evil", b"/owner/tree2", b"/mnt", b"/owner", b"/mnt/view.old"):
        assert not of.shows(LINK, base + b"/d/f")
        assert not of.may_be_made(LINK, base + b"/d/f")
    assert leads(of, tree, b"/usr/bin/env") is Landing.OUTSIDE
    assert of.shows(LINK, b"/usr/bin/env")
    assert of.may_be_made(LINK, b"/usr/bin/env")


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
    """A text that climbs above `/` goes on from where the view is mounted, as the kernel will: outside, or back in. SOURCE
    by its own path is outside of a view that is mounted elsewhere: nobody would judge what is done there."""
    of = links(tree, at=b"/mnt/view")
    assert leads(of, tree, b"../../view/d/f") == b"/d/f"
    assert leads(of, tree, b"../../view/../view/./d//f") == b"/d/f"
    assert of.shows(LINK, b"../../view/hidden/f")
    assert leads(of, tree, b"../../../usr/bin") is Landing.OUTSIDE
    assert not of.shows(LINK, b"../../../etc")
    assert not of.shows(LINK, b"../.." + tree + b"/d/f")
    assert not of.shows(LINK, b"/mnt/.." + tree + b"/d/f")
    not_mounted = links(tree)
    assert leads(not_mounted, tree, b"../../" + os.path.basename(tree) + b"/d/f") == b"/d/f"
    assert not not_mounted.may_be_made(LINK, b"../../" + os.path.basename(tree) + b"/hidden/f")


@pytest.mark.parametrize("at", [None, b"/mnt/view"])
def test_a_listed_place_that_holds_source_shows_nothing_hidden(links: Opens, tree: bytes, at: bytes | None) -> None:
    """A link that leads out is judged where it lands, also if that is SOURCE or a part of it under another path."""
    above = os.path.dirname(tree)
    of = links(
        tree, named=b"/owner/tree", at=at, outside=[above, b"/owner", b"/other"], elsewhere=[(b"/hidden", b"/other/h")]
    )
    for text in (
        above + b"/../" + os.path.basename(above) + b"/source/hidden/f",
        b"/other/h/f",
        b"/owner/../owner/tree/hidden",
    ):
        if at is not None:
            assert not of.shows(LINK, text), text
        assert not of.may_be_made(LINK, text), text
    assert of.shows(LINK, above + b"/beside")
    assert of.may_be_made(LINK, b"/other/x")


def test_where_a_path_leads(links: Opens, tree: bytes) -> None:
    """Every link on the way is followed, the last one only if asked; what is missing or hidden is taken by its text."""
    of = links(tree)
    os.symlink("/etc/hostname", tree + b"/away")
    os.symlink("away/x", tree + b"/through-away")
    for path, followed, last_kept in (
        (b"/d/f", b"/d/f", b"/d/f"),
        (b"/to-d/f", b"/d/f", b"/d/f"),
        (b"/to-d", b"/d", b"/to-d"),
        (b"/to-d/gone/f", b"/d/gone/f", b"/d/gone/f"),
        (b"/to-d/f/x", b"/d/f/x", b"/d/f/x"),
        (b"/to-hidden/f", b"/hidden/f", b"/hidden/f"),
        (b"/to-hidden", b"/hidden", b"/to-hidden"),
        (b"/away", b"/away", b"/away"),
        (b"/away/x", b"/away/x", b"/away/x"),
        (b"/through-away/y", b"/away/x/y", b"/away/x/y"),
        (b"/", b"/", b"/"),
    ):
        assert of.resolve(ViewPath(path), follow_last=True) == followed
        assert of.resolve(ViewPath(path), follow_last=False) == last_kept


def test_a_text_that_goes_on_after_no_directory(links: Opens, tree: bytes) -> None:
    """A link that says `f/`, `f/.` or `f/../d` stops whoever follows it, as the kernel does, and stays in the view. It may
    be made if what its text names is not hidden."""
    of = links(tree)
    for name, text, expected, made in (
        (b"slash", b"f/", Landing.NOT_DIRECTORY, True),
        (b"dot", b"f/.", Landing.NOT_DIRECTORY, True),
        (b"file-up", b"f/../f", Landing.NOT_DIRECTORY, True),
        (b"below-up", b"f/x/../../f", Landing.NOT_DIRECTORY, True),
        (b"gone-slash", b"gone/", Landing.MISSING, True),
        (b"gone-up", b"gone/../f", Landing.MISSING, True),
        (b"both", b"gone/../f/", Landing.MISSING, True),
        (b"by-slash", b"slash", Landing.NOT_DIRECTORY, True),
        (b"hidden-up", b"../hidden/../d/f", b"/hidden/d/f", True),
        (b"to-hidden-up", b"f/../../hidden/f", Landing.NOT_DIRECTORY, False),
        (b"gone-away", b"gone/../../../../../etc/hostname", Landing.MISSING, False),
        (b"directory", b"../to-d/", b"/d", True),
        (b"directory-up", b"../to-d/../d/./f", b"/d/f", True),
        (b"file", b"f", b"/d/f", True),
        (b"gone-file", b"gone", b"/d/gone", True),
    ):
        path = ViewPath(b"/d/" + name)
        assert of.may_be_made(path, text) is made, name
        os.symlink(text, tree + b"/d/" + name)
        assert of.shows(path, text), name
        assert of.resolve(path, follow_last=True) == expected, name
        assert of.resolve(ViewPath(path + b"/x"), follow_last=True) == (
            expected if isinstance(expected, Landing) else expected + b"/x"
        ), name


def test_work_that_a_link_makes_is_bounded(links: Opens, tree: bytes) -> None:
    """256 names are looked up for one link and no more, and 40 links followed. A name of more than 255 bytes is one that
    is missing: no file system has it."""
    of = links(tree)
    os.makedirs(tree + b"/e")
    assert of.shows(LINK, b"../e/" * 255 + b"x")
    assert not of.shows(LINK, b"../e/" * 256 + b"x")
    deep = b"/".join([b"n"] * 300)
    os.makedirs(tree + b"/" + deep)
    assert of.resolve(ViewPath(b"/to-d/../" + deep), follow_last=True) == b"/" + deep
    assert not of.shows(LINK, b"../" + deep)
    assert of.shows(LINK, b"./" * 300 + b"f")
    for text in (b"n" * 255, b"n" * 256, b"n" * 256 + b"/x"):
        assert leads(of, tree, text) == b"/d/" + text
        assert of.may_be_made(LINK, text)
    assert leads(of, tree, b"n" * 256 + b"/../f") is Landing.MISSING
    assert not of.may_be_made(LINK, b"n" * 256 + b"/../../hidden")
    assert not of.may_be_made(LINK, b"/usr/" + b"n" * 256)
    for number in range(41):
        os.symlink(b"%d" % (number + 1), tree + b"/d/%d" % number)
    assert of.resolve(ViewPath(b"/d/1"), follow_last=True) == b"/d/41"
    assert of.resolve(ViewPath(b"/d/0"), follow_last=True) is Landing.LOOP
    assert of.shows(ViewPath(b"/d/0"), b"1")


def test_a_link_that_leads_back_to_itself(links: Opens, tree: bytes) -> None:
    """Is a loop for whoever follows it, and shown; it may be made if what its text names is not hidden."""
    for name, text in ((b"self", b"self"), (b"one", b"two"), (b"two", b"./one"), (b"on", b"on/x/../y")):
        os.symlink(text, tree + b"/d/" + name)
    of = links(tree)
    for looping in (b"self", b"../d/self", tree + b"/d/self", b"self/x", b"self/x/../y", b"one", b"two/..", b"on"):
        assert leads(of, tree, looping) is Landing.LOOP
        assert of.shows(LINK, looping)
        assert of.may_be_made(LINK, looping)
    assert of.resolve(ViewPath(b"/d/self"), follow_last=False) == b"/d/self"
    for hidden in (b"self/../../hidden", b"self/x/../../../hidden/f", b"link/../../hidden"):
        assert of.shows(LINK, hidden)
        assert not of.may_be_made(LINK, hidden)


def test_a_link_met_twice_is_no_loop(links: Opens, tree: bytes) -> None:
    """One that has been walked to its end may come again in the same text."""
    assert leads(links(tree), tree, b"../to-d/../to-d/../to-d/f") == b"/d/f"


def test_links_on_an_absolute_way_are_followed(links: Opens, tree: bytes) -> None:
    """Whoever comes into the view by its own path is judged there on."""
    of = links(tree)
    os.symlink(tree + b"/to-d", tree + b"/d/again")
    assert leads(of, tree, tree + b"/to-d/f") == b"/d/f"
    assert leads(of, tree, tree + b"/to-hidden/f") == b"/hidden/f"
    assert leads(of, tree, b"again/../d/again/f") == b"/d/f"


@pytest.mark.usefixtures("as_root")
def test_a_device_ends_the_way(links: Opens, tree: bytes) -> None:
    """As what is missing: no view shows the device."""
    of = links(tree)
    for name, kind in ((b"character", stat.S_IFCHR), (b"block", stat.S_IFBLK)):
        try:
            os.mknod(tree + b"/d/" + name, kind | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("no device can be made here")
        assert leads(of, tree, name) == b"/d/" + name
        assert leads(of, tree, name + b"/.") is Landing.MISSING


# -- a bare mount -----------------------------------------------------------------------------------------------------


def test_a_link_is_shown_by_where_its_own_text_leads_out(links: Opens, tree: bytes) -> None:
    """A link that goes on through one which is not shown stays in the view: the kernel finds nothing there."""
    of = links(tree, at=b"/mnt/view")
    for name, text, shown in (
        (b"away", b"/etc", False),
        (b"system", b"/usr", True),
        (b"by-away", b"away/hostname", True),
        (b"by-system", b"system/bin/env", True),
        (b"by-system-up", b"system/../etc", False),
        (b"by-by-system-up", b"by-system-up/hostname", True),
        (b"by-d-up", b"../to-d/../../..", False),
        (b"by-away-up", b"away/../../../etc", True),
    ):
        os.symlink(text, tree + b"/d/" + name)
        assert of.shows(ViewPath(b"/d/" + name), text) is shown, name


def test_what_a_link_may_say_tells_nothing_of_another(links: Opens, tree: bytes) -> None:
    """Through a link that is not shown, through one that is missing and through a hidden place the same may be made."""
    os.symlink("/etc/deep/down/there", tree + b"/d/away")
    os.mkdir(tree + b"/hidden/deep")
    for of in (links(tree, at=b"/mnt/view"), links(tree, at=tree, beside=[])):
        for up in range(6):
            for tail in (b"", b"/d/f", b"/usr/bin", b"/hidden/f", tree, tree[1:] + b"/d/f"):
                text = b"/.." * up + tail
                said = {way: of.may_be_made(LINK, way + text) for way in (b"away", b"gone", b"nowhere")}
                assert len(set(said.values())) == 1, (text, said)


# -- a sandbox --------------------------------------------------------------------------------------------------------


def test_in_a_sandbox_every_link_is_shown_as_it_is(links: Opens, tree: bytes) -> None:
    """Wherever it leads: nothing but the view and what stands beside it is in reach."""
    of = links(tree, named=b"/owner/tree", at=tree, beside=[b"/usr"])
    for text in (b"../hidden/f", tree + b"/hidden", b"/etc/shadow", b"../" * 9 + b"etc", b"/owner/tree/d", b"x/" * 300):
        assert of.shows(LINK, text)
        assert of.text_in_view(LINK, text) == text
    assert leads(of, tree, b"/owner/tree/d/f") == b"/d/f"
    assert leads(of, tree, b"/etc/shadow") is Landing.OUTSIDE


def test_in_a_sandbox_links_are_made_to_what_stands_there(links: Opens, tree: bytes) -> None:
    """To the view less what is hidden, to the places beside it and to listed ones; never to a denied name."""
    of = links(tree, named=b"/owner/tree", at=tree, beside=[b"/lib", b"/data/tools"], outside=[b"/opt"])
    for text in (
        b"f", b"gone", b"/lib/x.so", b"/data/tools", b"/data/tools/bin/t", b"/opt/x", tree + b"/d", b"/owner/tree/d/f",
        b"../../../../../../../../../lib/x.so",
    ):  # fmt: skip
        assert of.may_be_made(LINK, text), text
    for text in (
        b"../hidden", b"../hidden/gone", tree + b"/hidden", b"/owner/tree/hidden/f", b"d/../../hidden", b".env", b"/",
        b"/etc/shadow", b"/data", b"/data/toolshed", b"/data/tools/../secrets", b"/lib/id_rsa", b"/proc/self/environ",
        b"/tmp/x", b"../../beside",
    ):  # fmt: skip
        assert not of.may_be_made(LINK, text), text


def test_another_name_for_a_link(links: Opens, tree: bytes) -> None:
    """Where its text says the same there a link gets any name; elsewhere only one at which it could be made."""
    for of in (links(tree, at=b"/mnt/view"), links(tree, at=tree, beside=[])):
        here = ViewPath(b"/d/link")
        assert of.may_be_moved(here, ViewPath(b"/d/other"), b"../hidden/f")
        assert of.may_be_moved(here, ViewPath(b"/other"), tree + b"/hidden/f")
        assert of.may_be_moved(here, ViewPath(b"/other"), b"f")
        assert not of.may_be_moved(here, ViewPath(b"/other"), b"hidden/f")
        assert not of.may_be_moved(here, ViewPath(b"/other"), b"../x")
        assert not of.may_be_moved(here, ViewPath(b"/e/other"), b"../hidden/f")
