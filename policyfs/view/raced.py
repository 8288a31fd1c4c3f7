"""Names that come and go while an operation is under way."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

TRIES = 32
"""How often something is tried before it is given up. Four processes that fight over six names need two, rarely three."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Raced(BlockingIOError):
    """A name was taken when it was to be made and free when it was looked at: nothing was done, and the next attempt may
    well succeed. EAGAIN, which no tool expects of these calls, so that it is for `tried_again` to meet."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, os.strerror(errno.EAGAIN))


def tried_again(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A method that does nothing where it raises `Raced`, tried until it does not, at most `TRIES` times."""

    @functools.wraps(method)
    def trying(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        for _ in range(TRIES - 1):
            try:
                return method(*arguments, **named)
            except Raced:
                continue
        return method(*arguments, **named)

    return trying
