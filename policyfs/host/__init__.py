"""What policyfs asks of the machine besides the source tree: session files, the home, mounts, its own state.

`places` knows where things are, `load` turns options and files into a policy, `mounts` reads the mount table and checks
SOURCE and MOUNTPOINT, `faults` is what a person did wrong, with the exit code that says whose fault it was.
"""
