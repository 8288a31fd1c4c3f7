"""The sockets of a mount: who reaches them, what they take, what they answer; and what `status`, `explain` and the
attribute `user.policyfs.level` tell of a mount in use."""
