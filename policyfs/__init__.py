"""A mounted view of a directory tree that shows every tool only what the session's policy opens."""

__version__ = "0.1.0"
