// From ids to rows: which lane has an id, its number in the call, its slot, a copy of its row.
#pragma once

#include "common.hpp"

namespace heterps::store::HETERPS_ISA {

namespace {

// Entries of a bucket that hold the id; an empty one may look like id 0, which its slot tells.
HETERPS_INLINE unsigned matches(const Bucket& bucket, std::int64_t id) {
#if defined(__AVX512F__)
  return _mm512_cmpeq_epi64_mask(_mm512_load_si512(&bucket), _mm512_set1_epi64(id)) & 0x1F;
#elif defined(__AVX2__)
  const __m256i wanted = _mm256_set1_epi64x(id);
  const __m256i front = _mm256_load_si256(reinterpret_cast<const __m256i*>(bucket.id));
  return _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(front, wanted))) |
         static_cast<unsigned>(bucket.id[4] == id) << 4;
#else
  unsigned mask = 0;
  for (int i = 0; i < Bucket::kEntries; ++i) mask |= static_cast<unsigned>(bucket.id[i] == id) << i;
  return mask;
#endif
}

enum class Probe { found, absent, go_on };

// Looks for an id in one bucket; a full one without it does not say that it is absent.
HETERPS_INLINE Probe look(const Bucket& bucket, std::int64_t id, std::uint32_t& slot) {
  for (unsigned mask = matches(bucket, id); mask != 0; mask &= mask - 1) {
    const std::uint32_t entry = bucket.slot[__builtin_ctz(mask)];
    if (entry == 0 || entry == kErased + 1) continue;
    slot = entry - 1;
    return Probe::found;
  }
  return bucket.slot[Bucket::kEntries - 1] == 0 ? Probe::absent : Probe::go_on;
}

// Fetches the rows of ids that were found last while others are numbered.
template <int kDim>
HETERPS_INLINE void fetch_row(const Distinct& call, std::size_t u, const RowView& rows, int width) {
  const std::uint32_t slot = call.slot[u];
  if (slot == kNoSlot) return;
  prefetch(rows.weights(slot), sizeof(float) * (kDim > 0 ? kDim : width));
}

// Hashes come first, in vectors. Counts of one lane in a row would wait for each other, so each lane has four.
void share(const std::int64_t* ids, std::size_t count, std::size_t lanes, std::uint16_t* lane, std::uint32_t* counts) {
  for (std::size_t i = 0; i < count; ++i) lane[i] = static_cast<std::uint16_t>(lane_of(ids[i], lanes));
  for (std::size_t i = 0; i < count; ++i) ++counts[4 * lane[i] + i % 4];
  for (std::size_t l = 0; l < lanes; ++l) {
    const std::uint32_t* four = counts + 4 * l;
    counts[l] = four[0] + four[1] + four[2] + four[3];
  }
}

#if defined(__AVX512DQ__)
// lane_of for eight ids.
HETERPS_INLINE __m512i lanes_of(__m512i ids, std::size_t lanes) {
  typedef std::uint64_t Eight __attribute__((vector_size(64)));
  return reinterpret_cast<__m512i>(((mix(reinterpret_cast<Eight>(ids) + kGolden) >> 48) * lanes) >> 16);
}
#endif

// Which lane an id belongs to is random, so nothing branches on it: an id of another lane is overwritten by the next. To read
// the ids takes longest, so those of all lanes of a thread are chosen at once.
void choose(const std::int64_t* ids, std::size_t count, std::size_t lanes, Chosen (&chosen)[kLanes]) {
  std::size_t i = 0, taken[kLanes] = {};
#if defined(__AVX512DQ__)
  const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (; i + 16 <= count; i += 16) {
    const __m512i low = lanes_of(_mm512_loadu_si512(ids + i), lanes);
    const __m512i high = lanes_of(_mm512_loadu_si512(ids + i + 8), lanes);
    const __m512i at = _mm512_add_epi32(steps, _mm512_set1_epi32(static_cast<int>(i)));
    for (std::size_t k = 0; k < kLanes; ++k) {
      const __m512i wanted = _mm512_set1_epi64(static_cast<long long>(chosen[k].lane));
      const auto own = static_cast<__mmask16>(_mm512_cmpeq_epi64_mask(low, wanted) |
                                              _mm512_cmpeq_epi64_mask(high, wanted) << 8);
      _mm512_storeu_si512(chosen[k].position + taken[k], _mm512_maskz_compress_epi32(own, at));
      taken[k] += static_cast<std::size_t>(__builtin_popcount(own));
    }
  }
#endif
  for (; i < count; ++i) {
    const std::size_t lane = lane_of(ids[i], lanes);
    for (std::size_t k = 0; k < kLanes; ++k) {
      chosen[k].position[taken[k]] = static_cast<std::uint32_t>(i);
      taken[k] += lane == chosen[k].lane;
    }
  }
  for (std::size_t k = 0; k < kLanes; ++k) chosen[k].count = taken[k];
}

