"""The control protocol of a mounted view, and its client."""
