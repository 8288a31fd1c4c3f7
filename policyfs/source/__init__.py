"""The only system calls by path: the confined root beneath which everything is reached, and open files."""
