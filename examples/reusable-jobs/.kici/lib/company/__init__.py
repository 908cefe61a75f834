"""Jobs and steps for all services of the company. A repository of its own can carry it, as a subtree or a copy."""

from lib.company.jobs import python_service
from lib.company.steps import Report, pack, unit_tests

__all__ = ["Report", "pack", "python_service", "unit_tests"]
