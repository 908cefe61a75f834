"""The rules of kici: pure functions and frozen structs. No I/O, no clock, no randomness, no logging."""
