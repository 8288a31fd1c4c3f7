"""Another policy for a mount in use (rule live-1): once a change is acknowledged, nothing that it took away is
answered, whoever held it and however the kernel kept it. Both ways are tried: the epoch of Linux 6.16, and the names one
by one, as an older kernel has to."""
