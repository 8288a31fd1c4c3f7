"""The mount: FUSE requests translated to the view and back, and the life of the process that does it.

Answering: `operations` are the handlers, `guard` what stands between a handler and the kernel, `nodes` the inode numbers
the kernel holds, `handles` what is open, `removed` what lost its name while it was in use,
`listings` what a directory holds, `entries` attributes as pyfuse3 wants them, `content` small files sent ahead.

Keeping the kernel's caches true, this process small and nobody waiting: `watch`, `pruning`, `memory`, `polling`, `waiting`.

Changing and asking: `policy_change` puts another policy in force, `live` knows what was granted since, `control` answers
the sockets, `journal` keeps what happened and `teller` tells it.

Living: `request` crosses the pipe to the daemon, `start` starts it, `daemon` is its life.
"""
