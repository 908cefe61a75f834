from __future__ import annotations

import os
import time
from pathlib import Path

from kici.orchestrator.caches.sweep_uploads import Pass, Settings, SweepUploads
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.settings import Settings as OrchestratorSettings


async def test_only_old_remains_of_uploads_are_removed(tmp_path: Path) -> None:
    objects = open_objects(OrchestratorSettings(storage_fs_path=tmp_path))
    await objects.put("logs/whole", b"x")
    for name, age_s in [("old#1", 90_000), ("young#2", 60)]:
        left = tmp_path / "logs" / name
        left.write_bytes(b"part")
        os.utime(left, (time.time() - age_s,) * 2)
    os.utime(tmp_path / "logs" / "whole", (0, 0))
    assert await SweepUploads(objects, Settings()).run_once() == Pass(removed=1)
    assert sorted(os.listdir(tmp_path / "logs")) == ["whole", "young#2"]
