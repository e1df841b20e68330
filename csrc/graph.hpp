// Internal to graph.cpp, parts.cpp and branch.cpp: edge weights and costs to go.
#pragma once

#include "planner.hpp"

namespace heterps {

// The cheapest two ways on from (or to) a position whose stages have different types.
struct BestTwo {
  double first = kInf, second = kInf;
  std::int32_t first_type = -1, first_stage = -1, second_stage = -1;

  double without(std::int32_t type) const { return type == first_type ? second : first; }

  void offer(double cost, std::int32_t type, std::int32_t stage) {
    if (cost < first) {
      if (type != first_type) {
        second = first;
        second_stage = first_stage;
      }
      first = cost;
      first_type = type;
      first_stage = stage;
    } else if (type != first_type && cost < second) {
      second = cost;
      second_stage = stage;
    }
  }
};

// What stages cost in an interval, whatever the prices: infinity for those that are out.
struct Graph::Unpriced {
  double low, high, money;
  std::vector<double> units{};   // fewest units at `low`
  std::vector<double> own{};     // the stage's own cost, multipliers and server apart
};

struct Graph::Weights {
  double low, high;
  double server_price;         // dollars an hour a unit of the server, times what money weighs
  const std::vector<double>& units;
  const std::vector<double>& own;
  std::vector<double> priced{};  // own + server + multipliers
};

// Cheapest cost from each position to the end, by level: with at most `level` more stages if bounded, else one level.
struct Graph::Costs {
  int positions = 0, levels = 1;
  bool bounded = false;
  std::vector<BestTwo> best{};

  int top() const { return bounded ? levels : 0; }
  BestTwo& at(int level, int position) { return best[static_cast<std::size_t>(level) * positions + position]; }
  const BestTwo& at(int level, int position) const {
    return best[static_cast<std::size_t>(level) * positions + position];
  }
};

}  // namespace heterps
