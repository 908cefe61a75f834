"""Benchmarks: `make bench`. Each figure stands beside a floor or a peer taken in the same run, interleaved."""
