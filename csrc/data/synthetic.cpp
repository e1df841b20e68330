#include "synthetic.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "hash.hpp"

namespace heterps::data {
namespace {

constexpr int kFraction = 48;   // bits after the point of an octave's number

// Octaves of a slot as a fixed-point number: the last one is partial.
std::uint64_t octaves(std::int64_t size) {
  const std::uint64_t end = static_cast<std::uint64_t>(size) + 1;
  const int full = std::bit_width(end) - 1;
  const std::uint64_t rest = end - (std::uint64_t{1} << full);
  const auto part = static_cast<std::uint64_t>((static_cast<unsigned __int128>(rest) << kFraction) >> full);
  return (static_cast<std::uint64_t>(full) << kFraction) + part;
}

struct Drawn {
  std::int64_t id;
  float weight;
};

// Draws of one slot, with what they need at hand.
class Source {
 public:
  Source(const Slot& slot, std::uint64_t key, bool hashed)
      : slot_(slot), octaves_(octaves(slot.size)), weights_(step(key, slot.key)), hashed_(hashed) {}

  Drawn operator()(std::uint64_t bits) const {
    const auto x = static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits) * octaves_) >> 64);
    const auto octave = static_cast<int>(x >> kFraction);
    const std::uint64_t within = (x & ((std::uint64_t{1} << kFraction) - 1)) >> (kFraction - octave);
    const std::uint64_t rank = std::min<std::uint64_t>((std::uint64_t{1} << octave) + within - 1, slot_.size - 1);
    const auto id = hashed_ ? static_cast<std::int64_t>(step(step(slot_.key, rank), 8)) : slot_.base + static_cast<std::int64_t>(rank);
    const auto uniform = static_cast<float>(mix(weights_ + rank * kGolden) >> 40) * 0x1p-23f - 1.0f;
    return {id, uniform * slot_.amplitude[octave]};
  }

 private:
  const Slot& slot_;
  std::uint64_t octaves_, weights_;
  bool hashed_;
};

// Nearly normal, of mean 0 and variance 1: the sum of four uniform numbers of 16 bits.
float normal(std::uint64_t bits) {
  const auto sum = static_cast<float>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
  return (sum * 0x1p-16f - 1.9999695f) * 1.7320508f;
}

}  // namespace

Made make_rows(const Law& law, const std::int64_t* numbers, std::size_t count) {
  std::vector<Source> slots, bags;
  for (const Slot& slot : law.slots) slots.emplace_back(slot, law.key, law.hashed);
  for (const Slot& slot : law.bags) bags.emplace_back(slot, law.key, law.hashed);
  const std::size_t dense = law.dense.size();
  Made made;
  made.label.resize(count), made.probability.resize(count), made.dense.resize(count * dense);
  made.ids.resize(count * slots.size());
  made.bag_ids.resize(bags.size());
  made.bag_offsets.assign(bags.size(), {0});
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t state = step(law.key, static_cast<std::uint64_t>(numbers[i]));
    const auto draw = [&state] { return mix(state += kGolden); };
    float logit = law.bias;
    for (std::size_t j = 0; j < dense; ++j) {
      const float x = normal(draw());
      made.dense[i * dense + j] = x;
      logit += law.dense[j] * x;
    }
    for (std::size_t s = 0; s < slots.size(); ++s) {
      const Drawn drawn = slots[s](draw());
      made.ids[i * slots.size() + s] = drawn.id;
      logit += drawn.weight;
    }
    for (std::size_t s = 0; s < bags.size(); ++s) {
      for (std::uint64_t left = draw() % (kMostValues + 1); left > 0; --left) {
        const Drawn drawn = bags[s](draw());
        made.bag_ids[s].push_back(drawn.id);
        logit += drawn.weight;
      }
      made.bag_offsets[s].push_back(static_cast<std::int64_t>(made.bag_ids[s].size()));
    }
    const float probability = 1.0f / (1.0f + std::exp(-logit));
    made.probability[i] = probability;
    made.label[i] = static_cast<float>(draw() >> 40) * 0x1p-24f < probability ? 1.0f : 0.0f;
  }
  return made;
}

}  // namespace heterps::data
