"""The reference monitor: the only code that touches a tree, and only after the policy has decided.

`monitor` has the operations on a judged location, and `judge` what they have in common. Each asks the policy by the path in
the view, finds the tree that holds the path in the table of `trees`, and only then acts, through the `Tree` protocol of
`policyfs.source`. `links` judges what following a symbolic link gives, `attributes` says what an object's attributes look
like in a view, `credentials` knows the files of credential places by identity, `moved` looks whether a directory still
stands where it was judged, and `whole_path` is the same by whole paths, for callers without a mount.
"""
