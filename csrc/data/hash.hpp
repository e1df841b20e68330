// The hash of ids, documented in heterps/data/hashing.py, and the seeded permutation: pure functions, the same everywhere.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace heterps::data {

inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ull;

// The finalizer of splitmix64 (Stafford's variant 13): every input bit moves every output bit.
constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

constexpr std::uint64_t step(std::uint64_t hash, std::uint64_t word) { return mix((hash ^ word) + kGolden); }

template <typename T>
T load(const char* p) {
  static_assert(std::endian::native == std::endian::little, "words are read as they lie");
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// One to seven bytes as a word padded with zeros. The loads overlap; where they do, they agree.
inline std::uint64_t short_word(const char* p, std::size_t size) {
  if (size >= 4) return load<std::uint32_t>(p) | std::uint64_t{load<std::uint32_t>(p + size - 4)} << (8 * (size - 4));
  const auto byte = [p](std::size_t i) { return std::uint64_t{static_cast<unsigned char>(p[i])} << (8 * i); };
  return byte(0) | byte(size / 2) | byte(size - 1);
}

// A step for each word of eight bytes, the last one padded with zeros, and one for the size.
inline std::uint64_t hash_bytes(std::uint64_t key, const char* p, std::size_t size) {
  std::uint64_t hash = key;
  std::size_t left = size;
  for (; left >= 8; left -= 8, p += 8) hash = step(hash, load<std::uint64_t>(p));
  if (left > 0) hash = step(hash, short_word(p, left));
  return step(hash, size);
}

// A permutation of [0, size) by key, without a table: a Feistel network of six rounds on the next even number of bits,
// walked until it lands inside: fewer than four steps are expected, as more than a quarter of the square is inside.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t key) : size_(size) {
    half_ = (std::bit_width(size > 1 ? size - 1 : 1) + 1) / 2;
    mask_ = (std::uint64_t{1} << half_) - 1;
    for (int i = 0; i < kRounds; ++i) keys_[i] = mix(key + (i + 1) * kGolden);
  }

  std::uint64_t operator()(std::uint64_t at) const {
    do {
      std::uint64_t left = at >> half_, right = at & mask_;
      for (const std::uint64_t key : keys_) {
        const std::uint64_t next = left ^ (mix(right + key) & mask_);
        left = right, right = next;
      }
      at = left << half_ | right;
    } while (at >= size_);
    return at;
  }

 private:
  static constexpr int kRounds = 6;
  std::uint64_t size_, mask_;
  int half_;
  std::uint64_t keys_[kRounds];
};

}  // namespace heterps::data
