"""Changes that somebody makes in the source, each with how it looks from the view: for tests of what the kernel keeps."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

from tests.mount.expecting import until

BEFORE = "before"
AFTER = "after, which is longer"
SAME_SIZE = "behind"


class Change:
    """One change in the source: `behind` is the path there and `inside` the same path in the view. This one: new content
    of another size."""

    kinds: ClassVar[list[type[Change]]] = []
    opens = False
    """Whether looking takes requests of its own however warm it is: an opening, or a link's text."""

    def __init_subclass__(cls) -> None:
        Change.kinds.append(cls)

    def __init__(self, behind: Path, inside: Path) -> None:
        self.behind = behind
        self.inside = inside

    def prepare(self) -> None:
        """Make what is to be changed."""
        self.behind.write_text(BEFORE)

    def warm(self) -> None:
        """Look at it from the view, so that the kernel knows it."""
        os.stat(self.inside)

    def change(self) -> None:
        """Change it in the source."""
        self.behind.write_text(AFTER)

    def seen(self) -> bool:
        """Whether the view shows the change. An OSError counts as not yet."""
        return os.stat(self.inside).st_size == len(AFTER)

    def close(self) -> None:
        """Let go of what it holds open."""


class Size(Change):
    """New content of another size, asked for by stat."""


class Content(Change):
    """New content, read."""

    opens = True

    def warm(self) -> None:
        self.inside.read_text()

    def seen(self) -> bool:
        return self.inside.read_text() == AFTER


class SameSize(Content):
    """New content of the same size."""

    def change(self) -> None:
        self.behind.write_text(SAME_SIZE)

    def seen(self) -> bool:
        return self.inside.read_text() == SAME_SIZE


class SameSizeAndTime(SameSize):
    """New content of the same size, and the time of the last change put back: read by who stats first, as most do."""

    def change(self) -> None:
        status = os.stat(self.behind)
        super().change()
        os.utime(self.behind, ns=(status.st_atime_ns, status.st_mtime_ns))

    def seen(self) -> bool:
        os.stat(self.inside)
        return super().seen()


class SameSizeAndTimeReadAtOnce(SameSizeAndTime):
    """The same, read without a stat."""

    def seen(self) -> bool:
        return self.inside.read_text() == SAME_SIZE


class Held(SameSize):
    """New content of the same size, read by a descriptor that was open before."""

    opens = False

    def prepare(self) -> None:
        super().prepare()
        self.descriptor = -1

    def warm(self) -> None:
        if self.descriptor < 0:
            self.descriptor = os.open(self.inside, os.O_RDONLY)
        os.pread(self.descriptor, 100, 0)

    def seen(self) -> bool:
        return os.pread(self.descriptor, 100, 0) == SAME_SIZE.encode()

    def close(self) -> None:
        os.close(self.descriptor)


class HeldSameTime(Held):
    """The same, and the time of the last change put back."""

    def change(self) -> None:
        status = os.stat(self.behind)
        super().change()
        os.utime(self.behind, ns=(status.st_atime_ns, status.st_mtime_ns))


class RenamedOver(Content):
    """Another file renamed over it."""

    def prepare(self) -> None:
        super().prepare()
        self.behind.with_name(f"{self.behind.name}.new").write_text(AFTER)

    def change(self) -> None:
        os.replace(self.behind.with_name(f"{self.behind.name}.new"), self.behind)


class Created(Change):
    """A name that was known as missing."""

    def prepare(self) -> None:
        pass

    def warm(self) -> None:
        assert not os.path.lexists(self.inside)


class CreatedBelowMissing(Created):
    """A name below a directory that was known as missing."""

    def warm(self) -> None:
        assert not os.path.lexists(self.inside / "file")

    def change(self) -> None:
        self.behind.mkdir()
        (self.behind / "file").write_text(AFTER)

    def seen(self) -> bool:
        return os.stat(self.inside / "file").st_size == len(AFTER)


class CreatedInListing(Created):
    """A name that a listing did not hold."""

    opens = True

    def warm(self) -> None:
        assert self.inside.name not in os.listdir(self.inside.parent)

    def seen(self) -> bool:
        return self.inside.name in os.listdir(self.inside.parent)


class Removed(Change):
    """A file removed."""

    def change(self) -> None:
        self.behind.unlink()

    def seen(self) -> bool:
        return not os.path.lexists(self.inside)


class RemovedFromListing(Removed):
    """A name that a listing held."""

    opens = True

    def warm(self) -> None:
        assert self.inside.name in os.listdir(self.inside.parent)

    def seen(self) -> bool:
        return self.inside.name not in os.listdir(self.inside.parent)


