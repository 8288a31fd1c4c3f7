"""Bytes on their way between what the caller gave and what the command has in its place, while neither may stop the other.

Theory. Nothing here waits: the caller that drives the flows waits for all of them and for signals in one poll(2), and a flow
goes on while another is full. A change of whether a descriptor blocks would be seen by every process that has it open, so
it is never made to one of the caller's; each kind of descriptor is asked in its own way not to block.

Between two pipes bytes are moved by splice(2), which copies none of them. What comes from a file is copied: a page of a
file has no business in a pipe of the sandbox.

Input is lent as far as it can be: a command that does not read its input leaves it to whatever reads next, as in
`while read name; do policyfs run ...; done`. A file is read without moving its offset, which is set in the end. From a
pipe a first page is shown (tee(2)), and taken only once the command has read all of it; it reads its input, then, and gets
the rest as it comes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
import stat
import struct
import termios
from collections.abc import Callable, Mapping

CHUNK = 1 << 16
"""A pipe's capacity (pipe(7))."""

_TERMINAL_CHUNK = 1 << 10
"""A terminal takes at least so much when it says that it is ready; more could block."""

_SPLICE_CHUNK = 1 << 20
_SPLICES = 16
"""Moves of one flow between two looks at the others."""

_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL
_READABLE = select.POLLIN | _BROKEN
_WRITABLE = select.POLLOUT | _BROKEN

_NOBODY_READS = (errno.EPIPE, errno.ECONNRESET)
_NOT_NOW = os.SPLICE_F_NONBLOCK

Events = Mapping[int, int]
"""What poll(2) tells, by descriptor."""


class Flow:
    """From `source` to `sink`. Its driver waits for what is `wanted` and tells what `happened`, until it is `over`."""

    def __init__(self, source: int, sink: int, closes: int | None = None) -> None:
        """`closes` is the end of a pipe that is closed when the flow is over, by which the command learns of it."""
        self.source = source
        self.sink = sink
        self.over = False
        self.error: OSError | None = None
        """Why the sink takes no more, where that is not because nobody reads."""
        self._closes = closes

    def wanted(self) -> dict[int, int]:
        """The events to wait for, by descriptor. One without any still tells that it broke."""
        raise NotImplementedError

    def happened(self, events: Events) -> None:
        """Go on as far as that goes without waiting."""
        raise NotImplementedError

    @property
    def has_more(self) -> bool:
        """Whether there is something to move, the source having been written to for the last time."""
        return not self.over and _has_bytes(self.source)

    def close(self) -> None:
        """Tell the command that it is over."""
        if self._closes is not None:
            os.close(self._closes)
            self._closes = None

    def settle(self) -> None:
        """The command has ended: leave to the caller what it did not read."""

    def _failed(self, error: OSError) -> None:
        self.over = True
        self.error = None if error.errno in _NOBODY_READS else error


class Copy(Flow):
    """By reading and writing."""

    def __init__(
        self,
        source: int,
        sink: int,
        closes: int | None = None,
        *,
        read: Callable[[int], bytes] | None = None,
        write: Callable[[bytes], int] | None = None,
        chunk: int = CHUNK,
    ) -> None:
        """`read` and `write` are for descriptors of which os.read and os.write might wait."""
        super().__init__(source, sink, closes)
        self._read = read or (lambda size: os.read(source, size))
        self._write = write or (lambda part: os.write(sink, part))
        self._chunk = chunk
        self._held = bytearray()
        self._source_ended = False
        self.paused = False
        """What is in the source is not ours for now."""

    def wanted(self) -> dict[int, int]:
        """See `Flow`."""
        found = {self.sink: select.POLLOUT if self._held else 0}
        if not self._source_ended and not self.paused and len(self._held) < CHUNK:
            found[self.source] = select.POLLIN
        return found

    def happened(self, events: Events) -> None:
        """See `Flow`."""
        if events.get(self.source, 0) & _READABLE and not self._source_ended and not self.paused:
            self._take()
        state = events.get(self.sink, 0)
        if self._held and state & _WRITABLE:
            self._give()
        elif state & _BROKEN:
            self._failed(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))
        self.over = self.over or (self._source_ended and not self._held)

    @property
    def has_more(self) -> bool:
        """See `Flow`."""
        return not self.over and (bool(self._held) or (not self._source_ended and _has_bytes(self.source)))

    def _take(self) -> None:
        try:
            part = self._read(self._chunk)
        except BlockingIOError:
            return
        except OSError:
            # The master of a terminal that nobody has open any more answers EIO; a terminal that went away, too.
            part = b""
        self._source_ended = not part
        self._held += part

    def _give(self) -> None:
        try:
            written = self._write(bytes(memoryview(self._held)[: self._chunk]))
        except BlockingIOError:
            return
        except OSError as error:
            self._held.clear()
            self._failed(error)
            return
        del self._held[:written]


