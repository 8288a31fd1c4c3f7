"""Ends one mount that outlives its deadline or the process that asked for it.

    python -I -S watchdog.py SECONDS MINOR PIDFD NAMESPACE MOUNTPOINT

A line on standard input means that all is well. The end of it, or nothing within SECONDS, means that the mount is
wedged or its test gone: the connection of that very mount is aborted (so that everyone who waits in the kernel gets an
error), the mount is detached, the daemon is killed by a descriptor taken while it lived, and the exit code is 3.
It touches nothing by way of the mount, which would hang it as well.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys


def abort_connection(minor: str) -> bool:
    """Whether a connection was aborted. In containers the control file system is often not mounted where it belongs:
    then it is mounted for a moment in a namespace of its own, which takes root."""
    usual = "/sys/fs/fuse/connections"
    if os.path.exists(f"{usual}/{minor}/abort"):
        with contextlib.suppress(OSError), open(f"{usual}/{minor}/abort", "w") as abort:
            abort.write("1")
            return True
        return False
    script = f"mount -t fusectl fusectl {usual} && echo 1 > {usual}/{minor}/abort"
    unshared = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
    return subprocess.run(unshared, stderr=subprocess.DEVNULL, check=False).returncode == 0


def main() -> int:
    seconds, minor, pidfd, namespace, point = sys.argv[1:]
    readable, _, _ = select.select([0], [], [], float(seconds))
    if readable and os.read(0, 1):
        return 0
    abort_connection(minor)
    enter = ["nsenter", "-t", namespace, "-m", "--"] if int(namespace) else []
    detach = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
    subprocess.run([*enter, *detach, point], stderr=subprocess.DEVNULL, check=False)
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(int(pidfd), signal.SIGKILL)
    return 3


if __name__ == "__main__":
    sys.exit(main())
