"""Files with several names in a run: the daemon looks for them among the credentials, and must not look into itself."""

from __future__ import annotations

from tests.sandbox.runs import Ground, ran


def test_a_hard_link_is_made_and_answered(tree: Ground) -> None:
    """A file with two names, which git makes of each object, is made and seen; policyfs's own state, where the view is
    mounted, is looked through for credentials without asking this very view."""
    assert ran(tree.run("sh", "-c", "echo x > yard/a; ln yard/a yard/b; stat -c %h yard/b; cat yard/b")) == "2\nx\n"
