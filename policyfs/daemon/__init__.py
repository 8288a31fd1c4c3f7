"""The process that serves one mount: its request, its start, its life and its control server."""
