"""The benchmark: native, bindfs and policyfs side by side. `scripts/bench` runs it; BENCHMARKS.md says what it means."""
