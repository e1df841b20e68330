#include "parts.hpp"

#include <algorithm>
#include <cmath>

namespace heterps {

namespace {

constexpr int kOrders = 3;                            // of rounded shares
constexpr int kStall = 3;                             // steps without a better bound after which the steps shrink,
constexpr double kShrink = 0.5;                       // and by how much
constexpr double kFresh = 0.7;                        // weight of the newest slope in the running average
constexpr double kMemory = 0.85;                      // weight of a path in the shares, relative to the one after it

// A share of a limit, rounded so that shares that fit side by side still sum to at most 1, and those that waste room
// count for more: past 1/2 as all of it (order 1), past 1/3 as half of it (order 2), and so on.
double rounded(double share, int order) {
  const double parts = share * (order + 1), whole = std::floor(parts + kSlack);
  return parts - whole < kSlack ? share : whole / order;
}

}  // namespace

Pricing::Pricing(const Tables& t, double from, double to, double money, int max_stages, double most)
    : tables(t), low(from), high(to), rate(t.types), count(rate + 1), work(rate + 2), share(rate + 3), cutoff(most),
      after_(t.layers + 1), before_(t.layers + 1), shares_(static_cast<std::size_t>(t.layers) * t.types),
      burdens_(shares_.size()), server_price_(money * t.server_price()), work_rate_(from * (1 - 1.001 * kSlack)),
      limits_(t.limit) {
  limits_.push_back(t.max_rate * (1 + kSlack));
  limits_.push_back(max_stages > 0 ? max_stages : kInf);
  limits_.push_back(served() ? 0.0 : kInf);
  limits_.push_back(server_price_ > 0 ? 0.0 : kInf);
  for (const double limit : t.limit) limits_.insert(limits_.end(), kOrders, limit < kInf ? 1.0 : kInf);
}

std::int32_t Pricing::need(std::int32_t type, double units) {
  const auto [at, fresh] = need_at_.try_emplace({type, units}, static_cast<std::int32_t>(needs_.size()));
  if (fresh) needs_.push_back({type, units});
  return at->second;
}

std::size_t Pricing::rounded_row(int type, int order) const {
  return share + static_cast<std::size_t>(type) * kOrders + order;
}

// The server's fewest units are taken off the limit first; what does not fit at all counts for more than everything.
void Pricing::set_rounded(const Part& part) {
  if (rounded_for_ == part.fewest && rounded_.size() == needs_.size() * kOrders) return;
  rounded_for_ = part.fewest;
  rounded_.clear();
  for (const Need& need : needs_) {
    const double room = tables.limit[need.type] - (need.type == tables.server_type ? part.fewest : 0.0);
    for (int order = 1; order <= kOrders; ++order) {
      rounded_.push_back(need.units > room ? 2.0 : rounded(need.units / room, order));
    }
  }
}

double Pricing::server_units(double work_done) const {
  return served() && work_done > 0 ? std::max(1.0, whole_units(low * work_done)) : 0.0;
}

double Pricing::unit_price(const std::vector<double>& prices) const {
  return (1 - prices[share]) * server_price_ / high + prices[tables.server_type] + prices[rate] * tables.server_price();
}

double Pricing::constant(const Part& part, double& whole) const {
  double total = 0;
  for (std::size_t row = 0; row < limits_.size(); ++row) {
    if (part.prices[row] > 0 && limits_[row] < kInf) total -= part.prices[row] * limits_[row];
  }
  whole = 0;
  if (!served()) return total;
  const double each = unit_price(part.prices) - part.prices[work];
  whole = each < 0 && part.most < kInf ? part.most : part.fewest;
  return total + each * whole;
}

void Pricing::set_prices(const Part& part) {
  const std::vector<double>& prices = part.prices;
  work_price_ = served() ? server_price_ * prices[share] + work_rate_ * prices[work] : 0.0;
  set_rounded(part);
  need_price_.resize(needs_.size());
  for (std::size_t i = 0; i < needs_.size(); ++i) {
    const Need& need = needs_[i];
    double price = need.units * (prices[need.type] + prices[rate] * tables.price[need.type]) + prices[count];
    for (int order = 1; order <= kOrders; ++order) {
      price += prices[rounded_row(need.type, order)] * rounded_[i * kOrders + order - 1];
    }
    need_price_[i] = price;
  }
}

Route Pricing::relax(const Part& part, double& whole) {
  effort += static_cast<std::int64_t>(part.edges.size() + 2 * needs_.size() + 4 * limits_.size() + 4 * tables.layers);
  set_prices(part);
  backward(part, [this](const Edge& e) { return cost(e); });
  Route out;
  if (!(after_[0].first < kInf)) return out;
  out.bound = after_[0].first + constant(part, whole);
  out.uses.assign(limits_.size(), 0.0);
  for (int i = 0, type = -1; i < tables.layers;) {
    const BestTwo& here = after_[i];
    out.edges.push_back(here.first_type == type ? here.second_stage : here.first_stage);
    const Edge& e = part.edges[out.edges.back()];
    out.own += e.own;
    out.work += e.server;
    out.uses[e.type] += units(e);
    out.uses[rate] += units(e) * tables.price[e.type];
    for (int order = 1; order <= kOrders && tables.limit[e.type] < kInf; ++order) {
      out.uses[rounded_row(e.type, order)] += rounded_[e.need * kOrders + order - 1];
    }
    i = e.last;
    type = e.type;
  }
  out.uses[count] = static_cast<double>(out.edges.size());
  consider(part, out);
  return out;
}

void Pricing::consider(const Part& part, const Route& route) {
  const double whole = server_units(route.work);
  const double total = route.own + server_price_ * std::max(whole / high, route.work);
  if (!(total < cutoff)) return;
  for (int type = 0; type < tables.types; ++type) {
    if (route.uses[type] + (type == tables.server_type ? whole : 0.0) > limits_[type]) return;
  }
  if (route.uses[rate] + whole * tables.server_price() > limits_[rate] || route.uses[count] > limits_[count]) return;
  cutoff = total;
  cheapest.clear();
  for (const std::int32_t i : route.edges) cheapest.push_back(part.edges[i].stage);
}

// How the bound changes with a row's price: what the path uses of it past its limit.
double Pricing::slope(const Route& route, double whole, std::size_t row) const {
  if (row == work) return work_rate_ * route.work - whole;
  if (row == share) return server_price_ * (route.work - whole / high);
  double use = route.uses[row];
  if (served() && row == static_cast<std::size_t>(tables.server_type)) use += whole;
  if (served() && row == rate) use += whole * tables.server_price();
  return use - limits_[row];
}

// What slopes are measured in, so that they compare: the limit, or the server's units.
double Pricing::scale(const Part& part, std::size_t row) const {
  const double units = std::max(1.0, part.fewest);
  return row == work ? units : row == share ? server_price_ * units / high : limits_[row];
}

// Keeps prices where they bound: a share is at most 1, and where the server's units have no end, work is charged no
// more than they cost.
void Pricing::clamp(Part& part) const {
  part.prices[share] = std::min(part.prices[share], 1.0);
  if (served() && part.most == kInf) part.prices[work] = std::min(part.prices[work], unit_price(part.prices));
}

void Pricing::ascend(Part& part, int steps) {
  std::fill(shares_.begin(), shares_.end(), 0.0);
  std::fill(burdens_.begin(), burdens_.end(), 0.0);
  mean_work_ = weight_ = 0, newest_ = 1;
  Part trial = std::move(part);   // `part` keeps the best prices
  double whole = 0;
  Route now = relax(trial, whole), best = now;
  double best_whole = whole, length = 1.0;
  part = {std::max(trial.bound, now.bound), trial.fewest, trial.most, {}, trial.prices};
  std::vector<double> direction(limits_.size(), 0.0);
  for (int step = 0, stalled = 0; step < steps && part.bound < cutoff; ++step) {
    remember(trial, now);
    double square = 0;
    for (std::size_t row = 0; row < limits_.size(); ++row) {
      if (!(limits_[row] < kInf)) continue;
      double& towards = direction[row];
      towards = kFresh * slope(now, whole, row) / scale(trial, row) + (1 - kFresh) * towards;
      const double price = trial.prices[row];
      if ((price <= 0 && towards < 0) || (row == share && price >= 1 && towards > 0)) towards = 0;
      square += towards * towards;
    }
    if (square == 0) break;
    const double target = cutoff < kInf ? cutoff : 1.3 * best.bound;
    const double stride = length * std::max(target - now.bound, 1e-4 * target) / square;
    for (std::size_t row = 0; row < limits_.size(); ++row) {
      if (direction[row] == 0) continue;
      trial.prices[row] = std::max(0.0, trial.prices[row] + stride * direction[row] / scale(trial, row));
    }
    clamp(trial);
    now = relax(trial, whole);
    if (now.bound > best.bound) {
      best = now, best_whole = whole, stalled = 0;
      part.prices = trial.prices;
      part.bound = std::max(part.bound, now.bound);
    } else if (++stalled >= kStall) {
      now = best, whole = best_whole, stalled = 0;
      trial.prices = part.prices;
      length *= kShrink;
      std::fill(direction.begin(), direction.end(), 0.0);
    }
  }
  part.edges = std::move(trial.edges);
}

void Pricing::remember(const Part& part, const Route& route) {
  newest_ /= kMemory;
  weight_ += newest_;
  mean_work_ += newest_ * low * route.work;
  for (const std::int32_t i : route.edges) {
    const Edge& e = part.edges[i];
    const double burden = newest_ * (need_price_[e.need] + e.server * work_price_);
    for (int layer = e.first; layer < e.last; ++layer) {
      shares_[cell(layer, e.type)] += newest_;
      burdens_[cell(layer, e.type)] += burden;
    }
  }
}

void Pricing::narrow(Part& part) {
  set_prices(part);
  double whole;
  const double allowed = cutoff - constant(part, whole);
  keep(part, [this](const Edge& e) { return cost(e); }, [=](double total) { return total < allowed; });
  if (part.most == kInf) return;
  keep(part, [](const Edge& e) { return e.server; }, [&](double total) { return server_units(total) <= part.most; });
}

// Drops the edges whose cheapest path is not accepted.
template <typename Cost, typename Accept>
void Pricing::keep(Part& part, Cost cost_of, Accept accept) {
  backward(part, cost_of);
  std::fill(before_.begin(), before_.end(), BestTwo{});
  before_[0] = {0.0, 0.0, -1, -1, -1};
  std::size_t kept = 0;
  for (const Edge& e : part.edges) {
    const double reach = before_[e.first].without(e.type) + cost_of(e);
    const double total = reach + after_[e.last].without(e.type);
    if (!(total < kInf) || !accept(total)) continue;
    before_[e.last].offer(reach, e.type, 0);
    part.edges[kept++] = e;
  }
  part.edges.resize(kept);
}

}  // namespace heterps
