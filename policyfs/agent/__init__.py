"""What an agent calls besides the file system, over the view and nothing else.

`reach` follows the links of a whole path, `instructions` collects instruction files, `workspace` says what a session may
do where.
"""
