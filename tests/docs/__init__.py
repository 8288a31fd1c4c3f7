"""What the pages say is held to what happens."""
