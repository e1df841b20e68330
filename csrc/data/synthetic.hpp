// Rows of click data with a known best predictor: pure functions of a key and the row's number.
#pragma once

#include <cstdint>
#include <vector>

namespace heterps::data {

// A slot's ids by rank, hottest first. Rank k lies in octave floor(log2(k + 1)); each full octave is drawn equally often and
// uniformly within, which is a staircase under Zipf's law of exponent 1.
struct Slot {
  std::int64_t size;              // ids
  std::int64_t base;              // first id where ids are dense
  std::uint64_t key;              // where they are not: they are the hash of the rank's eight bytes under this key
  std::vector<float> amplitude;   // of the weights of an octave's ids
};

struct Law {
  std::uint64_t key;
  std::vector<float> dense;        // a weight for each dense feature
  std::vector<Slot> slots, bags;   // single-valued, then those of none to kMostValues ids
  bool hashed;
  float bias;
};

inline constexpr int kMostValues = 4;

struct Made {
  std::vector<float> label, probability, dense;
  std::vector<std::int64_t> ids;
  std::vector<std::vector<std::int64_t>> bag_ids, bag_offsets;
};

Made make_rows(const Law& law, const std::int64_t* numbers, std::size_t count);

}  // namespace heterps::data
