"""The control socket of a mount: what a person may ask and change while it runs.

Theory. A uid authenticates nothing here: an agent in a sandbox has the person's (rule daemon-3). What keeps an agent
away is that it cannot reach the socket: a pathname in a directory of mode 0700, below no view, bound into no sandbox. In
depth, a peer must have the daemon's uid and live in its mount, pid and user namespaces, found by its pidfd so that the
number cannot be somebody else's by then.

A second socket may only ask, and is made for the command of a run: it answers `explain` and `view`, and for a path that the
session does not see exactly what the file system answers. It checks no namespace. Since a program that asks there may do so
without end, it attends to few, works for one of them at a time, and lets everything else have its turn in between.

One request a line, one answer a line, as JSON: `{"do": "status"}` is answered by `{"ok": ...}` or by
`{"fault": [...], "exit_code": N}`.

The answer to `follow`, the policy in force, is a lease: it holds as long as its connection is open. Every change of policy
ends all leases before it is acknowledged, and the end of the daemon ends them too. So a client that looks at the connection
before each use of the policy never uses one that was revoked. Ending a lease waits for nobody: a follower that is stopped
or stuck finds its connection closed when it goes on.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trio

from policyfs.control.explained import OPERATIONS, explanation_values, path_fault_text, unseen_values
from policyfs.daemon.namespaces import same_namespaces
from policyfs.daemon.request import MountRequest
from policyfs.fuse.handlers import Operations
from policyfs.host import mounts
from policyfs.host.errors import Exit, UserFault
from policyfs.live.policy import LivePolicy
from policyfs.policy.levels import LEVELS
from policyfs.policy.paths import HostPath, PathFault, ViewPath, display, from_text, view_path
from policyfs.policy.policy import CompiledPolicy
from policyfs.policy.refusals import Refusal
from policyfs.policy.values import policy_values
from policyfs.view.links import Landing

log = logging.getLogger("policyfs")

MAX_REQUEST_BYTES = 1 << 16
"""Longest request, in bytes: a thousand paths to explain, and far from what a daemon would feel."""
MAX_PEERS = 16
"""Peers attended to at once, so that programs that may ask cannot use up the daemon's descriptors."""
MAX_LEASES = 32
"""Followers of a mount at once: each keeps a descriptor of the daemon's."""
MAX_ASKING_PEERS = 4
"""The same on the socket that may only ask: further ones wait to be taken."""
PATHS_A_TURN = 64
"""Paths explained before everything else has its turn: some milliseconds."""
MAX_GRANT_SECONDS = 10 * 365 * 86400
"""Longest time of a grant: ten years, which no session lives."""
REQUEST_TIMEOUT = 10.0
"""Seconds in which a peer has to send its request."""

Request = dict[str, Any]


