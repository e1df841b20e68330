#include <algorithm>

#include "graph.hpp"

namespace heterps {

namespace {

std::vector<Stage> all_stages(const Tables& tables) {
  std::vector<Stage> stages;
  for (int first = 0; first < tables.layers; ++first) {
    for (int type = 0; type < tables.types; ++type) {
      Span span(first, type);
      for (int last = first + 1; last <= tables.layers; ++last) {
        span.extend(tables);
        const Stage stage = span.stage(tables);
        if (!(stage.parallel < kInf) || !(stage.least < kInf)) break;
        stages.push_back(stage);
      }
    }
  }
  return stages;
}

}  // namespace

Graph::Graph(const Tables& tables) : Graph(tables, all_stages(tables)) {}

Graph::Graph(const Tables& tables, std::vector<Stage> stages)
    : tables_(tables), stages_(std::move(stages)), begin_(tables.layers + 2, 0) {
  for (const Stage& stage : stages_) ++begin_[stage.first + 1];
  for (int i = 0; i <= tables.layers; ++i) begin_[i + 1] += begin_[i];
  if (tables.server_type < 0) return;
  std::vector<double> server;
  for (const Stage& stage : stages_) server.push_back(stage.server);
  least_server_ = costs_to_go(server, 0).at(0, 0).first;
}

double Graph::floor() const {
  double seconds = 0;
  for (int layer = 0; tables_.server_type >= 0 && layer < tables_.layers; ++layer) {
    const auto row = tables_.server.begin() + static_cast<std::ptrdiff_t>(layer) * tables_.types;
    seconds += *std::max_element(row, row + tables_.types);   // one unit that serves the most work a plan may cause
  }
  for (const Stage& stage : stages_) seconds = std::max(seconds, stage.seconds(stage.least));
  return seconds > 0 ? 1.0 / seconds : 1.0;
}

double Graph::credit(double low, double high, const Multipliers& multipliers) const {
  double total = 0;
  if (least_server_ > 0 && least_server_ < kInf) {
    const double units = std::max(1.0, whole_units(low * least_server_));
    total -= multipliers.money * (1 - multipliers.server_share) * tables_.server_price() * units / high;
  }
  for (int type = 0; type < tables_.types; ++type) {
    if (multipliers.type[type] > 0) total += multipliers.type[type] * tables_.limit[type];
  }
  return multipliers.rate > 0 ? total + multipliers.rate * tables_.max_rate : total;
}

// In [low, high] a stage has at least the units of `low`, so it costs at least price * units(low) / high a sample; and
// past the throughput that these units reach, no less than there. A stage that alone breaks its type's limit is out.
// These do not depend on prices, which are raised in many steps: they are kept for the next one.
const Graph::Unpriced& Graph::unpriced(double low, double high, double money) const {
  if (kept_ && kept_->low == low && kept_->high == high && kept_->money == money) return *kept_;
  auto out = std::make_shared<Unpriced>(Unpriced{.low = low, .high = high, .money = money});
  out->units.resize(stages_.size());
  out->own.resize(stages_.size());
  for (std::size_t e = 0; e < stages_.size(); ++e) {
    const Stage& stage = stages_[e];
    const double units = stage.units(low);
    const bool fits = units < kInf && units <= tables_.limit[stage.type];
    out->units[e] = fits ? units : kInf;
    out->own[e] = fits ? money * tables_.price[stage.type] * units * std::max(1.0 / high, stage.seconds(units)) : kInf;
  }
  kept_ = std::move(out);
  return *kept_;
}

Graph::Weights Graph::weights(double low, double high, const Multipliers& multipliers) const {
  const Unpriced& base = unpriced(low, high, multipliers.money);
  const double server_price = tables_.server_price();
  Weights out{.low = low, .high = high, .server_price = base.money * server_price, .units = base.units, .own = base.own};
  const double server_priced =
      tables_.server_type < 0
          ? 0.0
          : out.server_price * multipliers.server_share + low * (multipliers.type[tables_.server_type] + multipliers.rate * server_price);
  out.priced.resize(stages_.size());
  for (std::size_t e = 0; e < stages_.size(); ++e) {
    const Stage& stage = stages_[e];
    const double each = multipliers.type[stage.type] + multipliers.rate * tables_.price[stage.type];
    out.priced[e] = out.own[e] < kInf ? out.own[e] + server_priced * stage.server + out.units[e] * each : kInf;
  }
  return out;
}

// Neighbouring stages have different types, so each position keeps the best two types to start its next stage with.
Graph::Costs Graph::costs_to_go(const std::vector<double>& weight, int max_stages) const {
  const int positions = tables_.layers + 1;
  Costs out{.positions = positions, .levels = std::max(1, max_stages), .bounded = max_stages > 0};
  out.best.assign(static_cast<std::size_t>(out.levels + (out.bounded ? 1 : 0)) * positions, {});
  for (int level = 0; level < static_cast<int>(out.best.size()) / positions; ++level) {
    out.at(level, tables_.layers) = {0.0, 0.0, -1, -1, -1};
  }
  for (int level = out.bounded ? 1 : 0; level < static_cast<int>(out.best.size()) / positions; ++level) {
    const int next = out.bounded ? level - 1 : level;
    for (int i = tables_.layers - 1; i >= 0; --i) {
      BestTwo& here = out.at(level, i);
      for (int e = begin_[i]; e < begin_[i + 1]; ++e) {
        if (!(weight[e] < here.second)) continue;
        const Stage& stage = stages_[e];
        const BestTwo& rest = out.at(next, stage.last);
        here.offer(weight[e] + rest.without(stage.type), stage.type, e);
      }
    }
  }
  return out;
}

Path Graph::relax(double low, double high, const Multipliers& multipliers, int max_stages) const {
  const Weights w = weights(low, high, multipliers);
  const Costs costs = costs_to_go(w.priced, max_stages);
  Path path;
  int level = costs.top();
  path.bound = costs.at(level, 0).first - credit(low, high, multipliers);
  if (!(path.bound < kInf)) return path;
  std::vector<std::int32_t> chosen;
  int type = -1;
  for (int i = 0; i < tables_.layers;) {
    const BestTwo& here = costs.at(level, i);
    chosen.push_back(here.first_type == type ? here.second_stage : here.first_stage);
    i = stages_[chosen.back()].last;
    type = stages_[chosen.back()].type;
    if (costs.bounded) --level;
  }
  follow(chosen, w, path);
  return path;
}

void Graph::follow(const std::vector<std::int32_t>& chosen, const Weights& w, Path& path) const {
  path.placement.resize(tables_.layers);
  path.used.assign(tables_.types, 0.0);
  path.own = 0;
  double seconds = 0, server = 0;
  for (const std::int32_t e : chosen) {
    const Stage& stage = stages_[e];
    std::fill(path.placement.begin() + stage.first, path.placement.begin() + stage.last, stage.type);
    path.used[stage.type] += w.units[e];
    path.own += w.own[e];
    path.rate += tables_.price[stage.type] * w.units[e];
    seconds = std::max(seconds, stage.seconds(w.units[e]));
    server += stage.server;
  }
  if (tables_.server_type >= 0 && server > 0) {
    const double whole = std::max(1.0, whole_units(w.low * server));
    path.used[tables_.server_type] += whole;
    path.own += w.server_price * std::max(whole / w.high, server);
    path.rate += tables_.server_price() * whole;
    seconds = std::max(seconds, server / whole);
  }
  path.reached = 1.0 / seconds;
}

Graph Graph::narrow(double low, double high, const Multipliers& multipliers, double cutoff) const {
  const Weights w = weights(low, high, multipliers);
  const Costs after = costs_to_go(w.priced, 0);
  const double allowed = cutoff + credit(low, high, multipliers);
  // Costs from the start, the mirror image of the costs to go; stages are ordered by `first`, so every stage that ends
  // at a position has been offered before one that starts there is read.
  std::vector<BestTwo> before(tables_.layers + 1);
  before[0] = {0.0, 0.0, -1, -1, -1};
  std::vector<Stage> kept;
  for (std::size_t e = 0; e < stages_.size(); ++e) {
    const Stage& stage = stages_[e];
    const double reach = before[stage.first].without(stage.type) + w.priced[e];
    if (!(reach < kInf)) continue;
    before[stage.last].offer(reach, stage.type, static_cast<std::int32_t>(e));
    if (reach + after.at(0, stage.last).without(stage.type) < allowed) kept.push_back(stage);
  }
  return Graph(tables_, std::move(kept));
}

}  // namespace heterps