// Whether an id is new is as good as random, so nothing here branches on it: the id is written where a new one would
// stand, an empty entry of the table is read as that place, and all is overwritten by the next id if it was not new.
template <int kDim, bool kAll, bool kRepeats, bool kSpread = false>
HETERPS_INLINE void number_some(Distinct& call, std::size_t begin, std::size_t end, std::size_t waiting,
                                const RowView& rows, int width) {
  const std::size_t found = call.distinct - waiting, fetch = begin + (found < end - begin ? found : end - begin);
  const int shift = 64 - call.table_bits;
  const std::size_t mask = (std::size_t{1} << call.table_bits) - 1;
  std::uint32_t distinct = static_cast<std::uint32_t>(call.distinct);
  std::size_t repeats = call.repeats;
  const std::int64_t* const asked = call.ids;
  std::int64_t* const ids = call.id;
  std::uint32_t *const table = call.table, *const numbers = call.number, *const first = call.first;
  std::uint32_t *const repeat_position = call.repeat_position, *const repeat_number = call.repeat_number;
  const std::size_t count = call.count;
  const bool far = call.table_bits > 16;   // too large for the nearest caches: what comes is fetched ahead
  // Mixes well enough here: long chains cost time, never truth.
  const auto entry = [&](std::int64_t id) -> std::size_t {
    return (static_cast<std::uint64_t>(id) ^ static_cast<std::uint64_t>(id) >> 32) * kGolden >> shift;
  };
  for (std::size_t i = begin; i < end; ++i) {
    const std::uint32_t p = kAll || !kRepeats ? static_cast<std::uint32_t>(i) : call.position[i];
    const std::int64_t id = asked[kSpread ? p : i];
    std::size_t at = entry(id);
    if (i < fetch) fetch_row<kDim>(call, waiting + i - begin, rows, width);
    if (far && i + 2 * kAhead < count) __builtin_prefetch(table + entry(asked[kSpread ? call.position[i + 2 * kAhead] : i + 2 * kAhead]), 1);
    ids[distinct] = id;
    std::uint32_t number = table[at] < distinct ? table[at] : distinct;
    while (ids[number] != id) [[unlikely]] {
      at = (at + 1) & mask;
      number = table[at] < distinct ? table[at] : distinct;
    }
    const bool fresh = number == distinct;
    table[at] = number;
    numbers[i] = number;
    if constexpr (kRepeats) {
      first[distinct] = p;
      repeat_position[repeats] = p;
      repeat_number[repeats] = number;
    }
    distinct += fresh;
    repeats += !fresh;
  }
  call.distinct = distinct;
  call.repeats = repeats;
}

template <int kDim>
void number(Distinct& call, std::size_t begin, std::size_t end, std::size_t waiting, const RowView& rows, int dim) {
  if (call.first == nullptr) {
    number_some<kDim, false, false>(call, begin, end, waiting, rows, dim);
  } else if (call.position == nullptr) {
    number_some<kDim, true, true>(call, begin, end, waiting, rows, dim);
  } else if (call.spread) {
    number_some<kDim, false, true, true>(call, begin, end, waiting, rows, dim);
  } else {
    number_some<kDim, false, true>(call, begin, end, waiting, rows, dim);
  }
}

template <bool kGrowing>
HETERPS_INLINE const Bucket& home_of(const IndexView& index, std::int64_t id) {
  const std::uint64_t hash = index.place(id);
  const BucketArray& array = kGrowing ? index.array_of(hash) : index.present;
  return array.at(array.home(hash));
}

// The bucket that stands by so many behind an id's home.
HETERPS_INLINE const Bucket& bucket_behind(const IndexView& index, std::int64_t id, std::uint32_t step) {
  const std::uint64_t hash = index.place(id);
  const BucketArray& array = index.array_of(hash);
  const std::uint64_t b = std::uint64_t{array.home(hash)} + step;
  return array.at(static_cast<std::uint32_t>(b < array.size ? b : b % array.size));
}

// Looks for an id behind its home bucket.
HETERPS_INLINE std::uint32_t look_behind(const IndexView& index, std::int64_t id) {
  const std::uint64_t hash = index.place(id);
  const BucketArray& array = index.array_of(hash);
  std::uint32_t slot = kNoSlot, b = array.after(array.home(hash)), step = 1;
  while (look(array.at(b), id, slot) == Probe::go_on && ++step < array.size) b = array.after(b);
  return slot;
}

