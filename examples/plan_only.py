"""Planning alone, from a profile and a cluster written by hand: python examples/plan_only.py."""

from __future__ import annotations

import sys

import heterps

# Seconds for one batch on one unit. A layer that a type cannot run has no cost there.
PROFILE = heterps.Profile.from_dict({
    "format": "heterps.profile/1", "model": "mine", "batch_size": 4096,
    "layers": [
        {"name": "embedding", "kind": "embedding", "output_bytes": 6_815_744, "state_bytes": 1_280_000_000,
         "sharded": True,  # units share the rows
         "costs": {"cpu": {"compute_s": 0.021, "sync_s": 0.004, "alpha": 0.99, "ps_s": 0.006},
                   "v100": {"compute_s": 0.009, "sync_s": 0.011, "alpha": 0.98, "ps_s": 0.006}}},
        {"name": "tower", "kind": "fc", "output_bytes": 1_638_400, "state_bytes": 6_000_000,
         "costs": {"cpu": {"compute_s": 0.48, "sync_s": 0.002, "alpha": 0.99},
                   "v100": {"compute_s": 0.006, "sync_s": 0.001, "alpha": 0.97}}},
        {"name": "head", "kind": "fc",
         "costs": {"cpu": {"compute_s": 0.002, "sync_s": 0.0}, "v100": {"compute_s": 0.0002, "sync_s": 0.0}}},
    ],
})  # fmt: skip

CLUSTER = heterps.Cluster.from_dict({
    "types": {
        "cpu": {"device": "cpu", "price_per_hour": 0.04, "limit": 480, "bandwidth_gbps": 2, "memory_gb": 10},
        "v100": {"device": "cuda", "price_per_hour": 2.42, "limit": 32, "bandwidth_gbps": 100, "memory_gb": 32},
    },
    "parameter_server": "cpu",
})  # fmt: skip


def main() -> None:
    """The cheapest plan for a throughput, beside what simpler ways to plan give, and a goal that is out of reach."""
    plan = heterps.plan(PROFILE, CLUSTER, min_throughput=1_000_000)
    for stage in plan.stages:
        names = ", ".join(layer.name for layer in PROFILE.layers[stage.first : stage.last + 1])
        sys.stdout.write(f"{stage.units} x {stage.type}: {names}\n")
    if plan.parameter_server is not None:
        sys.stdout.write(f"{plan.parameter_server.units} x {plan.parameter_server.type}: serving tables\n")
    was = plan.predicted
    sys.stdout.write(f"{was.throughput:,.0f}/s, ${was.usd_per_million_samples:.5f} a million samples\n")
    sys.stdout.write(f"proved to be the cheapest: {plan.search.optimal}\n")

    methods = ["exact", "brute-force", "greedy", "heuristic", "only:cpu", "only:v100"]
    for row in heterps.compare(PROFILE, CLUSTER, methods=methods, min_throughput=1_000_000).rows:
        found = row.reason if row.gap is None else f"{row.gap:.1%} above the bound"
        sys.stdout.write(f"{row.method:<12} {found}\n")

    try:
        heterps.plan(PROFILE, CLUSTER, min_throughput=1e9)
    except heterps.Infeasible as error:
        sys.stdout.write(f"a billion a second: {error}\n")


if __name__ == "__main__":
    main()
