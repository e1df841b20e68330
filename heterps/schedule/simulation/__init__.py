r"""A pipeline simulated event by event: what the cost model's closed form leaves out.

**What runs.** A step is a batch of B samples in M micro-batches of b = B/M. Each goes forward through the stages and
back again; the step is done when all its micro-batches have returned to the first stage, and updates are part of the
stages' times. A step may enter when the one `staleness` + 1 before it is done: 0 is `sync`, where the pipeline drains
between steps, more is `async`.

**What a stage does.** With k units, serial and parallel parts S, P of computing and DS, DP of communication (seconds a
sample, as in `heterps/schedule/cost.py`), one micro-batch takes, forward and backward together,

    computing        b (S + P/k · J_k)     a third forward, two thirds backward
    its own link     b (DS + DP/k)         half each way: activations and rows come, gradients go
    the server       b p / k_ps · J_kps    half each way: rows are pulled, gradients pushed; p of this stage alone
    the shared link  bits / shared_gbps    what crosses the cut behind the stage, going forward, and the cut before it,
                                           going back; parameters half each way

It asks for all of them when it arrives and moves on when all are done: communication overlaps computing. Computing of
a stage, each link and the server serve one micro-batch at a time, the one nearest to its end first (backward before
forward). That order keeps the busiest of them busy, whatever the others do, as long as enough steps are in flight; so
without chance the throughput is the closed form's, 1 / max(S + P/k, DS + DP/k, p/k_ps). By default `async` keeps four
micro-batches a stage in flight, which is enough (`benchmarks/simulated.py`).

**Jitter.** Every unit takes its share of a micro-batch times a factor, lognormal with mean 1 and `jitter` as the
standard deviation of its logarithm, drawn anew for each micro-batch and direction. The stage waits for its slowest
unit: J_k is the largest of k factors. If one factor has the distribution F, the largest has F^k, so a uniform number u
gives

    J_k = exp(jitter · z - jitter²/2),   z the normal quantile with 1 - u^(1/k) above it,

one draw for any k. It grows like exp(jitter · sqrt(2 ln k)): more units lose more to stragglers. A draw depends on the
seed, the stage's first layer and the micro-batch alone, so plans that are compared meet the same luck.

**Draining.** The closed form gives a `sync` pipeline M / (M + stages - 1) of its throughput. That is exact where
computing binds and all stages take the same time. Stages that are faster than the slowest fill and drain faster, so
with them the simulated throughput is higher than the factor says, by up to a fifth on random problems. Where one
direction is bound by computing and the other by communication, a draining pipeline loses a little, as the two do not
even out.

**The shared link.** The closed form gives each unit a link of its own. In a cluster all of them cross one network;
`shared_gbps` is what that carries. Bits of a cut cross it once; parameters cross with beta · sync_s · bandwidth_gbps
bits (sync_s is seconds on a unit's link). Types without a `bandwidth_gbps` send parameters for free.

**Failures** are of another time scale, hours against milliseconds, so they are simulated apart
(`heterps/schedule/simulation/failures.py`): each unit fails at a constant rate, which stops the pipeline, costs a
restart and what was trained since the last checkpoint. Units are paid for meanwhile.
"""

from heterps.schedule.simulation.conditions import Conditions
from heterps.schedule.simulation.contest import Contest, Entry, plan_simulated
from heterps.schedule.simulation.failures import Failures, expected_share, run_with_failures
from heterps.schedule.simulation.objective import Simulated
from heterps.schedule.simulation.result import Rung, Simulation, StageUse, simulate_plan, simulate_units, what_it_costs
from heterps.schedule.simulation.scale import Point, scale

__all__ = [
    "Conditions",
    "Contest",
    "Entry",
    "Failures",
    "Point",
    "Rung",
    "Simulated",
    "Simulation",
    "StageUse",
    "expected_share",
    "plan_simulated",
    "run_with_failures",
    "scale",
    "simulate_plan",
    "simulate_units",
    "what_it_costs",
]