// Three in ten ids stand behind their home bucket, some of them by two buckets or more. To wait for the next one would
// stall the rest, so it is fetched, and looked into when all have been looked for in the one before.
void probe(Distinct& call, std::size_t begin, const IndexView& index) {
  std::uint32_t* const behind = call.behind;
  std::size_t waits = 0;
  for (std::size_t u = begin; u < call.distinct; ++u) {
    const Bucket& bucket = *call.home[u];
    std::uint32_t slot = kNoSlot;
    const Probe result = look(bucket, call.id[u], slot);
    call.slot[u] = slot;
    behind[waits] = static_cast<std::uint32_t>(u);
    waits += result == Probe::go_on;
    if (result == Probe::go_on) __builtin_prefetch(&bucket + 1);   // the next one, but for the last of a chunk
  }
  const std::uint32_t most = index.present.size > index.old.size ? index.present.size : index.old.size;
  for (std::uint32_t step = 1; waits > 0 && step < most; ++step) {
    std::size_t still = 0;
    for (std::size_t w = 0; w < waits; ++w) {
      const std::uint32_t u = behind[w];
      const Bucket& bucket = bucket_behind(index, call.id[u], step);
      std::uint32_t slot = kNoSlot;
      const Probe result = look(bucket, call.id[u], slot);
      call.slot[u] = slot;
      behind[still] = u;
      still += result == Probe::go_on;
      if (result == Probe::go_on) __builtin_prefetch(&bucket + 1);
    }
    waits = still;
  }
}

template <bool kGrowing>
HETERPS_INLINE void fetch_one(const Distinct& call, std::size_t u, const IndexView& index) {
  const Bucket* const home = &home_of<kGrowing>(index, call.id[u]);
  call.home[u] = home;
  __builtin_prefetch(home);
}

void fetch(const Distinct& call, std::size_t begin, const IndexView& index) {
  if (index.old.size > 0) {
    for (std::size_t u = begin; u < call.distinct; ++u) fetch_one<true>(call, u, index);
  } else {
    for (std::size_t u = begin; u < call.distinct; ++u) fetch_one<false>(call, u, index);
  }
}

template <int kDim, bool kAll, bool kGrowing>
HETERPS_INLINE void gather_some(const Distinct& call, std::size_t begin, std::size_t end, std::size_t waiting,
                                const IndexView& index, const RowView& rows, int width, float* out) {
  const std::size_t dim = kDim > 0 ? kDim : width, count = call.distinct;
  const IndexView at = index;   // copies, that writes to `out` cannot change
  const RowView row = rows;
  const std::uint32_t *const numbers = call.number, *const slots = call.slot;
  for (std::size_t i = begin; i < end; ++i) {
    // Buckets of the ids that will be looked for next are fetched on the way.
    if (waiting < count) fetch_one<kGrowing>(call, waiting++, at);
    const std::size_t p = kAll ? i : call.position[i];
    // Here and there only is a row of this lane's: no processor would fetch these lines by itself.
    if (!kAll && i + kOutAhead < end) prefetch_given_to_write(out + call.position[i + kOutAhead] * dim, sizeof(float) * dim);
    const std::uint32_t slot = slots[numbers[i]];
    if (slot != kNoSlot) [[likely]] {
      memcpy(out + p * dim, row.weights(slot), sizeof(float) * dim);
    } else {
      memset(out + p * dim, 0, sizeof(float) * dim);
    }
  }
  for (; waiting < count; ++waiting) fetch_one<kGrowing>(call, waiting, at);
}

template <int kDim>
void gather(const Distinct& call, std::size_t begin, std::size_t end, std::size_t waiting, const IndexView& index,
            const RowView& rows, int dim, float* out) {
  const bool growing = index.old.size > 0;
  if (call.position == nullptr) {
    if (growing) gather_some<kDim, true, true>(call, begin, end, waiting, index, rows, dim, out);
    else gather_some<kDim, true, false>(call, begin, end, waiting, index, rows, dim, out);
  } else {
    if (growing) gather_some<kDim, false, true>(call, begin, end, waiting, index, rows, dim, out);
    else gather_some<kDim, false, false>(call, begin, end, waiting, index, rows, dim, out);
  }
}

