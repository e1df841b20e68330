#include <algorithm>
#include <queue>

#include "graph.hpp"

namespace heterps {

namespace {

struct Label {
  double estimate;     // lower bound on the cost of every completion
  double own, server;  // cost of the stages so far; parameter-server work so far
  std::int32_t position, type, left, parent, stage;   // left: stages still allowed
  bool dead = false;
};

struct Later {
  const std::vector<Label>* labels;
  bool operator()(std::int32_t a, std::int32_t b) const {
    const Label &x = (*labels)[a], &y = (*labels)[b];
    return x.estimate != y.estimate ? x.estimate > y.estimate : x.position < y.position;
  }
};

}  // namespace

// A label is a partial path; the costs to go, with the multipliers priced in, complete it to a lower bound, so that the
// first complete path taken from the queue is the cheapest. A label that another one at the same position and type
// matches in cost, server work and every tracked use is dropped. The server's units are rounded up at the end.
Path Graph::search(double low, double high, const Multipliers& multipliers, int max_stages,
                   const std::vector<std::int32_t>& tracked, bool track_rate, double cutoff,
                   std::int64_t max_labels) const {
  const Weights w = weights(low, high, multipliers);
  const Costs costs = costs_to_go(w.priced, max_stages);
  const double credited = credit(multipliers);
  const double server_price = tables_.server_price();
  const bool has_server = tables_.server_type >= 0;

  // Tracked uses: units of each tracked type, then dollars an hour.
  const std::size_t uses = tracked.size() + (track_rate ? 1 : 0);
  std::vector<double> limits, per_server(uses, 0.0);
  std::vector<std::vector<double>> use(uses, std::vector<double>(stages_.size()));
  std::vector<Costs> use_to_go;
  for (std::size_t u = 0; u < uses; ++u) {
    const bool money = u == tracked.size();
    limits.push_back(money ? tables_.max_rate * (1 + kSlack) : tables_.limit[tracked[u]]);
    if (has_server) per_server[u] = money ? server_price : (tracked[u] == tables_.server_type ? 1.0 : 0.0);
    std::vector<double> total(stages_.size());
    for (std::size_t e = 0; e < stages_.size(); ++e) {
      const double share = money ? tables_.price[stages_[e].type] : (stages_[e].type == tracked[u] ? 1.0 : 0.0);
      use[u][e] = w.units[e] < kInf ? share * w.units[e] : kInf;
      if (share == 0.0 && w.units[e] < kInf) use[u][e] = 0.0;
      total[e] = use[u][e] + per_server[u] * low * stages_[e].server;
    }
    use_to_go.push_back(costs_to_go(total, 0));
  }

  Path out;
  std::vector<Label> labels;
  std::vector<double> used;   // uses of label l: used[l * uses ...]
  std::vector<std::vector<std::int32_t>> at(static_cast<std::size_t>(tables_.layers) * tables_.types);
  std::priority_queue<std::int32_t, std::vector<std::int32_t>, Later> queue(Later{&labels});
  double pruned = kInf;

  labels.push_back({costs.at(costs.top(), 0).first - credited, 0, 0, 0, -1, costs.top(), -1, -1});
  used.assign(uses, 0.0);
  if (labels[0].estimate < kInf) queue.push(0);
  std::vector<double> next_used(uses);

  while (!queue.empty()) {
    const std::int32_t from = queue.top();
    queue.pop();
    const Label label = labels[from];
    if (label.dead) continue;
    if (label.estimate >= cutoff) {
      pruned = std::min(pruned, label.estimate);
      break;
    }
    if (label.position == tables_.layers) {
      out.bound = label.estimate;
      std::vector<std::int32_t> chosen;
      for (std::int32_t l = from; labels[l].stage >= 0; l = labels[l].parent) chosen.push_back(labels[l].stage);
      std::reverse(chosen.begin(), chosen.end());
      follow(chosen, w, out);
      out.labels = static_cast<std::int64_t>(labels.size());
      return out;
    }
    if (static_cast<std::int64_t>(labels.size()) > max_labels) {
      out.complete = false;
      pruned = std::min(pruned, label.estimate);
      break;
    }
    if (costs.bounded && label.left == 0) continue;
    const double priced_so_far = label.estimate - costs.at(label.left, label.position).without(label.type);
    const std::int32_t left = costs.bounded ? label.left - 1 : 0;

    for (int e = begin_[label.position]; e < begin_[label.position + 1]; ++e) {
      const Stage& stage = stages_[e];
      if (stage.type == label.type || !(w.priced[e] < kInf)) continue;
      double estimate = priced_so_far + w.priced[e] + costs.at(left, stage.last).without(stage.type);
      if (!(estimate < cutoff)) {
        pruned = std::min(pruned, estimate);
        continue;
      }
      const double server = label.server + stage.server;
      const double own = label.own + w.own[e];
      bool fits = true;
      for (std::size_t u = 0; u < uses && fits; ++u) {
        next_used[u] = used[from * uses + u] + use[u][e];
        fits = next_used[u] + per_server[u] * low * server +
                   use_to_go[u].at(0, stage.last).without(stage.type) <= limits[u] * (1 + kSlack);
      }
      if (!fits) continue;
      if (stage.last == tables_.layers) {
        const double whole = has_server && server > 0 ? std::max(1.0, whole_units(low * server)) : 0.0;
        for (std::size_t u = 0; u < uses && fits; ++u) fits = next_used[u] + per_server[u] * whole <= limits[u];
        if (!fits) continue;
        estimate = std::max(estimate, own + server_price * std::max(whole / high, server));
      }

      const Label made{estimate, own, server, stage.last, stage.type, left, from, e};
      if (stage.last < tables_.layers) {
        auto& rivals = at[static_cast<std::size_t>(stage.last) * tables_.types + stage.type];
        auto covers = [&](const Label& a, const double* ua, const Label& b, const double* ub) {
          if (a.own > b.own || a.server > b.server || a.left < b.left) return false;
          for (std::size_t u = 0; u < uses; ++u) {
            if (ua[u] > ub[u]) return false;
          }
          return true;
        };
        bool dominated = false;
        std::erase_if(rivals, [&](std::int32_t r) {
          if (dominated) return false;
          dominated = covers(labels[r], &used[r * uses], made, next_used.data());
          if (dominated || !covers(made, next_used.data(), labels[r], &used[r * uses])) return false;
          labels[r].dead = true;
          return true;
        });
        if (dominated) continue;
        rivals.push_back(static_cast<std::int32_t>(labels.size()));
      }
      labels.push_back(made);
      used.insert(used.end(), next_used.begin(), next_used.end());
      queue.push(static_cast<std::int32_t>(labels.size()) - 1);
    }
  }
  out.bound = pruned;
  out.labels = static_cast<std::int64_t>(labels.size());
  return out;
}

}  // namespace heterps
