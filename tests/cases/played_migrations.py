"""Migrations as an older harness plays them, in place of the migration controller: config.newMigrationPhase sets the phase of
every new one and never finishes it, config.failMigrationsAfterSeconds lets each fail after so many seconds."""

from __future__ import annotations

from outfitter.api import kinds
from outfitter.store.clock import rfc3339
from tests.cases.case_product import object_path
from tests.cases.step_engine import StepEngine, at_once

CONTROLLER = "migration"  # of the product, which does not run then
FINAL = ("Succeeded", "Failed")


def plays(config: object) -> bool:
    return isinstance(config, dict) and any(key in config for key in ("newMigrationPhase", "failMigrationsAfterSeconds"))


class PlayedMigrations:
    def __init__(self, engine: StepEngine) -> None:
        self._engine = engine
        self._phase = engine.case.config.get("newMigrationPhase")
        seconds = engine.case.config.get("failMigrationsAfterSeconds")
        self._fail_after = None if seconds is None else float(seconds)
        self._since: dict[str, float] = {}

    def due(self, now: float) -> float | None:
        if self._fail_after is None:
            return None
        return min((end for begin in self._since.values() if (end := begin + self._fail_after) > now), default=None)

    async def act(self, now: float) -> bool:
        acted = False
        for migration in self._engine.all(kinds.MIGRATION):
            uid, phase = migration["metadata"]["uid"], (migration.get("status") or {}).get("phase") or ""
            begin = self._since.setdefault(uid, now)
            wanted = phase
            if self._phase and not phase:
                wanted = self._phase
            if self._fail_after is not None and now >= begin + self._fail_after - 1e-6 and phase not in FINAL:
                wanted = "Failed"
            if wanted != phase:
                shape = {**migration, "apiVersion": kinds.MIGRATION.api_version}
                entered = {"phase": wanted, "phaseTransitionTimestamp": rfc3339(self._engine.clock.now())}
                at_once(self._engine.api.send("PATCH", object_path(kinds.MIGRATION, shape) + "/status", {"status": {
                    "phase": wanted, "phaseTransitionTimestamps": [entered]}}))
                acted = True
        return acted
