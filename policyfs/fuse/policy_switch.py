"""Another policy for a mount that is in use: all or nothing, and nothing that was revoked is answered afterwards.

Theory. The kernel answers much without asking, so a change of policy is a change of what the kernel holds. In order:

1. The new policy is built whole; a fault in it changes nothing.
2. It is put in the place of the old one between two requests (nothing here awaits), and every node is judged again. From
   this moment no handler gives what was revoked: handles are judged again at their next use (`Nodes.epoch`).
3. A read that was in a thread at that moment is judged once more before it answers.
4. The kernel is told: all names are to be looked up again (FUSE_NOTIFY_INC_EPOCH, Linux 6.16, which leaves a process in
   its working directory alone; older kernels forget the names one by one), and what changed its level loses its
   attributes and pages. A page that a process has mapped is gone from it; touching it again is SIGBUS.
5. Only then is the change acknowledged. No read that starts after that succeeds.

What became more needs no more than 4: names that were missing are looked up again.

The same follows, from 2 on, when another moves a directory within the source to where other rules hold, and a handler
finds it there under its new name (`Nodes.found`): the kernel would go on to answer by the rules of the old place.
Nobody waits for an acknowledgement then. With the epoch the kernel has been told before that handler answers; without it,
names are forgotten a moment later. (Rule live-2. A session cannot move a directory so itself: move-1.)
"""

from __future__ import annotations

import errno
import logging
import os
import struct

import trio

from policyfs.fuse.handlers import Operations
from policyfs.fuse.kernel_cache import forget_dentry, forget_inode, invalidate
from policyfs.fuse.nodes import Node
from policyfs.policy.paths import Name
from policyfs.policy.policy import CompiledPolicy

log = logging.getLogger("policyfs")

_INC_EPOCH = struct.pack("=IiQ", 16, 8, 0)
"""struct fuse_out_header of linux/fuse.h: 16 bytes long, FUSE_NOTIFY_INC_EPOCH (8) for an error, unique 0. libfuse has no
call for it yet; the message is written to /dev/fuse as it is."""


def fuse_device() -> int | None:
    """The descriptor by which this process serves /dev/fuse, which pyfuse3 keeps to itself."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                return int(name)
        except OSError:
            continue
    return None


class PolicySwitch:
    """Takes a new policy over for one mount, and tells the kernel when another moves a directory to where other rules hold.
    `LivePolicy` calls it for one change at a time."""

    def __init__(self, operations: Operations, *, device: int | None) -> None:
        """`device` is the descriptor of /dev/fuse; None to do without the epoch, as an older kernel has to."""
        self._operations = operations
        self._device = device
        self._untold: list[Node] = []
        self._judged = trio.Event()
        operations.nodes.on_judged = self._judged_differently

    async def take(self, policy: CompiledPolicy) -> None:
        """Go over to another policy. When this returns, nothing answers by the old one."""
        await self._tell(self._operations.nodes.judge_again(lambda: self._operations.view.take(policy)))

    def take_at_once(self, policy: CompiledPolicy) -> None:
        """The same without waiting for the kernel, in the middle of a request: no later request is answered by the old
        policy. With the epoch the kernel looks all names up again; attributes and pages are dropped a moment later."""
        self._judged_differently(self._operations.nodes.judge_again(lambda: self._operations.view.take(policy)))

    async def follow(self) -> None:
        """Tell the kernel of what a handler found to be judged differently. Runs until cancelled."""
        while True:
            await self._judged.wait()
            self._judged = trio.Event()
            changed, self._untold = self._untold, []
            await self._tell(changed)

    def _judged_differently(self, changed: list[Node]) -> None:
        """Names are looked up again from the next request on, where the kernel can do that; nothing here waits."""
        self._untold += changed
        self._judged.set()
        self._new_epoch()

    async def _tell(self, changed: list[Node]) -> None:
        await trio.to_thread.run_sync(self._tell_kernel, self._names_to_forget(changed), changed)

    def _names_to_forget(self, changed: list[Node]) -> list[tuple[int, Name]]:
        """Every name that may stand for something else now: of what is judged differently, of what has several names,
        each with a place of its own, and all that was missing."""
        names = [(node.parent.ino, node.name) for node in changed if node.parent is not None]
        for node in self._operations.nodes:
            if node.others and node.parent is not None:
                names += [(parent.ino, name) for parent, name in ((node.parent, node.name), *node.others)]
            if node.watched is not None:
                names += [(node.ino, Name(name)) for name in node.watched.forget_negative()]
        return names

    def _tell_kernel(self, names: list[tuple[int, Name]], changed: list[Node]) -> None:
        """In a thread: each of these may wait for a request in flight."""
        if not self._new_epoch():
            invalidate([forget_dentry(parent, name) for parent, name in names])
        invalidate([forget_inode(node.ino) for node in changed])

    def _new_epoch(self) -> bool:
        if self._device is None:
            return False
        try:
            os.write(self._device, _INC_EPOCH)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # A kernel before 6.16 does not know the message.
            self._device = None
            return False
        return True
