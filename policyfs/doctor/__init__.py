"""What is dangerous in a real tree under a policy, found before a session is let loose on it.

A view decides by the text of a path, so there are things that it cannot see: history that holds a hidden file, a second
name of one, a file that a session may change and that the person's own tools execute (rule doctor-1). `examine`
walks the tree and reports them, `git_index` reads what git tracks, `executed` names what tools execute.
"""
