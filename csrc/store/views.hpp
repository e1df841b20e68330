// Plain views of index and rows, and nothing else: the kernels are compiled for several instruction sets, and no inline
// function of theirs may be shared with the rest of the program.
#pragma once

#include <cstddef>
#include <cstdint>

#define HETERPS_INLINE inline __attribute__((always_inline))

namespace heterps::store {

inline constexpr std::uint32_t kNoSlot = 0xFFFFFFFFu;    // no row
inline constexpr std::uint32_t kErased = 0xFFFFFFFEu;    // an index entry that may be reused but does not end a search
inline constexpr std::uint32_t kMostSlots = 0xFFFFFFF0u;

// The finalizer of splitmix64 (Stafford's variant 13): every input bit moves every output bit.
template <typename Word = std::uint64_t>   // or a vector of them
HETERPS_INLINE constexpr Word mix(Word z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ull;

// Which of a table's lanes an id belongs to: apart from the hash that spreads ids over shards, and from first values.
HETERPS_INLINE constexpr std::size_t lane_of(std::int64_t id, std::size_t lanes) {
  return ((mix(static_cast<std::uint64_t>(id) + kGolden) >> 48) * lanes) >> 16;
}

// A cache line of the index. Slots are stored plus one, so that zeroed memory is empty. Entries fill from the front, so a
// bucket with room has an empty last entry.
struct alignas(64) Bucket {
  static constexpr int kEntries = 5;
  std::int64_t id[kEntries];
  std::uint32_t slot[kEntries];
  std::uint32_t unused;
};

// Buckets in the order of hashes, in chunks of a huge page.
struct BucketArray {
  static constexpr int kChunkShift = 15;
  Bucket* const* chunks = nullptr;
  std::uint32_t size = 0;

  HETERPS_INLINE Bucket& at(std::uint32_t bucket) const {
    return chunks[bucket >> kChunkShift][bucket & ((1u << kChunkShift) - 1)];
  }
  HETERPS_INLINE std::uint32_t home(std::uint64_t hash) const {
    return static_cast<std::uint32_t>((static_cast<unsigned __int128>(hash) * size) >> 64);
  }
  HETERPS_INLINE std::uint32_t after(std::uint32_t bucket) const { return bucket + 1 == size ? 0 : bucket + 1; }
};

// While an index grows, ids of the old array's buckets before the cursor are in the present array, the rest in the old.
struct IndexView {
  BucketArray present, old;
  std::uint32_t cursor = 0;
  // Of this index alone. Ids in the order of one index (a snapshot's) would otherwise all fall into the first buckets of
  // another one that is still small.
  std::uint64_t salt = 0;

  HETERPS_INLINE std::uint64_t place(std::int64_t id) const { return mix(static_cast<std::uint64_t>(id) + salt); }

  HETERPS_INLINE const BucketArray& array_of(std::uint64_t hash) const {
    // Which one is as good as random while the index grows: chosen without a branch.
    const BucketArray* const arrays[] = {&present, &old};
    return *arrays[(old.size > 0) & (old.home(hash) >= cursor)];
  }
};

// Rows lie in segments that never move, so that a slot is an address for good. Weights, optimizer state and life lie
// apart: a pull copies only weights, and a row of 16 floats is one cache line.
struct RowView {
  static constexpr int kShift = 19;   // log2 of a segment's rows: with it every region is whole huge pages
  std::byte* const* segments = nullptr;
  std::size_t row_bytes = 0, state_bytes = 0, state_begin = 0;

  HETERPS_INLINE float* weights(std::uint32_t slot) const {
    return reinterpret_cast<float*>(segments[slot >> kShift] + within(slot) * row_bytes);
  }
  HETERPS_INLINE float* state(std::uint32_t slot) const {
    return reinterpret_cast<float*>(segments[slot >> kShift] + state_begin + within(slot) * state_bytes);
  }
  HETERPS_INLINE static std::size_t within(std::uint32_t slot) { return slot & ((1u << kShift) - 1); }
};

}  // namespace heterps::store
