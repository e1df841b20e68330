// Hashes and first values: pure functions of numbers, the same on every machine.
#pragma once

#include <cstdint>
#include <string_view>

#include "views.hpp"

namespace heterps::store {

// Key of a table's first values: FNV-1a of its name, mixed with the seed.
constexpr std::uint64_t init_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t fnv = 0xCBF29CE484222325ull;
  for (const char c : name) fnv = (fnv ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return mix(seed + mix(fnv));
}

// First value of element 2k in the low half of a draw, of 2k+1 in the high half: 24 bits each, uniform in [-scale, scale).
constexpr float draw(std::uint32_t bits, float scale) {
  return (static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f) * scale;
}

inline void init_row(std::uint64_t key, std::int64_t id, float scale, int dim, float* row) {
  const std::uint64_t h = mix(static_cast<std::uint64_t>(id) ^ key);
  for (int j = 0; j < dim; j += 2) {
    const std::uint64_t x = mix(h + static_cast<std::uint64_t>(j / 2 + 1) * kGolden);
    row[j] = draw(static_cast<std::uint32_t>(x), scale);
    if (j + 1 < dim) row[j + 1] = draw(static_cast<std::uint32_t>(x >> 32), scale);
  }
}

}  // namespace heterps::store
