#include <algorithm>
#include <cmath>

#include "planner.hpp"

namespace heterps {

namespace {

// With the units of a throughput t the rate (dollars an hour) is a staircase in t, so the optimum stands at the end of
// a step. Walking up the steps, a rate r cannot beat the best cost c before throughput r/c: the walk leaps there. It
// ends when the fractional cost, which only grows with throughput, reaches the best cost.
class Walk {
 public:
  Walk(const Tables& tables, const Target& target, const std::int32_t* placement)
      : tables_(tables), target_(target), used_(tables.types) {
    for (int layer = 0; layer < tables.layers;) {
      const std::int32_t type = placement[layer];
      Span span(layer, type);
      for (; layer < tables.layers && placement[layer] == type; ++layer) span.extend(tables);
      stages_.push_back(span.stage(tables));
      server_ += stages_.back().server;
    }
    units_.resize(stages_.size());
    fill_ = target.fill(stages_.size());
  }

  Provisioned cheapest() {
    const double start = target_.min_throughput > 0 ? target_.min_throughput / fill_ : slowest();
    if (!stand(start)) return violated(start);
    keep(0);
    // Doublings first: a good cost early makes the leaps long, and closes problems whose cost is flat in throughput.
    for (double t = start; stand(t) && t < start * 0x1p40 && fractional(t) < goal_cost() * (1 - kSlack); t *= 2) keep(1e-7);
    const double slack = unlimited() ? 2e-7 : kSlack;
    double t = start;
    for (int step = 0; step < kMaxSteps && stand(t); ++step) {
      if (fractional(t) >= goal_cost() * (1 - slack)) break;
      const double leap = rate_ / goal_cost();
      if (leap > t * kNextStep) {
        t = leap;
        continue;
      }
      keep(0);
      t = reached_ * kNextStep;
    }
    return best_;
  }

  // The fastest plan whose cost stays within max_cost, walking the steps down from where fractional units would do.
  Provisioned fastest() {
    const double start = target_.min_throughput > 0 ? target_.min_throughput / fill_ : slowest();
    if (!stand(start)) return violated(start);
    const double allowed = target_.max_cost * fill_;
    auto within = [&](double t) { return stand(t) && fractional(t) <= allowed * (1 + kSlack); };
    double low = start, high = start;
    while (within(high) && high < start * 0x1p60) low = high, high *= 2;
    if (high >= start * 0x1p60) {
      best_.throughput = kInf;
      best_.cost = fractional(start) / fill_;
      return best_;
    }
    for (int i = 0; i < 80 && high > low * (1 + 1e-12); ++i) {
      const double middle = 0.5 * (low + high);
      (within(middle) ? low : high) = middle;
    }
    double t = low;
    for (int step = 0; step < kMaxSteps && t >= start * (1 - kSlack) && stand(t); ++step) {
      if (rate_ / reached_ <= allowed * (1 + kSlack)) {
        keep(0);
        return best_;
      }
      t = step_below(t) * (1 - 1e-12);
    }
    return dearer(start);
  }

 private:
  static constexpr int kMaxSteps = 20000;

  // What a step must stay below to matter, for one unit of steady throughput.
  double goal_cost() const { return std::min(best_.cost, target_.cutoff) * fill_; }

  bool unlimited() const {
    return tables_.max_rate == kInf && std::any_of(stages_.begin(), stages_.end(), [&](const Stage& s) {
             return tables_.limit[s.type] == kInf;
           });
  }

  double slowest() const {
    double seconds = tables_.server_type >= 0 ? server_ : 0.0;   // with one unit for the server
    for (const Stage& stage : stages_) {
      if (stage.least < kInf) seconds = std::max(seconds, stage.seconds(stage.least));
    }
    return seconds > 0 && seconds < kInf ? 1.0 / seconds : 1.0;
  }