class ToTerminal(Copy):
    """From the command's terminal to the caller's, where `shown` gets everything. What the caller's takes no more is
    dropped: a terminal that nobody reads would stop its programs."""

    def __init__(self, source: int, sink: int, shown: Callable[[bytes], None]) -> None:
        super().__init__(source, sink, chunk=_TERMINAL_CHUNK)
        self._shown = shown
        self._sink_gone = False

    def wanted(self) -> dict[int, int]:
        """See `Flow`."""
        found = super().wanted()
        if self._sink_gone:
            del found[self.sink]
        return found

    def _take(self) -> None:
        before = len(self._held)
        super()._take()
        self._shown(bytes(memoryview(self._held)[before:]))
        if self._sink_gone:
            self._held.clear()

    def _failed(self, error: OSError) -> None:
        self._sink_gone = True


class FromFile(Copy):
    """From a file of the caller's, whose offset stays where it is until the end."""

    def __init__(self, source: int, sink: int, reading: int) -> None:
        """`reading` is the command's end of the pipe, as a descriptor of ours."""
        super().__init__(source, sink, closes=sink, read=self._read_on)
        self._offset = os.lseek(source, 0, os.SEEK_CUR)
        self._reading = reading

    def _read_on(self, size: int) -> bytes:
        part = os.pread(self.source, size, self._offset)
        self._offset += len(part)
        return part

    def settle(self) -> None:
        """See `Flow`."""
        with contextlib.suppress(OSError):
            os.lseek(self.source, self._offset - len(self._held) - _bytes_in(self._reading), os.SEEK_SET)


class Splice(Flow):
    """From pipe to pipe."""

    def __init__(self, source: int, sink: int, closes: int) -> None:
        super().__init__(source, sink, closes)
        self._waits_for_sink = False

    def wanted(self) -> dict[int, int]:
        """See `Flow`."""
        return {self.sink: select.POLLOUT} if self._waits_for_sink else {self.source: select.POLLIN, self.sink: 0}

    def happened(self, events: Events) -> None:
        """See `Flow`."""
        if events.get(self.sink, 0) & _BROKEN:
            self._failed(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))
            return
        for _ in range(_SPLICES):
            try:
                moved = os.splice(self.source, self.sink, _SPLICE_CHUNK, flags=_NOT_NOW | os.SPLICE_F_MOVE)
            except BlockingIOError:
                self._waits_for_sink = _has_bytes(self.source)
                return
            except OSError as error:
                self._failed(error)
                return
            if moved == 0:
                self.over = True
                return


