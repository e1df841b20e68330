#include <algorithm>
#include <cmath>
#include <queue>

#include "beams.hpp"

namespace heterps {

namespace {

constexpr int kFirstSteps = 120, kSteps = 30;   // of the ascent of the whole, and of a part that starts from its parent
constexpr int kDives = 4;                       // one part in so many is followed into its likelier half at once
constexpr std::size_t kBeam = 32;               // width
constexpr double kDearer[] = {1.0, 1.3, 1.7, 2.2};   // what prices are multiplied by in beams
constexpr double kWide = 0.05;                  // gap
constexpr int kBeamEvery = 200;                 // parts
constexpr double kServerFirst = 0.1;            // share of the gap that splitting on the server's units must promise

struct Dearer {
  bool operator()(const Part& a, const Part& b) const { return a.bound > b.bound; }
};

using Queue = std::priority_queue<Part, std::vector<Part>, Dearer>;

// Splits parts, the one with the least bound first: on the server's units, or on whether a layer is on a type.
class Branching : public Beams {
 public:
  using Beams::Beams;

  Path run(Part all, std::int64_t max_effort);

 private:
  bool split(const Part& part, Part& likely, Part& unlikely) const;
  bool split_server(const Part& part, Part& likely, Part& unlikely) const;
  std::vector<std::int32_t> open_layers(const Part& part) const;
  void search(const Part& part);
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

// A beam at the part's prices, and where the gap is wide at dearer ones, too: limits are kept more easily there.
void Branching::search(const Part& part) {
  for (const double times : kDearer) {
    if (times > 1 && !(part.bound < (1 - kWide) * cutoff)) return;
    Part dearer = part;
    for (std::size_t row = 0; row < rows(); ++row) {
      if (row <= rate || row > share) dearer.prices[row] *= times;
    }
    beam(dearer, kBeam);
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
      if (out.parts % kBeamEvery == 1) search(part);
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
