"""What a coordinator leaves for the one after it."""

from __future__ import annotations

from pathlib import Path

from heterps.runtime.cluster.history import History


def test_losses_beyond_the_checkpoint_did_not_survive(tmp_path: Path):
    history = History(tmp_path, "job")
    assert history.losses(10) == []
    history.add([0.5, 0.25, 0.125])
    history.add([1.0])
    assert History(tmp_path, "job").losses(2) == [0.5, 0.25]
    history.add([2.0])
    assert history.losses(10) == [0.5, 0.25, 2.0]


def test_runs_are_apart_and_leave_nothing(tmp_path: Path):
    one, two = History(tmp_path, "one"), History(tmp_path, "two")
    assert one.facts() is None
    one.note({"first_step": 3})
    one.add([1.0])
    assert (History(tmp_path, "one").facts(), two.facts(), two.losses(5)) == ({"first_step": 3}, None, [])
    one.remove()
    assert list(tmp_path.iterdir()) == []
