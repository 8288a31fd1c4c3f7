"""The policy in force: what was granted and revoked since a view was opened, and who has to know of each change."""
