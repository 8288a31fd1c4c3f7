"""What a filter of system calls answers, without loading it: the instructions of classic BPF that libseccomp uses."""

from __future__ import annotations

import struct
from collections.abc import Sequence

ALLOWED = None


def answer(program: bytes, architecture: int, number: int, arguments: Sequence[int] = ()) -> int | None:
    """The error that a filter gives a system call, or None where it lets it through.

    `architecture` is an AUDIT_ARCH of linux/audit.h; what is not given of the arguments is 0.
    """
    values = [argument & 0xFFFFFFFFFFFFFFFF for argument in (*arguments, *[0] * (6 - len(arguments)))]
    data = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *values)
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator = 0
    at = 0
    while True:
        code, if_true, if_false, constant = instructions[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, constant)
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x05:
            at += constant
        elif code in (0x15, 0x25, 0x35, 0x45):
            holds = {
                0x15: accumulator == constant,
                0x25: accumulator > constant,
                0x35: accumulator >= constant,
                0x45: bool(accumulator & constant),
            }[code]
            at += if_true if holds else if_false
        elif code == 0x06:
            return _error(constant)
        else:
            raise AssertionError(f"instruction {code:#x} is not known here")


def _error(returned: int) -> int | None:
    if returned == 0x7FFF0000:
        return ALLOWED
    assert returned & 0xFFFF0000 == 0x50000, f"the filter answers {returned:#x}"
    return returned & 0xFFFF