class FromPipe(Splice):
    """From a pipe of the caller's, whose first page is only shown."""

    def __init__(self, source: int, sink: int, reading: int) -> None:
        """`reading` is the command's end of the pipe, as a descriptor of ours."""
        super().__init__(source, sink, closes=sink)
        self._reading = reading
        self._capacity = fcntl.fcntl(sink, fcntl.F_GETPIPE_SZ)
        # One page: the pipe can be written to again once it is empty, and not before.
        fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, os.sysconf("SC_PAGE_SIZE"))
        self._is_lending = True
        self._source_ended = False
        self._shown = 0

    def wanted(self) -> dict[int, int]:
        """See `Flow`."""
        if self._is_lending and self._shown:
            return {self.sink: select.POLLOUT, **({} if self._source_ended else {self.source: 0})}
        return super().wanted()

    def happened(self, events: Events) -> None:
        """See `Flow`."""
        if not self._is_lending:
            super().happened(events)
        elif events.get(self.sink, 0) & _BROKEN:
            self._failed(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))
        elif not self._shown:
            self._show()
        elif events.get(self.sink, 0) & select.POLLOUT:
            self._forget(self._shown)
            self._shown = 0
            self._is_lending = False
            with contextlib.suppress(OSError):
                # Refused to a user who has many large pipes: pipe(7). Then the rest goes page by page.
                fcntl.fcntl(self.sink, fcntl.F_SETPIPE_SZ, self._capacity)
        elif events.get(self.source, 0) & _BROKEN:
            self._source_ended = True
            # The command is to hear of the end, even if it does not read what is before it.
            self.over = _bytes_in(self.source) <= self._shown

    def settle(self) -> None:
        """See `Flow`."""
        if self._is_lending and self._shown:
            self._forget(self._shown - _bytes_in(self._reading))

    def _show(self) -> None:
        try:
            self._shown = _tee(self.source, self.sink)
        except BlockingIOError:
            return
        except OSError as error:
            self._failed(error)
            return
        self.over = self._shown == 0

    def _forget(self, size: int) -> None:
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            while size > 0:
                moved = os.splice(self.source, nothing, size, flags=_NOT_NOW)
                if moved == 0:
                    break
                size -= moved
        except BlockingIOError:
            # Somebody else has read from the same pipe meanwhile.
            pass
        finally:
            os.close(nothing)


def from_caller(source: int, sink: int, reading: int) -> Flow:
    """What fills the pipe that the command has as its input. `source` is the caller's, `reading` and `sink` are the two
    ends of the pipe, the second of which may not wait."""
    mode = os.fstat(source).st_mode
    if stat.S_ISFIFO(mode):
        return FromPipe(source, sink, reading)
    if stat.S_ISSOCK(mode):
        peer = socket.socket(fileno=os.dup(source))
        return Copy(source, sink, closes=sink, read=lambda size: peer.recv(size, socket.MSG_DONTWAIT))
    if stat.S_ISREG(mode):
        return FromFile(source, sink, reading)
    return Copy(source, sink, closes=sink)


def to_caller(source: int, sink: int) -> Flow:
    """What empties the pipe that the command has as its output, whose end that is read from, `source`, may not wait.
    `sink` is the caller's."""
    mode = os.fstat(sink).st_mode
    if stat.S_ISFIFO(mode):
        return Splice(source, sink, closes=source)
    if stat.S_ISSOCK(mode):
        peer = socket.socket(fileno=os.dup(sink))
        return Copy(
            source, sink, closes=source, write=lambda part: peer.send(part, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        )
    return Copy(source, sink, closes=source)


def _has_bytes(descriptor: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return any(events & select.POLLIN for _, events in waiting.poll(0))


def _bytes_in(pipe: int) -> int:
    """How much waits in a pipe, of which this is either end."""
    answer = fcntl.ioctl(pipe, termios.FIONREAD, struct.pack("i", 0))
    found: int = struct.unpack("i", answer)[0]
    return found


def _tee(source: int, sink: int) -> int:
    """tee(2), which Python does not have: copy from pipe to pipe what stays in the first one."""
    size = ctypes.c_size_t(os.sysconf("SC_PAGE_SIZE"))
    moved: int = ctypes.CDLL(None, use_errno=True).tee(source, sink, size, ctypes.c_uint(_NOT_NOW))
    if moved < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return moved
