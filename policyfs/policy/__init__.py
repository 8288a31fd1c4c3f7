"""The decision: what a session may do with a path. Pure: values in, values out.

Nothing in this package reads a file, a clock or the environment, and nothing here knows of FUSE. That is what lets
the mount, the agent's tools and `explain` share one answer, and what lets tests check it against a naive reference.

`paths` reads text as paths, `levels` and `rules` are the vocabulary, `denylist` the credential places, `compiled` turns
rules into a tree in which a child's answer follows from its parent's, `refusals` is the one table of errnos and texts,
`operations` says what each operation needs, `session` reads a session file, `policy` joins them.

Four modules are about git: `git` says which part of a git directory a path is, `git_contents` which bytes git may find
there, `git_config` reads a configuration, and `git_places` follows it to what git reads and executes because of it.
"""