class Control:
    """What the sockets of one mount answer."""

    def __init__(self, request: MountRequest, operations: Operations, live: LivePolicy) -> None:
        self._request = request
        self._operations = operations
        self._live = live
        self._began = time.time()
        self._counted = (time.monotonic(), 0)
        self._one_who_asks = trio.Lock()
        self._mount = secrets.token_hex(16)
        """Which mount this is: another one at the same place has another."""
        self._leases: set[trio.socket.SocketType] = set()
        self._answers: dict[str, Callable[[Request], Awaitable[Any]]] = {
            "status": self._status,
            "explain": self._explain,
            "view": self._view,
            "reload": self._reload,
            "grant": self._grant,
            "revoke": self._revoke,
        }

    async def serve(self, path: Path, ask_only: bool, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve one socket until cancelled. It is gone when this ends."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        # By the directory's descriptor: the path of a socket has at most 107 bytes (unix(7)), a home may have more.
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        former = os.umask(0o177)
        try:
            listening.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.umask(former)
            os.close(directory)
        mine = _file_of(path)
        listening.listen(128)
        server = trio.socket.from_stdlib_socket(listening)
        room = trio.Semaphore(MAX_ASKING_PEERS if ask_only else MAX_PEERS)
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await room.acquire()
                    try:
                        peer, _ = await server.accept()
                    except OSError as error:
                        # No descriptor left, or a peer that went away: neither ends the mount.
                        log.info("the control socket cannot take a peer: %s", error)
                        room.release()
                        await trio.sleep(0.1)
                        continue
                    nursery.start_soon(self._attend, peer, ask_only, room)
        finally:
            server.close()
            # A view that was detached ends while another, mounted in its place since, has this name for its own socket.
            with contextlib.suppress(OSError):
                if _file_of(path) == mine:
                    path.unlink()

    async def _attend(self, peer: trio.socket.SocketType, ask_only: bool, room: trio.Semaphore) -> None:
        with peer:
            try:
                try:
                    await self._serve_one(peer, ask_only)
                finally:
                    room.release()
                if peer in self._leases:
                    # A follower has nothing more to say: this ends when it leaves, or when its lease does.
                    with contextlib.suppress(OSError):
                        await peer.recv(1)
            finally:
                self._leases.discard(peer)

    async def _serve_one(self, peer: trio.socket.SocketType, ask_only: bool) -> None:
        try:
            answer = await self._answer(peer, ask_only)
        except UserFault as fault:
            answer = _written({"fault": list(fault.messages), "exit_code": int(fault.exit_code)})
        except OSError:
            # It left while it was listened to.
            return
        except Exception:
            log.exception("a request on the control socket failed")
            answer = _written({"fault": ["the daemon failed at this; see its log"], "exit_code": int(Exit.FAILED)})
        try:
            with trio.fail_after(REQUEST_TIMEOUT):
                await trio.SocketStream(peer).send_all(answer)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError):
            # A peer that leaves before its answer is no reason for anything, least of all for the mount to end.
            self._leases.discard(peer)

    async def _answer(self, peer: trio.socket.SocketType, ask_only: bool) -> bytes:
        uid, pid = _credentials(peer)
        if uid != os.geteuid() or (not ask_only and not same_namespaces(peer, pid)):
            raise UserFault(Exit.FAILED, "this mount takes orders only from its own user, outside every sandbox")
        request = await _received(peer)
        do = request.get("do")
        if ask_only:
            # To write a long answer out takes as long as ten turns: that too for one at a time.
            async with self._one_who_asks:
                if do == "explain":
                    return _written({"ok": await self._each(request, self._seen_by_session)})
                if do == "view":
                    return _written({"ok": await self._view(request)})
            raise UserFault(Exit.FAILED, "this socket answers explain and view, nothing else")
        if do == "follow":
            return _written({"ok": self._lease(peer)})
        answer = self._answers.get(do) if isinstance(do, str) else None
        if answer is None:
            raise UserFault(Exit.USAGE, f"no such request; there are {', '.join((*self._answers, 'follow'))}")
        return _written({"ok": await answer(request)})

    # -- leases ---------------------------------------------------------------------------------------------------------

    async def take(self, policy: CompiledPolicy) -> None:
        """End every lease of the policy before this one."""
        self.end_leases(policy)

    def end_leases(self, _: CompiledPolicy) -> None:
        """The same. It waits for nobody, and no follower can make it fail."""
        for peer in self._leases:
            # Not only closed: a task may be at it. A follower that has left is no matter.
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        self._leases.clear()

    def _lease(self, peer: trio.socket.SocketType) -> dict[str, Any]:
        """The policy in force and what else a view of it needs, for as long as the connection is open. Nothing is awaited
        between the answer and its lease, so no change comes in between."""
        if len(self._leases) >= MAX_LEASES:
            raise UserFault(Exit.FAILED, f"{MAX_LEASES} programs follow this mount already; close a View in one of them")
        self._live.catch_up()
        request, root = self._request, self._operations.view.root
        lease = {
            "mount": self._mount,
            "source": request.source,
            "identity": root.identity(root.descriptor),
            "named": request.named,
            "at": request.appears_at or request.mountpoint,
            "beside": request.beside,
            "options": asdict(self._live.options),
            **policy_values(self._live.policy),
        }
        self._leases.add(peer)
        return lease

    # -- answers --------------------------------------------------------------------------------------------------------

    @property
    def _policy(self) -> Any:
        return self._operations.view.policy

    async def _status(self, _: Request) -> dict[str, Any]:
        operations = self._operations
        then, counted = self._counted
        moment, requests = time.monotonic(), operations.requests
        self._counted = (moment, requests)
        return {
            "source": self._request.source,
            "mountpoint": self._request.mountpoint,
            "appears_at": self._request.appears_at,
            "session_file": self._live.options.session_file,
            "process": os.getpid(),
            "since": self._began,
            "age": time.time() - self._began,
            "open": await self._view({}),
            "requests": requests,
            "requests_per_second": (requests - counted) / max(moment - then, 1e-3),
            "answered_from_cache": operations.kept,
            "live": [
                {"path": path.decode("utf-8", "surrogateescape"), "level": str(grant.level), "left": grant.left}
                for path, grant in self._live.grants.items()
            ],
            "closed": [path.decode("utf-8", "surrogateescape") for path in self._live.shut()],
            "refusals": operations.refusals,
            "journal": None
            if operations.journal is None
            else {"written": operations.journal.written, "lost": operations.journal.lost},
            "nodes": len(operations.nodes),
            "handles": len(operations.files) + len(operations.directories),
            "watches": len(operations.watch),
            "invalidations": operations.watch.invalidations,
        }

    async def _view(self, _: Request) -> list[dict[str, str]]:
        return [
            {"path": path.decode("utf-8", "surrogateescape"), "level": str(level)} for path, level in self._policy.granted()
        ]

    async def _in_force(self) -> list[dict[str, str]]:
        """What is open, and what is closed in it by what was granted and revoked live."""
        closed = [{"path": path.decode("utf-8", "surrogateescape"), "level": "none"} for path in self._live.shut()]
        return sorted([*await self._view({}), *closed], key=lambda entry: entry["path"])

    async def _explain(self, request: Request) -> list[dict[str, Any]]:
        # By one policy, whatever is granted or revoked in between.
        policy = self._policy
        return await self._each(request, lambda path: explanation_values(policy.explain(path)))

    def _seen_by_session(self, path: ViewPath) -> dict[str, Any]:
        """What the session itself may learn: of what it does not see, no more than the file system says."""
        view = self._operations.view
        landing = view.links.resolve(path, follow_last=True)
        try:
            if isinstance(landing, Landing):
                raise _error_of(landing)
            view.attributes(view.locate(landing))
        except OSError as error:
            text = _UNSEEN.get(error.errno or 0, Refusal.MISSING).text(path)
            return unseen_values(path, error.errno or errno.EIO, text)
        # Behind a link, what it leads to answers; the path is given as it was asked.
        values = explanation_values(self._policy.explain(landing))
        asked, answering = (each.decode("utf-8", "surrogateescape") for each in (path, landing))
        for operation in OPERATIONS:
            if values[operation] is not None:
                values[operation]["text"] = values[operation]["text"].replace(answering, asked, 1)
        return {**values, "path": asked}

    async def _reload(self, request: Request) -> list[dict[str, str]]:
        session_file = request.get("session_file")
        if session_file is not None and not isinstance(session_file, str):
            raise UserFault(Exit.USAGE, "session_file is a file name")
        # In a thread: on the way there this very view may be asked.
        if session_file is not None and await trio.to_thread.run_sync(self._shows, session_file, abandon_on_cancel=True):
            shown = display(os.fsencode(session_file))
            raise UserFault(Exit.POLICY, f"{shown} lies in this view; name it where it is in SOURCE")
        await self._live.reload(session_file)
        log.info("took another policy")
        return await self._in_force()

    def _shows(self, file: str) -> bool:
        """Whether a file name leads into this view, where the session may change what is to bind it."""
        if not file.startswith("/") or "\0" in file:
            # No file has this name; reading it says so.
            return False
        point = HostPath(os.fsencode(self._request.mountpoint))
        return mounts.in_one_of([point], HostPath(os.fsencode(file))) is not None

    async def _grant(self, request: Request) -> list[dict[str, str]]:
        text, seconds = request.get("level"), request.get("seconds")
        level = LEVELS.get(text) if isinstance(text, str) else None
        lasts = seconds is None or (isinstance(seconds, (int, float)) and 0 < seconds <= MAX_GRANT_SECONDS)
        if level is None or not lasts:
            raise UserFault(Exit.USAGE, "a grant has a level of none, ro, stage, commit, and up to ten years in seconds")
        await self._live.grant(self._path(request.get("path")), level, seconds)
        return await self._in_force()

    async def _revoke(self, request: Request) -> list[dict[str, str]]:
        await self._live.revoke(self._path(request.get("path")))
        return await self._in_force()

    async def _each(self, request: Request, explained: Callable[[ViewPath], dict[str, Any]]) -> list[dict[str, Any]]:
        """The explanation of each path of a request, with turns for everything else: thousands fit into one."""
        paths = request.get("paths")
        if not isinstance(paths, list):
            raise UserFault(Exit.USAGE, "paths is a list of paths")
        answers = []
        for number, path in enumerate(paths):
            if number % PATHS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            answers.append(explained(self._path(path)))
        return answers

    def _path(self, text: object) -> ViewPath:
        if not isinstance(text, str):
            raise UserFault(Exit.USAGE, "a path is a text")
        try:
            return view_path(from_text(text), self._policy.session.start)
        except PathFault as fault:
            raise UserFault(Exit.FAILED, path_fault_text(fault, text)) from None


