"""The repository of the snapshots is made by whoever is first, also when all hosts come at once.

To see it fail: name the unfinished folder by the process alone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ddops.gitio import Repo


def test_many_at_once_make_one_whole_repository(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "store.git")
    with ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(repo.ensure) for _ in range(12)]:
            done.result()
    assert repo.text("config", "pack.window").strip() == "0"
    assert [p.name for p in tmp_path.iterdir()] == ["store.git"]