template <int kDim>
void copy(const Distinct& call, const RowView& rows, int width, float* out) {
  const std::size_t dim = kDim > 0 ? kDim : width;
  const auto slot_of = [&](std::size_t i) { return call.slot[call.number != nullptr ? call.number[i] : i]; };
  for (std::size_t i = 0; i < call.count; ++i) {
    if (i + kAhead < call.count) {
      const std::uint32_t later = slot_of(i + kAhead);
      if (later != kNoSlot) prefetch(rows.weights(later), sizeof(float) * dim);
      if (call.position != nullptr) prefetch_given_to_write(out + call.position[i + kAhead] * dim, sizeof(float) * dim);
    }
    const std::size_t p = call.position == nullptr ? i : call.position[i];
    const std::uint32_t slot = slot_of(i);
    if (slot != kNoSlot) [[likely]] {
      memcpy(out + p * dim, rows.weights(slot), sizeof(float) * dim);
    } else {
      memset(out + p * dim, 0, sizeof(float) * dim);
    }
  }
}

// Copies a row to memory that is not read soon: past the caches, where rows and addresses are whole cache lines.
template <int kDim>
HETERPS_INLINE void copy_past_caches(float* out, const float* row, std::size_t dim) {
#if defined(__AVX512F__)
  if constexpr (kDim > 0 && kDim % 16 == 0) {
    if (reinterpret_cast<std::uintptr_t>(out) % kLine == 0) {
      for (int j = 0; j < kDim; j += 16) _mm512_stream_ps(out + j, _mm512_loadu_ps(row + j));
      return;
    }
  }
#endif
  memcpy(out, row, sizeof(float) * dim);
}

// A line of four steps, each id a stride behind the step before, so that what a step reads was fetched by then: the home
// bucket, the one behind it for three ids in ten, the row.
template <int kDim, bool kCopies>
HETERPS_INLINE std::size_t find_some(const Distinct& call, const IndexView& index, const RowView& rows, int width,
                                     float* out) {
  constexpr std::size_t kRing = 4 * kAhead;
  const std::size_t dim = kDim > 0 ? kDim : width, count = call.distinct;
  const std::int64_t* const ids = call.id;
  std::uint32_t* const slots = call.slot;
  const Bucket* home[kRing];
  std::size_t missing = 0;
  for (std::size_t i = 0; i < count + 3 * kAhead; ++i) {
    if (i < count) {
      home[i % kRing] = &home_of<true>(index, ids[i]);
      __builtin_prefetch(home[i % kRing]);
    }
    if (const std::size_t u = i - kAhead; i >= kAhead && u < count) {
      const Bucket* const bucket = home[u % kRing];
      std::uint32_t slot = kNoSlot;
      if (look(*bucket, ids[u], slot) == Probe::go_on) {
        slot = kErased;
        __builtin_prefetch(bucket + 1);   // the next one, but for the last of a chunk
      } else if (kCopies && slot != kNoSlot) {
        prefetch(rows.weights(slot), sizeof(float) * dim);
      }
      slots[u] = slot;
    }
    if (const std::size_t u = i - 2 * kAhead; i >= 2 * kAhead && u < count && slots[u] == kErased) {
      slots[u] = look_behind(index, ids[u]);
      if (kCopies && slots[u] != kNoSlot) prefetch(rows.weights(slots[u]), sizeof(float) * dim);
    }
    if (const std::size_t u = i - 3 * kAhead; i >= 3 * kAhead) {
      if (slots[u] == kNoSlot) [[unlikely]] {
        ++missing;
      } else if (kCopies) {
        copy_past_caches<kDim>(out + u * dim, rows.weights(slots[u]), dim);
      }
    }
  }
#if defined(__SSE2__)
  if (kCopies) _mm_sfence();
#endif
  return missing;
}

template <int kDim>
std::size_t find(const Distinct& call, const IndexView& index, const RowView& rows, int dim, float* out) {
  return out == nullptr ? find_some<kDim, false>(call, index, rows, dim, out)
                        : find_some<kDim, true>(call, index, rows, dim, out);
}

template <int kDim>
void copy_distinct(const Distinct& call, const RowView& rows, int width, float* out) {
  const std::size_t dim = kDim > 0 ? kDim : width;
  for (std::size_t u = 0; u < call.distinct; ++u) {
    if (u + kAhead < call.distinct && call.slot[u + kAhead] != kNoSlot) {
      prefetch(rows.weights(call.slot[u + kAhead]), sizeof(float) * dim);
    }
    if (call.slot[u] != kNoSlot) [[likely]] {
      copy_past_caches<kDim>(out + u * dim, rows.weights(call.slot[u]), dim);
    } else {
      memset(out + u * dim, 0, sizeof(float) * dim);
    }
  }
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace

}  // namespace heterps::store::HETERPS_ISA
