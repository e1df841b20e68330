"""What a coordinator tells, and to whom: the journal, the metrics, and the right to commit."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ray", reason="engine ray needs ray: pip install heterps[ray]")

from heterps.runtime.checkpoint import Checkpoints, Store
from heterps.runtime.cluster.coordinator import Coordinator, Options
from heterps.runtime.cluster.elastic import Placing
from heterps.runtime.cluster.history import History
from heterps.runtime.cluster.journal import Journal, replay
from heterps.runtime.cluster.layout import lay_out
from heterps.runtime.cluster.lease import Lease, LeaseLost
from heterps.runtime.cluster.metrics import MetricsServer, render
from heterps.runtime.cluster.parts import Part
from heterps.runtime.cluster.policy import Limits
from heterps.runtime.cluster.tally import Outcome, Tally
from heterps.runtime.cluster.work import Progress, Work
from heterps.runtime.settings import Settings
from heterps.runtime.trainer import NotFinite
from heterps.telemetry import JsonLines, Recorder, read_jsonl
from heterps.telemetry.metrics import Auc
from tests.runtime.plans import make_plan

STATUS: dict[str, Any] = {
    "job": 'a "job"\\', "samples": 320, "step": 10, "loss": float("nan"), "auc": None, "samples_per_s": 12.5,
    "attempts": 2, "restarts": {"died": 1}, "checkpoint": {"step": 10, "age_s": 2.0, "took_s": 0.5},
    "stages": [{"type": "cpu", "units": 2, "replicas": [{"machine": "10.0.0.1", "busy": 0.5, "slow": None}]}],
    "tables": {"rows": {"rows": 7, "bytes": 1024}},
}  # fmt: skip


class TestJournal:
    def test_what_was_told_is_not_told_again(self):
        journal = Journal()
        journal.scalar("loss", 0.5, step=1)
        cursor, entries = journal.after(None)
        assert entries == [("scalar", "loss", 0.5, 1)]
        assert journal.after(cursor)[1] == []
        journal.event("restart", reason="x")
        assert journal.after(cursor)[1] == [("event", "restart", {"reason": "x"})]

    def test_an_answer_that_was_lost_is_given_again(self):
        journal = Journal()
        journal.log(1, 1.0)
        assert journal.after(None)[1] == journal.after(None)[1] == [("log", 1, 1.0)]

    def test_a_journal_of_another_process_is_told_from_its_beginning(self):
        earlier, journal = Journal(), Journal()
        for number in range(3):
            earlier.log(number, 0.0)
        journal.log(7, 0.0)
        assert journal.after(earlier.after(None)[0])[1] == [("log", 7, 0.0)]

    def test_who_comes_later_goes_on_after_what_is_known(self):
        journal = Journal()
        journal.log(1, 0.0)
        cursor, _ = journal.after(None)
        journal.after(cursor)  # which says that it has come
        journal.log(2, 0.0)
        assert journal.after(None)[1] == [("log", 2, 0.0)]

    def test_it_holds_only_so_much(self):
        journal = Journal(kept=3)
        for number in range(10):
            journal.log(number, 0.0)
        cursor, entries = journal.after(None)
        assert [entry[1] for entry in entries] == [7, 8, 9]
        assert journal.after(cursor)[1] == []

    def test_news_end_the_waiting(self):
        journal = Journal()
        threading.Timer(0.05, lambda: journal.log(1, 0.0)).start()
        began = time.monotonic()
        assert journal.after(None, wait_s=300.0)[1] == [("log", 1, 0.0)]
        assert time.monotonic() - began < 150

    def test_replayed_records_are_as_if_they_were_made_here(self, tmp_path: Path):
        journal, logged = Journal(), []
        journal.scalar("loss", 0.5, step=3)
        journal.event("evaluation", step=3)
        journal.log(96, 1.5)
        for start in (2.0, 1.0):
            journal.span("forward", stage=1, step=2, micro_batch=0, began=time.time() - start, seconds=0.25)
        with Recorder([JsonLines(tmp_path / "t.jsonl")]) as recorder:
            replay(journal.after(None)[1], recorder, on_log=lambda *values: logged.append(values))
            assert recorder.busy_s(1) == pytest.approx(0.5)
            assert recorder.totals()[1, "forward"].count == 2
        kinds = [(record["kind"], record["name"]) for record in read_jsonl(tmp_path / "t.jsonl")]
        assert ("scalar", "loss") in kinds
        assert ("event", "evaluation") in kinds
        assert kinds.count(("span", "forward")) == 2
        assert logged == [(96, 1.5)]


class TestMetrics:
    def test_text_is_that_of_prometheus(self):
        lines = render(STATUS).splitlines()
        assert 'heterps_samples_total{job="a \\"job\\"\\\\"} 320.0' in lines
        assert "# TYPE heterps_samples_total counter" in lines
        assert 'heterps_loss{job="a \\"job\\"\\\\"} NaN' in lines
        assert any(line.startswith("heterps_restarts_total{") and 'reason="died"} 1.0' in line for line in lines)
        assert any('stage="0",replica="0",type="cpu",machine="10.0.0.1"} 0.5' in line for line in lines)
        assert not any(line.startswith("heterps_auc") for line in lines)
        helps = [line.split()[2] for line in lines if line.startswith("# HELP")]
        assert len(helps) == len(set(helps))

    def test_a_port_that_is_taken_is_an_error_of_the_system(self):
        server = MetricsServer(lambda: STATUS, host="127.0.0.1", port=0)
        try:
            port = int(server.address.rpartition(":")[2].partition("/")[0])
            with pytest.raises(OSError, match=r"[Aa]ddress"):
                MetricsServer(lambda: STATUS, host="127.0.0.1", port=port)
        finally:
            server.close()


class TestLease:
    def test_the_last_one_has_it(self, tmp_path: Path):
        history = History(tmp_path, "job")
        first = Lease(history)
        first.note({"first_step": 3})
        second = Lease(history)
        assert second.found["first_step"] == 3
        second.check()
        for late in (first.check, lambda: first.note({"first_step": 9})):
            with pytest.raises(LeaseLost):
                late()
        facts = history.facts()
        assert facts is not None
        assert facts["first_step"] == 3

    def test_a_run_that_is_cleared_away_is_nobodys(self, tmp_path: Path):
        history = History(tmp_path, "job")
        lease = Lease(history)
        history.remove()
        with pytest.raises(LeaseLost):
            lease.check()

    def test_a_coordinator_that_wakes_up_late_commits_nothing(self, tmp_path: Path):
        plan = make_plan(4)
        work = Work(factory=lambda: None, settings=Settings(), layout=lay_out(plan, tables=0))  # type: ignore[arg-type, return-value]
        options = Options(job="a", name="a", plan=plan, placing=Placing(tables=0), limits=Limits())
        checkpoints = Checkpoints(path=tmp_path)
        late = Coordinator(work, checkpoints, options)
        late._store, late._tables, late._metrics, late._position = Store(checkpoints), {}, {}, None
        late._begun, late.outcome.step, late.outcome.losses = True, 1, [0.5]
        late._commit(Part({"w": torch.zeros(1)}, {}))
        assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000001"]
        taken = Coordinator(work, checkpoints, options)
        assert taken.outcome.restarts == {"coordinator": 1}
        late.outcome.step, late.outcome.losses = 2, [0.5, 0.25]
        with pytest.raises(LeaseLost):
            late._commit(Part({"w": torch.ones(1)}, {}))
        assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000001"]
        assert History(tmp_path, "a").losses(9) == [0.5]


class TestTally:
    """Two stages; the second has two replicas, each with its share of losses and scores."""

    def made(self, **settings: Any) -> tuple[Tally, Journal]:
        journal = Journal()
        journal.after(None)  # somebody follows
        tally = Tally(Outcome(step=8, samples=80, first_samples=80), journal, Settings(micro_batches=4, **settings))
        layout = lay_out(make_plan(4, (2,), units=[1, 2]), tables=0, replicas=[1, 2])
        tally.begin(layout, auc=None, scored=True)
        return tally, journal

    def stretch(self, losses: list[float], *, busy_s: tuple[float, float, float] = (0.2, 0.4, 0.4)) -> list[Progress]:
        step, samples = 8 + len(losses), 80 + 10 * len(losses)
        states = []
        for score in (0.9, -0.9):
            auc = Auc()
            auc.update(torch.tensor([score, 0.1]), torch.tensor([1.0, 0.0]))
            states.append(auc.state())
        halves = tuple(loss / 2 for loss in losses)
        spans = (("forward", time.time(), 0.1, 8, 0), ("update", time.time(), 0.1, step - 1, None))
        return [
            Progress(step, samples, None, False, (), None, 0, busy_s[0], spans=spans),
            Progress(step, samples, None, False, halves, states[0], 3, busy_s[1], aucs=((10, states[0]),)),
            Progress(step, samples, None, False, halves, states[1], 0, busy_s[2], aucs=((10, states[1]),)),
        ]

    def test_steps_that_local_would_log_are_logged(self):
        tally, journal = self.made(log_every=5)
        tally.take(self.stretch([4.0, 3.0, 2.0, 1.0]), began=time.time(), seconds=2.0)
        entries = journal.after(None)[1]
        assert [entry[1:] for entry in entries if entry[:2] == ("scalar", "loss")] == [("loss", 3.0, 10)]
        assert [entry[1:] for entry in entries if entry[:2] == ("scalar", "auc")] == [("auc", 0.5, 10)]
        assert [entry[1:] for entry in entries if entry[0] == "log"] == [(20, 1.0)]
        tally.log()
        tally.log()
        later = journal.after(None)[1][len(entries) :]
        assert [entry[:2] for entry in later] == [("scalar", "loss"), ("log", 40), ("scalar", "auc")]

    def test_what_a_stretch_gives_is_added_up(self):
        tally, journal = self.made()
        tally.take(self.stretch([4.0, 3.0, 2.0, 1.0]), began=time.time(), seconds=2.0)
        outcome = tally.outcome
        assert (outcome.step, outcome.samples, outcome.losses) == (12, 120, [4.0, 3.0, 2.0, 1.0])
        assert outcome.busy_s == pytest.approx([0.2, 0.4])
        assert outcome.auc == pytest.approx(0.5)
        assert list(tally.busy.values()) == pytest.approx([0.1, 0.2, 0.2])
        spans = [entry for entry in journal.after(None)[1] if entry[0] == "span"]
        assert [(span[1], span[2], span[3]) for span in spans] == [
            ("forward", 0, 8), ("update", 0, 11), ("forward", 1, 8), ("update", 1, 11),
        ]  # fmt: skip

    def test_paces_are_of_the_same_amount_of_work(self):
        tally, _ = self.made()
        tally.take(self.stretch([1.0] * 4, busy_s=(0.4, 0.4, 0.8)), began=time.time(), seconds=2.0)
        paces = {str(seat): pace[-1] for seat, pace in tally.paces.items()}
        assert paces["stage 0 replica 0"] == pytest.approx(0.1)
        assert paces["stage 1 replica 1"] == pytest.approx(2 * paces["stage 1 replica 0"])

    def test_a_loss_that_is_no_number_ends_the_run_where_it_stands(self):
        tally, _ = self.made()
        with pytest.raises(NotFinite, match="step 9 is inf"):
            tally.take(self.stretch([1.0, float("inf")]), began=time.time(), seconds=2.0)
        assert (tally.outcome.step, tally.outcome.losses) == (8, [])

    def test_what_no_checkpoint_has_is_lost(self):
        tally, _ = self.made()
        tally.roll_back()  # nothing is kept yet
        tally.keep()
        tally.take(self.stretch([4.0, 3.0]), began=time.time(), seconds=2.0)
        tally.roll_back()
        outcome = tally.outcome
        assert (outcome.step, outcome.samples, outcome.losses, outcome.seconds) == (8, 80, [], 0.0)
        assert (outcome.busy_s, outcome.busy_of, outcome.auc) == ([0.0, 0.0], (0, 0.0), None)
        tally.take(self.stretch([2.0, 1.0]), began=time.time(), seconds=1.0)
        tally.keep()
        tally.roll_back()
        assert (outcome.step, outcome.losses, outcome.seconds) == (10, [2.0, 1.0], 1.0)
