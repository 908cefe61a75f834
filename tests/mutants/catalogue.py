"""All mutations, by the room whose promise they break."""

from __future__ import annotations

from tests.mutants import caused, claims, kept, leases, logs_and_artifacts, status_path, storing
from tests.mutants.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *status_path.MUTATIONS,
    *claims.MUTATIONS,
    *leases.MUTATIONS,
    *storing.MUTATIONS,
    *logs_and_artifacts.MUTATIONS,
    *kept.MUTATIONS,
    *caused.MUTATIONS,
)
