"""Logs of steps: appended as chunks while a step runs, followed live, compacted into one object afterwards."""
