#include "beams.hpp"

#include <algorithm>
#include <cmath>

namespace heterps {

namespace {

constexpr std::size_t kCrowd = 2;   // times the width: beginnings that are compared with each other

}  // namespace

// The beginning of a path.
struct Beams::Label {
  double priced = 0, estimate = 0, own = 0, work = 0;
  std::int32_t parent = -1, edge = -1;
};

// Adds an edge (`to.edge`) to the beginning of a path; false if limits or the cutoff forbid it.
bool Beams::extend(const Part& part, const Label& from, const double* used, const std::vector<BestTwo>& work_after,
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

// Of two beginnings that end alike, the one that costs no less and uses no less of anything is dropped.
void Beams::drop_dominated(const Part& part, const std::vector<Label>& labels, const std::vector<double>& used,
                           std::vector<std::int32_t>& here) const {
  const std::size_t width = count + 1;
  const auto type = [&](std::int32_t i) { return labels[i].edge < 0 ? -1 : part.edges[labels[i].edge].type; };
  std::sort(here.begin(), here.end(), [&](std::int32_t a, std::int32_t b) {
    return type(a) != type(b) ? type(a) < type(b) : labels[a].own < labels[b].own;
  });
  std::size_t kept = 0, group = 0;
  for (const std::int32_t i : here) {
    if (kept > 0 && type(here[kept - 1]) != type(i)) group = kept;
    const double* const own = &used[i * width];
    const bool dominated = std::any_of(here.begin() + group, here.begin() + kept, [&](std::int32_t other) {
      if (labels[other].work > labels[i].work) return false;
      const double* const its = &used[other * width];
      for (std::size_t row = 0; row < width; ++row) {
        if (its[row] > own[row]) return false;
      }
      return true;
    });
    if (!dominated) here[kept++] = i;
  }
  here.resize(kept);
}

void Beams::beam(const Part& part, std::size_t most) {
  backward(part, [](const Edge& e) { return e.server; });
  const std::vector<BestTwo> work_after = after_;
  set_prices(part);
  backward(part, [this](const Edge& e) { return cost(e); });
  double whole;
  const double added = constant(part, whole);
  const std::size_t width = count + 1;   // uses of the types, money and stages
  std::vector<Label> labels(1);
  std::vector<double> used(width, 0.0), uses(width);
  std::vector<std::vector<std::int32_t>> at(tables.layers + 1);
  std::vector<double> worst(tables.layers + 1, kInf);   // estimate at a layer that is too high to be kept
  at[0].push_back(0);
  const auto better = [&](std::int32_t a, std::int32_t b) { return labels[a].estimate < labels[b].estimate; };
  const auto keep = [&](std::vector<std::int32_t>& here, std::size_t some) {
    if (here.size() <= some) return;
    std::nth_element(here.begin(), here.begin() + some, here.end(), better);
    here.resize(some);
  };
  for (std::size_t begin = 0, end = 0; begin < part.edges.size(); begin = end) {
    const int layer = part.edges[begin].first;
    while (end < part.edges.size() && part.edges[end].first == layer) ++end;
    std::vector<std::int32_t>& here = at[layer];
    keep(here, kCrowd * most);
    drop_dominated(part, labels, used, here);
    keep(here, most);
    effort += static_cast<std::int64_t>(here.size() * (end - begin));
    for (const std::int32_t from : here) {
      for (std::size_t i = begin; i < end; ++i) {
        const Edge& e = part.edges[i];
        Label label{.parent = from, .edge = static_cast<std::int32_t>(i)};
        if (!extend(part, labels[from], &used[from * width], work_after, added, label)) continue;
        if (!(label.estimate < worst[e.last])) continue;
        std::copy_n(used.begin() + from * width, width, uses.begin());
        uses[e.type] += units(e);
        uses[rate] += units(e) * tables.price[e.type];
        uses[count] += 1;
        if (uses[rate] > limit(rate) || uses[count] > limit(count)) continue;
        at[e.last].push_back(static_cast<std::int32_t>(labels.size()));
        labels.push_back(label);
        used.insert(used.end(), uses.begin(), uses.end());
        if (std::vector<std::int32_t>& there = at[e.last]; e.last < tables.layers && there.size() == 2 * kCrowd * most) {
          keep(there, kCrowd * most);
          worst[e.last] = labels[*std::max_element(there.begin(), there.end(), better)].estimate;
        }
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

}  // namespace heterps
