"""Options and files to a session, a policy and a view: the one way in for commands, the daemon and the Python API."""
