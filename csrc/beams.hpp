// Internal to branch.cpp and beams.cpp: the search for a cheap path that keeps every limit. Proves nothing.
#pragma once

#include "parts.hpp"

namespace heterps {

class Beams : public Pricing {
 public:
  using Pricing::Pricing;

  // Layer by layer, keeps the so many most promising beginnings of paths.
  void beam(const Part& part, std::size_t width);

 private:
  struct Label;
  bool extend(const Part& part, const Label& from, const double* used, const std::vector<BestTwo>& work_after,
              double constant, Label& to) const;
  void drop_dominated(const Part& part, const std::vector<Label>& labels, const std::vector<double>& used,
                      std::vector<std::int32_t>& here) const;
};

}  // namespace heterps
