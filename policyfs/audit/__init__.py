"""The audit log, called the journal: events, the file that holds them, and its verification."""
