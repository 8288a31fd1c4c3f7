"""The policy in force: what was granted and revoked since a view was opened, and the subscribers to each change."""
