"""The life of a mount: what keeps it from beginning, what ends it, what is left, and what nobody sees of its daemon."""
