"""The mount: FUSE requests translated to the view and back.

`operations` are the handlers, `guard` what stands between a handler and the kernel, `nodes` the inode numbers the kernel
holds, `handles` what is open, `entries` attributes as pyfuse3 wants them, `daemon` the life of one mount.
"""
