"""The mount: FUSE requests translated to the view and back, and the life of the process that does it.

Answering: `handlers` are the handlers, `guard` what stands between a handler and the kernel, `nodes` the inode numbers the
kernel holds, `handles` what is open, `removed` what lost its name while it was in use, `directories` what a directory holds,
`entries` attributes as pyfuse3 wants them, `content` small files sent ahead.

Keeping the kernel's caches true, this process small and nobody waiting: `kernel_cache`, `source_watch`, `pruning`, `memory`,
`polling`, `waiting`.

Changing: `policy_switch` puts another policy in force, `recorder` writes to the journal.
"""
