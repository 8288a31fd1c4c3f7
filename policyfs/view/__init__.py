"""The only code that touches the source tree, through one gate that decides first.

`root` is the confined root: every system call on the source is in it, and none follows a link or crosses a mount.
`view` is the gate: it takes judged locations, refuses by the policy, and only then acts through `root`. `links` says
which symbolic links are shown and may be made, `attributes` is what a file's attributes look like in a view, `files` an
open file.
"""
