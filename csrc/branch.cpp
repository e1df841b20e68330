#include <algorithm>
#include <cmath>
#include <queue>

#include "parts.hpp"

namespace heterps {

namespace {

constexpr int kFirstSteps = 120, kSteps = 30;   // of the ascent of the whole, and of a part that starts from its parent
constexpr int kDives = 4;                       // one part in so many is followed into its likelier half at once
constexpr std::size_t kBeam = 64;               // beginnings of paths that are kept at a layer
constexpr int kBeamEvery = 200;                 // parts
constexpr double kServerFirst = 0.1;            // share of the gap that splitting on the server's units must promise

struct Dearer {
  bool operator()(const Part& a, const Part& b) const { return a.bound > b.bound; }
};

using Queue = std::priority_queue<Part, std::vector<Part>, Dearer>;

// The beginning of a path.
struct Label {
  double priced = 0, estimate = 0, own = 0, work = 0;
  std::int32_t parent = -1, edge = -1;
};

// Splits parts, the one with the least bound first: on the server's units, or on whether a layer is on a type.
class Branching : public Pricing {
 public:
  using Pricing::Pricing;

  Path run(Part all, std::int64_t max_effort);

 private:
  bool split(const Part& part, Part& likely, Part& unlikely) const;
  bool split_server(const Part& part, Part& likely, Part& unlikely) const;
  std::vector<std::int32_t> open_layers(const Part& part) const;
  void beam(const Part& part);
  bool extend(const Part& part, const Label& from, const double* used, const std::vector<BestTwo>& work_after,
              double constant, Label& to) const;
};

// By the units the last paths asked for, if the whole unit that rounding up adds makes up enough of the gap.
bool Branching::split_server(const Part& part, Part& likely, Part& unlikely) const {
  if (!served() || weight_ == 0) return false;
  const double mean = mean_work_ / weight_, floor = std::floor(mean), rounding = floor + 1 - mean;
  const double gain = rounding * (tables.server_price() / high + part.prices[tables.server_type]);
  if (floor < part.fewest || floor >= part.most || !(gain > kServerFirst * (cutoff - part.bound))) return false;
  Part fewer = part, more = part;
  fewer.most = floor;
  more.fewest = floor + 1;
  likely = std::move(rounding >= 0.5 ? fewer : more);
  unlikely = std::move(rounding >= 0.5 ? more : fewer);
  return true;
}

// A type of each layer that may still be on more than one; -1 for the others.
std::vector<std::int32_t> Branching::open_layers(const Part& part) const {
  std::vector<std::int32_t> types(tables.layers, -1), open(tables.layers, -1);
  for (const Edge& e : part.edges) {
    for (int layer = e.first; layer < e.last; ++layer) {
      if (types[layer] >= 0 && types[layer] != e.type) open[layer] = e.type;
      types[layer] = e.type;
    }
  }
  return open;
}

// False if a single path is left. Of the layers and types, takes the one that the last paths agreed on least, weighed
// by what limits cost there: a choice that no limit cares about would leave the bound of one half as it was.
bool Branching::split(const Part& part, Part& likely, Part& unlikely) const {
  if (split_server(part, likely, unlikely)) return true;
  const std::vector<std::int32_t> open = open_layers(part);
  double most = 0, share_on = 0;
  int at = -1, type = -1;
  for (int layer = 0; layer < tables.layers; ++layer) {
    if (open[layer] < 0) continue;
    if (at < 0) at = layer, type = open[layer];
    for (int t = 0; t < tables.types; ++t) {
      const double on = shares_[cell(layer, t)] / weight_, burden = burdens_[cell(layer, t)] / weight_;
      if (!(on > 0)) continue;
      const double score = std::min(1.0, (1 - on) / on) * burden;
      if (score > most) most = score, at = layer, type = t, share_on = on;
    }
  }
  if (at < 0) return false;
  Part on{part.bound, part.fewest, part.most, {}, part.prices}, off = on;
  for (const Edge& e : part.edges) {
    const bool covers = e.first <= at && at < e.last;
    if (!covers || e.type == type) on.edges.push_back(e);
    if (!covers || e.type != type) off.edges.push_back(e);
  }
  likely = std::move(share_on >= 0.5 ? on : off);
  unlikely = std::move(share_on >= 0.5 ? off : on);
  return true;
}

// Adds an edge (`to.edge`) to the beginning of a path; false if limits or the cutoff forbid it.
bool Branching::extend(const Part& part, const Label& from, const double* used, const std::vector<BestTwo>& work_after,
                       double constant, Label& to) const {
  const Edge& e = part.edges[to.edge];
  if (from.edge >= 0 && part.edges[from.edge].type == e.type) return false;
  to.priced = from.priced + cost(e);
  to.estimate = to.priced + after_[e.last].without(e.type) + constant;
  if (!(to.estimate < cutoff) || used[e.type] + units(e) > limit(e.type)) return false;
  to.own = from.own + e.own;
  to.work = from.work + e.server;
  if (!served()) return true;
  const double on_type = used[tables.server_type] + (e.type == tables.server_type ? units(e) : 0.0);
  return on_type + server_units(to.work + work_after[e.last].without(e.type)) <= limit(tables.server_type);
}

// Looks for a cheap path that keeps the limits: layer by layer, the most promising beginnings are kept. Proves nothing.
void Branching::beam(const Part& part) {
  backward(part, [](const Edge& e) { return e.server; });
  const std::vector<BestTwo> work_after = after_;
  set_prices(part);
  backward(part, [this](const Edge& e) { return cost(e); });
  double whole;
  const double added = constant(part, whole);
  const std::size_t width = count + 1;   // uses of the types, money and stages
  std::vector<Label> labels(1);
  std::vector<double> used(width, 0.0), next(width);
  std::vector<std::vector<std::int32_t>> at(tables.layers + 1);
  at[0].push_back(0);
  const auto better = [&](std::int32_t a, std::int32_t b) { return labels[a].estimate < labels[b].estimate; };
  for (std::size_t begin = 0, end = 0; begin < part.edges.size(); begin = end) {
    const int layer = part.edges[begin].first;
    while (end < part.edges.size() && part.edges[end].first == layer) ++end;
    std::vector<std::int32_t>& here = at[layer];
    if (here.size() > kBeam) {
      std::nth_element(here.begin(), here.begin() + kBeam, here.end(), better);
      here.resize(kBeam);
    }
    effort += static_cast<std::int64_t>(here.size() * (end - begin));
    for (const std::int32_t from : here) {
      for (std::size_t i = begin; i < end; ++i) {
        const Edge& e = part.edges[i];
        Label label{.parent = from, .edge = static_cast<std::int32_t>(i)};
        if (!extend(part, labels[from], &used[from * width], work_after, added, label)) continue;
        std::copy_n(used.begin() + from * width, width, next.begin());
        next[e.type] += units(e);
        next[rate] += units(e) * tables.price[e.type];
        next[count] += 1;
        if (next[rate] > limit(rate) || next[count] > limit(count)) continue;
        at[e.last].push_back(static_cast<std::int32_t>(labels.size()));
        labels.push_back(label);
        used.insert(used.end(), next.begin(), next.end());
      }
    }
  }
  for (const std::int32_t last : at.back()) {
    Route route{.own = labels[last].own, .work = labels[last].work};
    route.uses.assign(used.begin() + last * width, used.begin() + (last + 1) * width);
    for (std::int32_t i = last; i > 0; i = labels[i].parent) route.edges.push_back(labels[i].edge);
    std::reverse(route.edges.begin(), route.edges.end());
    consider(part, route);
  }
}

// Best bound first, but now and then a part's likelier halves are followed to the end, where paths are found.
Path Branching::run(Part all, std::int64_t max_effort) {
  Path out;
  Queue queue;
  std::int64_t followed = 0;
  queue.push(std::move(all));
  while (!queue.empty() && queue.top().bound < cutoff && effort <= max_effort) {
    Part part = std::move(const_cast<Part&>(queue.top()));
    queue.pop();
    const bool dive = followed * kDives <= out.parts;
    for (bool on = true; on && part.bound < cutoff;) {
      ascend(part, ++out.parts == 1 ? kFirstSteps : kSteps);
      if (part.bound >= cutoff) break;
      narrow(part);
      if (out.parts % kBeamEvery == 1) beam(part);
      Part likely, unlikely;
      if (!split(part, likely, unlikely)) break;
      queue.push(std::move(unlikely));
      part = std::move(likely);
      on = dive && effort <= max_effort;
      if (on) ++followed;
      else queue.push(std::move(part));
    }
  }
  out.complete = queue.empty() || queue.top().bound >= cutoff;
  out.bound = out.complete ? cutoff : queue.top().bound;
  return out;
}

}  // namespace

Path Graph::branch(double low, double high, const Multipliers& multipliers, int max_stages, double cutoff,
                   std::int64_t max_effort) const {
  const Weights w = weights(low, high, multipliers);
  Branching branching(tables_, low, high, multipliers.money, max_stages, cutoff);
  Part all{.prices = multipliers.type};
  all.prices.resize(branching.rows(), 0.0);
  all.prices[branching.rate] = multipliers.rate;
  if (tables_.server_type >= 0) {
    if (least_server_ > 0) all.fewest = std::max(1.0, whole_units(low * least_server_));
    all.prices[branching.share] = multipliers.server_share;
    all.prices[branching.work] = multipliers.type[tables_.server_type] + multipliers.rate * tables_.server_price();
  }
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    if (!(w.priced[i] < kInf)) continue;
    const Stage& s = stages_[i];
    all.edges.push_back({s.first, s.last, s.type, static_cast<std::int32_t>(i), branching.need(s.type, w.units[i]),
                         w.own[i], s.server});
  }
  Path path = branching.run(std::move(all), max_effort);
  if (!branching.cheapest.empty()) follow(branching.cheapest, w, path);
  return path;
}

}  // namespace heterps
