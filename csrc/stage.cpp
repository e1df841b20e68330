#include <algorithm>
#include <cmath>

#include "planner.hpp"

namespace heterps {

namespace {

// Units k with serial + parallel/k <= seconds.
double units_within(double serial, double parallel, double seconds) {
  const double room = seconds - serial;
  if (parallel <= 0) return room >= -kSlack * seconds ? 1.0 : kInf;
  return room > 0 ? parallel / room : kInf;
}

double per_throughput(double serial, double parallel, double throughput) {
  const double share = 1.0 - serial * throughput;
  if (parallel <= 0) return share >= -kSlack ? 0.0 : kInf;
  return share > 0 ? parallel / share : kInf;
}

}  // namespace

double whole_units(double fractional) {
  if (!(fractional < 1e15)) return fractional < kInf ? fractional : kInf;
  const double x = fractional * (1.0 - kSlack);
  const auto whole = static_cast<double>(static_cast<std::int64_t>(x));
  return whole < x ? whole + 1.0 : whole;
}

double Stage::seconds(double units) const {
  return std::max(serial + parallel / units, sync_serial + sync_parallel / units);
}

double Stage::units(double throughput) const {
  const double seconds = 1.0 / throughput;
  const double needed = std::max(units_within(serial, parallel, seconds),
                                 units_within(sync_serial, sync_parallel, seconds));
  return std::max(least, whole_units(needed));
}

double Stage::fractional(double throughput) const {
  return std::max(per_throughput(serial, parallel, throughput),
                  per_throughput(sync_serial, sync_parallel, throughput));
}

void Span::extend(const Tables& t) {
  const std::size_t at = static_cast<std::size_t>(sum_.last) * t.types + sum_.type;
  sum_.serial += t.serial[at];
  sum_.parallel += t.parallel[at];
  sum_.sync_serial += t.sync_serial[at];
  sum_.sync_parallel += t.sync_parallel[at];
  sum_.server += t.server[at];
  replicated_ += t.replicated[sum_.last];
  sharded_ += t.sharded[sum_.last];
  ++sum_.last;
}

Stage Span::stage(const Tables& t) const {
  Stage stage = sum_;
  if (stage.first > 0) stage.sync_parallel += t.cut[static_cast<std::size_t>(stage.first - 1) * t.types + stage.type];
  if (stage.last < t.layers) stage.sync_parallel += t.cut[static_cast<std::size_t>(stage.last - 1) * t.types + stage.type];
  const double memory = t.memory[stage.type], room = memory - replicated_;
  if (memory == kInf) return stage;
  if (room < -kSlack * memory || (sharded_ > 0 && room <= 0)) stage.least = kInf;
  else if (sharded_ > 0) stage.least = std::max(1.0, whole_units(sharded_ / room));
  return stage;
}

}  // namespace heterps
