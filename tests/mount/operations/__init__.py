"""Each handler on a real mount: the answers that conformance/ does not play because they take more than one call, a
descriptor held across something, or a system call that no tool makes."""
