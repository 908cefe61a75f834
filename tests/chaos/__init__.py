"""Everything that can be killed is killed while 2,000 jobs run; afterwards nothing is missing: `make chaos`."""
