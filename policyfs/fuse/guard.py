"""What stands between a handler and the kernel.

A handler may fail in four ways, and each has one answer (rule serve-2): a refusal of the policy becomes its errno; an
OSError of the source keeps its errno; ENOSYS becomes EIO, since one ENOSYS from open would switch open checks off for
the whole mount; anything else is a fault of ours, is logged with its traceback and becomes EIO. The
mount never dies of a request: pyfuse3 ends its main loop at any exception but FUSEError.
"""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import pyfuse3

from policyfs.view.refused import Refused

log = logging.getLogger("policyfs")

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM_ELSEWHERE = ("setxattr",)
"""Handlers whose ENOSPC is hardly ever one of the disk: ext4 answers so to an attribute larger than it takes."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def guarded(
    handler: Callable[Parameters, Coroutine[Any, Any, Result]],
) -> Callable[Parameters, Coroutine[Any, Any, Result]]:
    """A handler from which only FUSEError can come, and never ENOSYS. A method of `Operations`, whose requests and
    refusals it counts."""
    name = handler.__name__

    @functools.wraps(handler)
    async def guard(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        operations: Any = arguments[0]
        operations.requests += 1
        try:
            operations.catch_up()
            return await handler(*arguments, **named)
        except Refused as refused:
            if not refused.absent:
                last = arguments[-1]
                operations.refused(name, refused, last if isinstance(last, pyfuse3.RequestContext) else None)
            raise pyfuse3.FUSEError(refused.refusal.errno) from None
        except pyfuse3.FUSEError as error:
            raise _never_enosys(error.errno) from None
        except OSError as error:
            if error.errno in _NO_ROOM and name not in _NO_ROOM_ELSEWHERE and operations.removed.let_go_of_all():
                # What the session removed a moment ago was still held, and its room with it. The call did nothing.
                return await guard(*arguments, **named)
            raise _never_enosys(error.errno) from None
        except Exception:
            log.exception("%s failed; the request is answered with EIO", name)
            raise pyfuse3.FUSEError(errno.EIO) from None

    return guard


def guarded_without_reply(
    handler: Callable[Parameters, Coroutine[Any, Any, None]],
) -> Callable[Parameters, Coroutine[Any, Any, None]]:
    """A handler of a request that nobody waits for, from which nothing can come."""

    @functools.wraps(handler)
    async def guard(*arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        try:
            await handler(*arguments, **named)
        except Exception:
            log.exception("%s failed; nobody waits for an answer", handler.__name__)

    return guard


def _never_enosys(code: int | None) -> pyfuse3.FUSEError:
    return pyfuse3.FUSEError(errno.EIO if code in (None, 0, errno.ENOSYS) else code)
