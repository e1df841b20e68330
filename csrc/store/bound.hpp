// A table as Python holds it, and the arrays that its calls take.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "table.hpp"

namespace heterps::store {

namespace nb = nanobind;

using Ids = nb::ndarray<const std::int64_t, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using IdsOut = nb::ndarray<std::int64_t, nb::c_contig, nb::device::cpu>;
using IntsOut = nb::ndarray<std::int32_t, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const std::uint32_t, nb::c_contig, nb::device::cpu>;

inline void same(std::size_t given, std::size_t wanted, const char* what) {
  if (given != wanted) throw std::invalid_argument(std::string(what) + " of another size than the ids ask for");
}

struct Bound {   // a table and the widths that its arguments are checked against
  Bound(const Config& config, int threads) : dim(config.dim), state(config.state_floats), table(config, threads) {}
  std::size_t dim, state;
  Table table;
};

}  // namespace heterps::store
