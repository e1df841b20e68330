// The planner's inner loops: stages of a chain, cheapest paths over them, and whole units for given placements.
//
// Money is US dollars an hour, throughput is samples a second, and "cost" is their quotient (dollars an hour for one
// sample a second); Python turns it into dollars a sample. All times are seconds a sample.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace heterps {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
// Unit counts are rounded up only past this relative slack, so that 2.0000000001 units are 2. A throughput counts as
// reached within the same slack, and the next step of the staircase starts a little above it.
inline constexpr double kSlack = 1e-9;
inline constexpr double kNextStep = 1.0 + 2.0 * kSlack;

// What every layer costs on every type, row-major [layer][type]; a layer a type cannot run has parallel = infinity.
struct Tables {
  int layers = 0, types = 0;
  std::vector<double> serial, parallel, sync_serial, sync_parallel, server;
  std::vector<double> cut;                    // link time of the cut after a layer, [layer][type]
  std::vector<double> replicated, sharded;    // bytes, [layer]
  std::vector<double> memory, price, limit;   // [type]; infinity where unconstrained
  int server_type = -1;                       // -1: no parameter server
  double max_rate = kInf;                     // dollars an hour the whole plan may cost

  double server_price() const { return server_type < 0 ? 0.0 : price[server_type]; }
};

// Layers first..last-1 on one type. A stage with k units takes max(serial + parallel/k, sync_serial + sync_parallel/k).
struct Stage {
  std::int32_t first = 0, last = 0, type = 0;
  double serial = 0, parallel = 0, sync_serial = 0, sync_parallel = 0;
  double server = 0;     // unit-seconds of parameter-server work
  double least = 1;      // units that memory asks for

  double seconds(double units) const;
  // Fewest whole units that reach the throughput; infinity if none do.
  double units(double throughput) const;
  // Units per throughput if they could be split: the tangent that units(x)/x never goes below. Non-decreasing in x.
  double fractional(double throughput) const;
};

double whole_units(double fractional);

// Sums layers of one type into a stage, layer by layer. The stage has parallel = infinity where it cannot run, and
// least = infinity where it does not fit into memory; both only get worse as it grows.
class Span {
 public:
  Span(int first, int type) { sum_.first = sum_.last = first, sum_.type = type; }
  void extend(const Tables& tables);
  Stage stage(const Tables& tables) const;

 private:
  Stage sum_;
  double replicated_ = 0, sharded_ = 0;
};

struct Provisioned {
  double cost = kInf, throughput = 0;
  double violation = 0;         // 0 if feasible, else how far the constraints are exceeded, as a share
  std::vector<double> units;    // one for each stage
  double server_units = 0;
};

struct Target {
  double min_throughput = 0;    // of the user: pipeline fill included
  double max_cost = kInf;       // finite, or fastest: the fastest plan within it instead of the cheapest one
  bool fastest = false;
  double cutoff = kInf;         // of the cost: a placement that cannot beat it gets a cost it can reach, not its best
  double micro_batches = 0;     // 0: steady state; M: a synchronous pipeline that drains every M micro-batches

  double fill(std::size_t stages) const {
    return micro_batches > 0 ? micro_batches / (micro_batches + static_cast<double>(stages) - 1) : 1.0;
  }
};

// The exactly optimal whole units for one placement (a type for each layer).
Provisioned provision(const Tables& tables, const Target& target, const std::int32_t* placement);

// Prices that a search puts on constraints: on a unit of each type, and on a dollar an hour; and what the money itself
// weighs: 1, or 0 where only the constraints are at stake.
struct Multipliers {
  std::vector<double> type;
  double rate = 0;
  double money = 1;
  // The server's units are whole: charge this share of its price by the work, the rest for the fewest units there can
  // be. Any share from 0 to 1 bounds from below; which is best depends on how much the rounding takes.
  double server_share = 1;
};

struct Path {
  double bound = kInf;          // lower bound on the cost of every plan in the interval; infinity: there is none
  bool complete = true;         // false: branching gave up; the bound still holds
  std::int64_t parts = 0;       // that branching made
  std::vector<std::int32_t> placement;   // empty if none was found
  // Of the placement, with the units of the interval's low end, the server's whole units included:
  double own = kInf;            // bound on its own cost in the interval, constraints not priced in
  double reached = 0;           // throughput
  double rate = 0;              // dollars an hour
  std::vector<double> used;     // units of each type
};

// All stages that may appear in a plan, as edges first -> last of a graph over cut positions. For one thread at a time.
class Graph {
 public:
  explicit Graph(const Tables& tables);

  // Cheapest path for throughputs in [low, high] with the constraints priced in, not enforced.
  Path relax(double low, double high, const Multipliers& multipliers, int max_stages) const;

  // The stages that a plan cheaper than `cutoff` in [low, high] may use.
  Graph narrow(double low, double high, const Multipliers& multipliers, double cutoff) const;

  // Cheapest path in [low, high] that keeps every limit, the server's units whole, if it costs less than the cutoff.
  // Branch and bound with the constraints priced; gives up after looking at so many stages.
  Path branch(double low, double high, const Multipliers& multipliers, int max_stages, double cutoff,
              std::int64_t max_effort) const;

  const std::vector<Stage>& stages() const { return stages_; }
  std::size_t size() const { return stages_.size(); }
  // Smallest throughput any plan with the least units has: below it nothing changes.
  double floor() const;

 private:
  struct Unpriced;
  struct Weights;
  struct Costs;
  Graph(const Tables& tables, std::vector<Stage> stages);
  const Unpriced& unpriced(double low, double high, double money) const;
  Weights weights(double low, double high, const Multipliers& multipliers) const;
  Costs costs_to_go(const std::vector<double>& weight, int max_stages) const;
  // What a path's priced cost is lowered by: limits times their prices, less the server's units that are charged apart.
  double credit(double low, double high, const Multipliers& multipliers) const;
  void follow(const std::vector<std::int32_t>& chosen, const Weights& weights, Path& path) const;

  Tables tables_;
  std::vector<Stage> stages_;             // ordered by first
  std::vector<std::int32_t> begin_;       // stages that start at i: begin_[i] .. begin_[i + 1]
  double least_server_ = 0;               // least parameter-server work of any path
  mutable std::shared_ptr<const Unpriced> kept_;
};

// One direction of a micro-batch through a stage: seconds on each resource that it needs, all at once.
struct Load {
  double serial = 0, parallel = 0;   // of computing; jitter stretches the parallel part
  double link = 0;                   // of the stage's own link
  double shared = 0;                 // of the link that all stages share
  double server = 0;                 // of the parameter server
};

struct Station {
  Load load[2];                      // forward, backward
  double units = 1;
  std::uint64_t key = 0;             // what its random numbers depend on, beside the seed
};

// A run of steps of `micro_batches` each; a step enters once the one `staleness` + 1 before it is done.
struct Pipeline {
  std::vector<Station> stations;
  double server_units = 0;
  std::int64_t micro_batches = 1, staleness = 0;
  std::int64_t warmup = 0, steps = 1;   // steps left out of the measurement, and steps measured
  double jitter = 0;
  std::uint64_t seed = 0;
};

// Seconds of the measured steps, and how many of them each resource was busy.
struct Simulated {
  double seconds = 0, shared = 0, server = 0;
  std::vector<double> compute, link;
};

Simulated simulate(const Pipeline& pipeline);

}  // namespace heterps
