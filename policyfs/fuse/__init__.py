"""The mount: FUSE requests translated to the view and back.

Answering: `handlers` are the requests, `guard` what stands between a handler and the kernel, `reach` the way to an object
that is asked for by its inode number, `directories` listings, `replies` and `entries` what is answered, `handles` what is
open, `removed` what lost its name while it was in use.

Keeping what the kernel has true: `kernel_cache` is what it was told, and opens with the theory; `nodes` the inode numbers;
`source_watch` reports what others change, `policy_switch` another policy; `content` sends small files ahead; `pruning` has
the kernel forget what it has not used for long.

Keeping this process small and nobody waiting: `memory`, `names`, `polling`, `waiting`. `recorder` tells the journal.
"""