_UNSEEN = {refusal.errno: refusal for refusal in (Refusal.DENIED, Refusal.NOT_DIRECTORY)}
"""What an errno tells in words; any other, that nothing is there."""


def _error_of(landing: Landing) -> OSError:
    """What following a link answers that leads nowhere in the view."""
    code = {Landing.LOOP: errno.ELOOP, Landing.NOT_DIRECTORY: errno.ENOTDIR}.get(landing, errno.ENOENT)
    return OSError(code, os.strerror(code))


def _file_of(path: Path) -> tuple[int, int]:
    """Which file a name leads to."""
    status = path.stat()
    return status.st_dev, status.st_ino


def _credentials(peer: trio.socket.SocketType) -> tuple[int, int]:
    """uid and pid of a peer when it connected: SO_PEERCRED, unix(7)."""
    pid, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid, pid


def _written(answer: dict[str, Any]) -> bytes:
    """An answer as its line."""
    return json.dumps(answer).encode("ascii") + b"\n"


async def _received(peer: trio.socket.SocketType) -> Request:
    """One line of JSON, of bounded length, in bounded time."""
    text = bytearray()
    with trio.move_on_after(REQUEST_TIMEOUT):
        while not text.endswith(b"\n"):
            piece = await peer.recv(4096)
            if not piece:
                break
            text += piece
            if len(text) > MAX_REQUEST_BYTES:
                advice = "name fewer paths at once, or shorter ones"
                raise UserFault(Exit.USAGE, f"a request is at most {MAX_REQUEST_BYTES} bytes; {advice}")
    try:
        request = json.loads(text)
    except (ValueError, RecursionError):
        raise UserFault(Exit.USAGE, "a request is one line of JSON") from None
    if not isinstance(request, dict):
        raise UserFault(Exit.USAGE, "a request is a JSON object")
    return request
