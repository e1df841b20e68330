"""A run in one sentence: how fast, how good, how dear, and how far from the best."""

from __future__ import annotations

from typing import Any

from heterps.units import format_rate, format_share, format_usd


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    """The figures of the top line, and the line itself, from a report's other sections."""
    measured, plan, rent = data["measured"], data["plan"], data["rent"]
    proved = rent or plan
    found = {
        "throughput": measured["throughput"],
        "predicted_throughput": plan["predicted"]["throughput"] if plan else None,
        "auc": measured["auc"],
        "auc_of": measured["auc_of"],
        "loss": measured["loss"],
        "usd_per_million_samples": measured["usd_per_million_samples"],
        "predicted_usd_per_million_samples": plan["predicted"]["usd_per_million_samples"] if plan else None,
        "rent_usd_per_million_samples": rent["predicted"]["usd_per_million_samples"] if rent else None,
        "rent_throughput": rent["predicted"]["throughput"] if rent else None,
        "optimal": proved["search"]["optimal"] if proved else None,
        "gap": proved["gap"] if proved else None,
        "method": proved["method"] if proved else None,
    }
    return {"text": _text(found, data["run"]["state"]), **found}


def _text(found: dict[str, Any], state: str) -> str:
    if state == "waiting":
        return "Waiting for the run to begin."
    parts = [part for part in (_speed(found), _quality(found), _money(found), _proof(found)) if part]
    return "; ".join(parts) + "." if parts else "Nothing is measured yet."


def _speed(found: dict[str, Any]) -> str | None:
    measured, predicted = found["throughput"], found["predicted_throughput"]
    if not measured:
        return None
    text = f"{format_rate(measured)} measured"
    if not predicted:
        return text
    off = measured / predicted - 1
    if off > 1:
        return f"{text}, {measured / predicted:.3g} times the {format_rate(predicted)} predicted"
    side = "as predicted" if abs(off) < 5e-4 else f"{format_share(abs(off))} {'above' if off > 0 else 'below'}"
    return f"{text}, {side}" + ("" if abs(off) < 5e-4 else f" the {format_rate(predicted)} predicted")


def _quality(found: dict[str, Any]) -> str | None:
    if found["auc"] is not None:
        return f"{found['auc_of']} AUC {found['auc']:.4f}"
    return f"loss {found['loss']:.4f}" if found["loss"] is not None else None


def _money(found: dict[str, Any]) -> str | None:
    rent, here = found["rent_usd_per_million_samples"], found["usd_per_million_samples"]
    here = here if here is not None else found["predicted_usd_per_million_samples"]
    if rent is not None:
        rate = format_rate(found["rent_throughput"])
        return f"the cheapest to rent gives {rate} for {format_usd(rent)} a million samples"
    return f"{format_usd(here)} a million samples" if here is not None else None


def _proof(found: dict[str, Any]) -> str | None:
    if found["optimal"] is None:
        return None
    if found["optimal"]:
        return "the plan is proved optimal"
    gap = found["gap"]
    return f"the plan is at most {format_share(gap)} above the optimum" if gap is not None else "nothing is proved"