class Renamed(Change):
    """A file renamed: the old name is gone and the new one there."""

    def change(self) -> None:
        self.behind.rename(self.behind.with_name(f"{self.behind.name}.new"))

    def warm(self) -> None:
        super().warm()
        assert not os.path.lexists(self.inside.with_name(f"{self.inside.name}.new"))

    def seen(self) -> bool:
        return not os.path.lexists(self.inside) and os.path.lexists(self.inside.with_name(f"{self.inside.name}.new"))


class Mode(Change):
    """chmod."""

    def change(self) -> None:
        self.behind.chmod(0o600)

    def seen(self) -> bool:
        return stat.S_IMODE(os.stat(self.inside).st_mode) == 0o600


class DirectoryMode(Mode):
    """chmod of a directory."""

    def prepare(self) -> None:
        self.behind.mkdir()

    def warm(self) -> None:
        os.stat(self.inside)
        os.listdir(self.inside)
        os.stat(self.inside)

    opens = True


class Times(Change):
    """utimensat."""

    def change(self) -> None:
        os.utime(self.behind, (1, 1))

    def seen(self) -> bool:
        return os.stat(self.inside).st_mtime == 1


class DirectoryReplaced(Content):
    """A directory moved away and another moved to its place."""

    def prepare(self) -> None:
        for name, text in ((self.behind.name, BEFORE), (f"{self.behind.name}.new", AFTER)):
            directory = self.behind.with_name(name)
            directory.mkdir()
            (directory / "file").write_text(text)

    def warm(self) -> None:
        (self.inside / "file").read_text()

    def change(self) -> None:
        self.behind.rename(self.behind.with_name(f"{self.behind.name}.old"))
        self.behind.with_name(f"{self.behind.name}.new").rename(self.behind)

    def seen(self) -> bool:
        return (self.inside / "file").read_text() == AFTER


class DirectoryMovedAway(DirectoryReplaced):
    """A directory moved away, with what is in it."""

    opens = False

    def warm(self) -> None:
        os.stat(self.inside / "file")

    def change(self) -> None:
        self.behind.rename(self.behind.with_name(f"{self.behind.name}.old"))

    def seen(self) -> bool:
        return not os.path.lexists(self.inside / "file") and not os.path.lexists(self.inside)


class Retargeted(Change):
    """A symbolic link to something else, followed and read."""

    opens = True

    def prepare(self) -> None:
        self.behind.with_name(f"{self.behind.name}.1").write_text(BEFORE)
        self.behind.with_name(f"{self.behind.name}.2").write_text(AFTER)
        self.behind.symlink_to(f"{self.behind.name}.1")

    def change(self) -> None:
        other = self.behind.with_name(f"{self.behind.name}.new")
        other.symlink_to(f"{self.behind.name}.2")
        other.rename(self.behind)

    def seen(self) -> bool:
        return os.readlink(self.inside) == f"{self.behind.name}.2" and os.stat(self.inside).st_size == len(AFTER)


class OtherType(Change):
    """A file that becomes a directory."""

    def change(self) -> None:
        self.behind.unlink()
        self.behind.mkdir()

    def seen(self) -> bool:
        return stat.S_ISDIR(os.stat(self.inside).st_mode) and os.listdir(self.inside) == []


class Linked(Change):
    """A hard link to a file that had one name."""

    def change(self) -> None:
        os.link(self.behind, self.behind.with_name(f"{self.behind.name}.link"))

    def seen(self) -> bool:
        return os.stat(self.inside).st_nlink == 2


class Grown(Content):
    """A file that another process makes longer, and then writes to by a mapping: as a database does."""

    size = 8192
    script = """
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
os.ftruncate(descriptor, 8192)
print("grown", flush=True)
sys.stdin.readline()
with mmap.mmap(descriptor, 8192) as mapping:
    mapping[8189:] = b"end"
os.close(descriptor)
"""

    def prepare(self) -> None:
        super().prepare()
        self.process: subprocess.Popen[str] | None = None

    def change(self) -> None:
        """The size is seen first, and the pages, so that they are in the kernel when the mapping is written to."""
        command = [sys.executable, "-I", "-S", "-c", self.script, str(self.behind)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            while os.stat(self.inside).st_size != self.size or len(self.inside.read_bytes()) != self.size:
                pass
            process.stdin.write("\n")
            process.stdin.close()

    def seen(self) -> bool:
        return self.inside.read_bytes().endswith(b"end")


SETTLED = 0.05
"""How old a change must be, in seconds, until the kernel is given attributes for long: its clock has moved on by then."""


def settle(*paths: Path) -> None:
    """Wait until the last change of what is there is old enough for the kernel to keep it."""
    for path in paths:
        if os.path.lexists(path):
            until(lambda path=path: time.time() - os.lstat(path).st_ctime > SETTLED, f"{path} is no longer new")
