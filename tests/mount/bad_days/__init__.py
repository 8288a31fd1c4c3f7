"""Bad days: faults of the source, of the daemon itself and of whoever uses it. The mount survives or ends closed, and
nobody hangs."""
