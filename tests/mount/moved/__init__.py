"""Somebody moves things in the source behind the mount's back, to where other rules hold: whatever was judged, listed or
kept by the old place is not answered any more, once it is found at the new one. Both ways to tell the kernel are tried:
the epoch of Linux 6.16, and the names one by one, as an older kernel has to."""
