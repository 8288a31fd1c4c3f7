"""A small file's content, put into the kernel's page cache as the file is opened: that spares it the request to read."""

from __future__ import annotations

import pyfuse3
from pyfuse3 import EntryAttributes, InodeT

from policyfs.fuse.nodes import Node
from policyfs.source.files import OpenFile, WouldBlock

MAX_SENT = 1 << 16
"""Bytes of a file that is sent with its opening. Measured with ripgrep over 10,000 files that the kernel did not have yet:
a quarter less time. A larger file costs more to send than the one request it spares."""


def send_content(node: Node, entry: EntryAttributes, file: OpenFile) -> None:
    """Send what is in `file`, which is being opened to read, as `entry` says how large it is.

    Only where nobody else has the node open: a read in flight holds pages that this would wait for, and the read waits for
    this process. Once for each state of the file: what the kernel drops since, it asks for.
    """
    if node.files or not node.cached.may_be_pushed() or not 0 < entry.st_size <= MAX_SENT:
        return
    try:
        content = file.read_cached(0, entry.st_size)
        pyfuse3.notify_store(InodeT(node.ino), 0, content)  # type: ignore[arg-type]  # it takes any buffer
    except (OSError, WouldBlock):
        # Not in the source's page cache, or the kernel would not take it: then it asks.
        return
    node.cached.pushed()
