"""Replicas that fill a machine stay on cores of their own; others are left to Linux."""

from __future__ import annotations

import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from heterps.runtime.cluster.cores import own_cores
from heterps.runtime.cluster.layout import Layout, Seat, StageLayout


def layout(*shares: tuple[int, ...], device: str = "cpu") -> Layout:
    """Stages whose replicas have so many threads."""
    stages = tuple(StageLayout(n, n, n, "cpu", sum(own), device, own) for n, own in enumerate(shares))
    return Layout(stages, shards=1, server_type="cpu")


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3), st.data())
def test_replicas_that_fill_their_host_share_all_cores_and_none_twice(shares, data):
    made = layout(*shares)
    hosts = {seat: data.draw(st.sampled_from("ab")) for seat in made.seats()}
    for host in set(hosts.values()):
        here = [seat for seat in made.seats() if hosts[seat] == host]
        threads = {seat: made.stages[seat.stage].shares[seat.replica] for seat in here}
        cores = list(range(3, 3 + sum(threads.values())))
        given_out = [own_cores(seat, made, hosts, cores) for seat in here]
        assert [len(own) for own in given_out] == list(threads.values())
        assert sorted(core for own in given_out for core in own) == cores


def test_who_has_cores_to_spare_or_too_few_or_a_gpu_is_left_alone():
    two = layout((1, 1))
    hosts = dict.fromkeys(two.seats(), "a")
    assert own_cores(Seat(0, 1), two, hosts, [0, 1]) == [1]
    for cores in ([0], [0, 1, 2], []):
        assert own_cores(Seat(0, 1), two, hosts, cores) == []
    assert own_cores(Seat(0, 0), two, {Seat(0, 0): "a", Seat(0, 1): "b"}, [0, 1]) == []
    assert own_cores(Seat(0, 1), layout((1, 1), device="cuda"), hosts, [0, 1]) == []


STAYS = """
import os, sys, threading
from heterps.runtime.cluster.cores import allowed, stay
started, ended = threading.Event(), threading.Event()
def run():
    started.set()
    ended.wait()
before = threading.Thread(target=run)
before.start()
started.wait()
stay([])
assert os.sched_getaffinity(before.native_id) == set(allowed())
last = allowed()[-1:]
stay(last)
after = threading.Thread(target=run)
after.start()
for thread in (before, after):
    assert os.sched_getaffinity(thread.native_id) == set(last), thread
ended.set()
"""


def test_all_threads_stay_where_they_are_told():
    assert os.sched_getaffinity(0)
    subprocess.run([sys.executable, "-c", STAYS], check=True)  # a process of its own: this one goes on everywhere