  // Takes the fewest units for the throughput; false if a constraint forbids them.
  bool stand(double throughput) {
    std::fill(used_.begin(), used_.end(), 0.0);
    rate_ = 0;
    double seconds = 0;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const Stage& stage = stages_[i];
      units_[i] = stage.units(throughput);
      if (!(units_[i] < kInf)) return false;
      used_[stage.type] += units_[i];
      rate_ += tables_.price[stage.type] * units_[i];
      seconds = std::max(seconds, stage.seconds(units_[i]));
    }
    server_units_ = 0;
    if (tables_.server_type >= 0 && server_ > 0) {
      server_units_ = std::max(1.0, whole_units(throughput * server_));
      used_[tables_.server_type] += server_units_;
      rate_ += tables_.server_price() * server_units_;
      seconds = std::max(seconds, server_ / server_units_);
    }
    for (int type = 0; type < tables_.types; ++type) {
      if (used_[type] > tables_.limit[type]) return false;
    }
    reached_ = 1.0 / seconds;
    return rate_ <= tables_.max_rate * (1 + kSlack);
  }

  double fractional(double throughput) const {
    double cost = tables_.server_type >= 0 ? tables_.server_price() * server_ : 0.0;
    for (const Stage& stage : stages_) cost += tables_.price[stage.type] * stage.fractional(throughput);
    return cost;
  }

  // The highest throughput below t at which some stage or the server needs fewer units.
  double step_below(double t) const {
    double below = 0;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (units_[i] > stages_[i].least) below = std::max(below, 1.0 / stages_[i].seconds(units_[i] - 1));
    }
    if (server_units_ > 1) below = std::max(below, (server_units_ - 1) / server_);
    return std::min(below, t);
  }

  void keep(double margin) {
    const double cost = rate_ / (reached_ * fill_);
    if (!(cost < best_.cost * (1 - margin))) return;
    best_ = {.cost = cost, .throughput = reached_ * fill_, .violation = 0, .units = units_,
             .server_units = server_units_};
  }

  // Infeasible at the least throughput: how far off, so that a search has a slope to follow.
  Provisioned violated(double throughput) {
    Provisioned out;
    double excess = 0, rate = 0;
    std::fill(used_.begin(), used_.end(), 0.0);
    for (const Stage& stage : stages_) {
      const double units = stage.units(throughput);
      if (units < kInf) {
        used_[stage.type] += units;
        rate += tables_.price[stage.type] * units;
        continue;
      }
      const double serial = std::max(stage.serial, stage.sync_serial) * throughput;
      excess += 1.0 + (serial < kInf ? std::max(0.0, serial - 1.0) : 10.0);
      if (!(stage.parallel < kInf)) excess += 10.0;
    }
    if (tables_.server_type >= 0) used_[tables_.server_type] += whole_units(throughput * std::min(server_, 1e15));
    for (int type = 0; type < tables_.types; ++type) {
      if (tables_.limit[type] < kInf) excess += std::max(0.0, used_[type] / tables_.limit[type] - 1.0);
    }
    if (tables_.max_rate < kInf) excess += std::max(0.0, rate / tables_.max_rate - 1.0);
    out.violation = std::max(excess, kSlack);
    return out;
  }

  // Feasible, but never within max_cost: by how much the cheapest is dearer.
  Provisioned dearer(double start) {
    Target cheap = target_;
    cheap.min_throughput = start * fill_;
    cheap.cutoff = kInf;
    target_ = cheap;
    best_ = {};
    Provisioned cheapest_plan = cheapest();
    Provisioned out;
    out.violation = std::max(kSlack, cheapest_plan.cost / target_.max_cost - 1.0);
    return out;
  }

  const Tables& tables_;
  Target target_;
  std::vector<Stage> stages_;
  std::vector<double> units_, used_;
  double server_ = 0, server_units_ = 0, fill_ = 1, rate_ = 0, reached_ = 0;
  Provisioned best_;
};

}  // namespace

Provisioned provision(const Tables& tables, const Target& target, const std::int32_t* placement) {
  Walk walk(tables, target, placement);
  return target.fastest ? walk.fastest() : walk.cheapest();
}

}  // namespace heterps
