// Internal to parts.cpp and branch.cpp: parts of the search space, and bounds on what their paths cost.
#pragma once

#include <map>
#include <utility>

#include "graph.hpp"

namespace heterps {

// A stage that may be used, at the units of the interval's low end.
struct Edge {
  std::int32_t first, last, type;
  std::int32_t stage, need;   // its index among the graph's stages, and among the distinct needs
  double own, server;
};

// So many units of a type: what an edge asks of the limits.
struct Need {
  std::int32_t type;
  double units;
};

// Some of the paths: those over these edges, with so many whole units of the server.
struct Part {
  double bound = -kInf;
  double fewest = 0, most = kInf;
  std::vector<Edge> edges{};      // ordered by first
  std::vector<double> prices{};   // of each row
};

// A path over a part's edges. Uses are those of the rows, the server apart.
struct Route {
  double bound = kInf, own = 0, work = 0;
  std::vector<std::int32_t> edges{};
  std::vector<double> uses{};
};

// Prices rows of constraints instead of keeping them (Lagrange multipliers), so that the cheapest path bounds a part.
// Rows: the limit of each type; money; stages; the server's units suffice for its work (its price: what a unit's worth
// of work is charged); the server costs no less than its work (its price: the share that is charged by the work); and
// for each type its limit in rounded shares.
class Pricing {
 public:
  Pricing(const Tables& tables, double low, double high, double money, int max_stages, double cutoff);

  std::int32_t need(std::int32_t type, double units);   // adds it if it is new

  std::size_t rows() const { return limits_.size(); }
  // Raises a part's bound by subgradient steps on its prices.
  void ascend(Part& part, int steps);
  // Drops the edges that no path below the cutoff uses, and those whose paths the server's units do not suffice for.
  void narrow(Part& part);
  // Takes a path that keeps every constraint as the cheapest so far, if it is.
  void consider(const Part& part, const Route& route);

  const Tables& tables;
  const double low, high;
  const std::size_t rate, count, work, share;   // rows after those of the types
  double cutoff;                                // falls to the cost of the cheapest path
  std::vector<std::int32_t> cheapest{};         // its stages
  std::int64_t effort = 0;                      // edges looked at, and as much for the rest

 protected:
  bool served() const { return tables.server_type >= 0; }
  std::size_t cell(int layer, int type) const { return static_cast<std::size_t>(layer) * tables.types + type; }
  double limit(std::size_t row) const { return limits_[row]; }
  double units(const Edge& e) const { return needs_[e.need].units; }
  double cost(const Edge& e) const { return e.own + need_price_[e.need] + e.server * work_price_; }
  double server_units(double work_done) const;
  double unit_price(const std::vector<double>& prices) const;   // of a whole unit of the server, work apart
  // What a part's bound adds to the priced cost of its cheapest path; `whole` becomes the server's units it assumes.
  double constant(const Part& part, double& whole) const;
  void set_prices(const Part& part);
  template <typename Cost>
  void backward(const Part& part, Cost cost_of);   // fills after_

  std::vector<BestTwo> after_, before_;
  // Of the last ascent's paths, the newest weighing most: how often a layer was on a type, and what limits cost there.
  std::vector<double> shares_, burdens_;
  double mean_work_ = 0, weight_ = 0;

 private:
  std::size_t rounded_row(int type, int order) const;
  void set_rounded(const Part& part);
  Route relax(const Part& part, double& whole);
  double slope(const Route& route, double whole, std::size_t row) const;
  double scale(const Part& part, std::size_t row) const;
  void clamp(Part& part) const;
  void remember(const Part& part, const Route& route);
  template <typename Cost, typename Accept>
  void keep(Part& part, Cost cost_of, Accept accept);

  const double server_price_;    // times what money weighs
  const double work_rate_;       // units that a second of work a sample asks for; less what rounding forgives
  std::vector<double> limits_;   // of each row
  std::map<std::pair<std::int32_t, double>, std::int32_t> need_at_{};
  std::vector<Need> needs_{};
  std::vector<double> need_price_{}, rounded_{};   // of each need; rounded shares by order
  double rounded_for_ = -1;                       // the server's fewest units they are meant for
  double work_price_ = 0, newest_ = 1;
};

template <typename Cost>
void Pricing::backward(const Part& part, Cost cost_of) {
  std::fill(after_.begin(), after_.end(), BestTwo{});
  after_.back() = {0.0, 0.0, -1, -1, -1};
  for (std::size_t i = part.edges.size(); i-- > 0;) {
    const Edge& e = part.edges[i];
    const double total = cost_of(e) + after_[e.last].without(e.type);
    if (total < after_[e.first].second) after_[e.first].offer(total, e.type, static_cast<std::int32_t>(i));
  }
}

}  // namespace heterps
