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

// The labels at one position and type that none of the others covers; keys lie side by side to be compared quickly.
class Front {
 public:
  // Takes a label in and marks those it covers as dead; false if another covers it.
  bool admit(const std::vector<double>& key, std::int32_t id, std::vector<Label>& labels) {
    const std::size_t width = key.size();
    for (std::size_t r = 0; r < ids_.size(); ++r) {
      if (covers(&keys_[r * width], key.data(), width)) return false;
    }
    for (std::size_t r = 0; r < ids_.size();) {
      if (!covers(key.data(), &keys_[r * width], width)) {
        ++r;
        continue;
      }
      labels[ids_[r]].dead = true;
      ids_[r] = ids_.back();
      std::copy(keys_.end() - width, keys_.end(), keys_.begin() + r * width);
      ids_.pop_back();
      keys_.resize(keys_.size() - width);
    }
    ids_.push_back(id);
    keys_.insert(keys_.end(), key.begin(), key.end());
    return true;
  }

 private:
  static bool covers(const double* a, const double* b, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i) {
      if (a[i] > b[i]) return false;
    }
    return true;
  }

  std::vector<std::int32_t> ids_;
  std::vector<double> keys_;
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
  const double credited = credit(low, high, multipliers);
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
  std::vector<Front> fronts(static_cast<std::size_t>(tables_.layers) * tables_.types);
  std::priority_queue<std::int32_t, std::vector<std::int32_t>, Later> queue(Later{&labels});
  double pruned = kInf;

  labels.push_back({costs.at(costs.top(), 0).first - credited, 0, 0, 0, -1, costs.top(), -1, -1});
  used.assign(uses, 0.0);
  if (labels[0].estimate < kInf) queue.push(0);
  std::vector<double> next_used(uses), key(uses + 3);

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
        estimate = std::max(estimate, own + w.server_price * std::max(whole / high, server));
      }

      if (stage.last < tables_.layers) {
        key[0] = own, key[1] = server, key[2] = -left;
        std::copy(next_used.begin(), next_used.end(), key.begin() + 3);
        Front& front = fronts[static_cast<std::size_t>(stage.last) * tables_.types + stage.type];
        if (!front.admit(key, static_cast<std::int32_t>(labels.size()), labels)) continue;
      }
      const Label made{estimate, own, server, stage.last, stage.type, left, from, e};
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
