// Compiled once for each instruction set, with HETERPS_ISA as its name. Only views.hpp and intrinsics may be used here.
#include "kernels.hpp"

#include <math.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace heterps::store::HETERPS_ISA {

namespace {

constexpr std::size_t kAhead = 16;   // rows, or buckets, that are fetched ahead of their use
constexpr std::size_t kLine = 64;

// Before a loop over a row's floats. Without it GCC unrolls short rows to scalars before it looks for vectors.
#define HETERPS_ROW _Pragma("GCC ivdep") _Pragma("GCC unroll 1")

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

HETERPS_INLINE void prefetch(const void* at, std::size_t bytes) {
  const char* line = static_cast<const char*>(at);
  for (std::size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(line + offset, 1);
  if (bytes % kLine != 0) __builtin_prefetch(line + bytes - 1, 1);   // which may lie on one more line
}

// Fetches the rows of ids that were found last while others are numbered.
template <int kDim>
HETERPS_INLINE void fetch_row(const Distinct& call, std::size_t u, const RowView& rows, int width) {
  const std::uint32_t slot = call.slot[u];
  if (slot == kNoSlot) return;
  prefetch(rows.weights(slot), sizeof(float) * (kDim > 0 ? kDim : width));
  __builtin_prefetch(rows.state(slot));   // for the push that follows
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

// Whether an id is new is as good as random, so nothing here branches on it: the id is written where a new one would
// stand, an empty entry of the table is read as that place, and all is overwritten by the next id if it was not new.
template <int kDim, bool kAll, bool kRepeats>
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
    const std::int64_t id = asked[i];
    std::size_t at = entry(id);
    if (i < fetch) fetch_row<kDim>(call, waiting + i - begin, rows, width);
    if (far && i + 2 * kAhead < count) {
      __builtin_prefetch(table + entry(asked[i + 2 * kAhead]), 1);
      const std::uint32_t there = table[entry(asked[i + kAhead])];
      __builtin_prefetch(ids + (there < distinct ? there : distinct));
    }
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
  } else {
    number_some<kDim, false, true>(call, begin, end, waiting, rows, dim);
  }
}

HETERPS_INLINE const Bucket& home_of(const IndexView& index, std::int64_t id) {
  const std::uint64_t hash = index.place(id);
  const BucketArray& array = index.array_of(hash);
  return array.at(array.home(hash));
}

// Three in ten ids stand behind their home bucket. To wait for the next one would stall the rest, so it is fetched, and
// looked into when all have been looked for at home.
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
  for (std::size_t w = 0; w < waits; ++w) {
    const std::int64_t id = call.id[behind[w]];
    const std::uint64_t hash = index.place(id);
    const BucketArray& array = index.array_of(hash);
    std::uint32_t slot = kNoSlot, b = array.after(array.home(hash)), step = 1;
    while (look(array.at(b), id, slot) == Probe::go_on && ++step < array.size) b = array.after(b);
    call.slot[behind[w]] = slot;
  }
}

HETERPS_INLINE void fetch_one(const Distinct& call, std::size_t u, const IndexView& index) {
  call.home[u] = &home_of(index, call.id[u]);
  __builtin_prefetch(call.home[u]);
}

void fetch(const Distinct& call, std::size_t begin, const IndexView& index) {
  for (std::size_t u = begin; u < call.distinct; ++u) fetch_one(call, u, index);
}

template <int kDim, bool kAll>
HETERPS_INLINE void gather_some(const Distinct& call, std::size_t begin, std::size_t end, std::size_t waiting,
                                const IndexView& index, const RowView& rows, int width, float* out) {
  const std::size_t dim = kDim > 0 ? kDim : width, count = call.distinct;
  for (std::size_t i = begin; i < end; ++i) {
    // Buckets of the ids that will be looked for next are fetched on the way.
    if (waiting < count) fetch_one(call, waiting++, index);
    const std::size_t p = kAll ? i : call.position[i];
    const std::uint32_t slot = call.slot[call.number[i]];
    if (slot != kNoSlot) [[likely]] {
      memcpy(out + p * dim, rows.weights(slot), sizeof(float) * dim);
    } else {
      memset(out + p * dim, 0, sizeof(float) * dim);
    }
  }
  for (; waiting < count; ++waiting) fetch_one(call, waiting, index);
}

template <int kDim>
void gather(const Distinct& call, std::size_t begin, std::size_t end, std::size_t waiting, const IndexView& index,
            const RowView& rows, int dim, float* out) {
  if (call.position == nullptr) {
    gather_some<kDim, true>(call, begin, end, waiting, index, rows, dim, out);
  } else {
    gather_some<kDim, false>(call, begin, end, waiting, index, rows, dim, out);
  }
}

template <int kDim>
void copy(const Distinct& call, const RowView& rows, int width, float* out) {
  const std::size_t dim = kDim > 0 ? kDim : width;
  for (std::size_t i = 0; i < call.count; ++i) {
    if (i + kAhead < call.count) {
      const std::uint32_t later = call.slot[call.number[i + kAhead]];
      if (later != kNoSlot) prefetch(rows.weights(later), sizeof(float) * dim);
    }
    const std::size_t p = call.position == nullptr ? i : call.position[i];
    const std::uint32_t slot = call.slot[call.number[i]];
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

// Sums of the ids that occur again, in the order of their occurrence.
template <int kDim>
HETERPS_INLINE void sum_repeats(const Distinct& call, const Gradients& from, int width) {
  const int dim = kDim > 0 ? kDim : width;
  const auto scale = [&](std::uint32_t p) { return from.scale != nullptr ? from.scale[p] : 1.0f; };
  std::uint32_t ranks = 0;
  for (std::size_t r = 0; r < call.repeats; ++r) {
    const std::uint32_t number = call.repeat_number[r], p = call.repeat_position[r];
    std::uint32_t rank = from.rank[number];
    const float* grad = from.row(p, dim);
    const float times = scale(p);
    if (rank == kNoSlot) {
      from.rank[number] = rank = ranks++;
      const std::uint32_t p0 = call.first[number];
      const float* first = from.row(p0, dim);
      const float times0 = scale(p0);
      float* sum = from.sums + static_cast<std::size_t>(rank) * dim;
      HETERPS_ROW
      for (int j = 0; j < dim; ++j) sum[j] = first[j] * times0 + grad[j] * times;
    } else {
      float* sum = from.sums + static_cast<std::size_t>(rank) * dim;
      HETERPS_ROW
      for (int j = 0; j < dim; ++j) sum[j] += grad[j] * times;
    }
  }
}

// Sum of squares in sixteen strands, so that the order does not depend on the width of vectors.
HETERPS_INLINE float squares(const float* x, int dim) {
  typedef float Sixteen __attribute__((vector_size(64)));
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  Sixteen sum = {};
  int j = 0;
  for (; j + 16 <= dim; j += 16) {
    Sixteen some;
    memcpy(&some, x + j, sizeof some);
    sum += some * some;
  }
  if (j < dim) {
    Sixteen rest = {};
    memcpy(&rest, x + j, sizeof(float) * (dim - j));
    sum += rest * rest;
  }
  const Eight eight = __builtin_shufflevector(sum, sum, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(sum, sum, 8, 9, 10, 11, 12, 13, 14, 15);
  const Four four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

struct Powers {   // of Adam's betas: rows that are updated together often have the same age
  float age = 0;
  double one = 1, two = 1;
};

HETERPS_INLINE float sign(float x) { return x > 0 ? 1.0f : -1.0f; }

template <Kind kKind>
HETERPS_INLINE void update(const Rule& rule, float* __restrict w, float* __restrict s, const float* __restrict g, int dim,
                           Powers& powers) {
  const float lr = rule.lr, eps = rule.eps;
  if constexpr (kKind == Kind::sgd) {
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) w[j] -= lr * g[j];
  } else if constexpr (kKind == Kind::momentum) {
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) {
      s[j] = rule.momentum * s[j] + g[j];
      w[j] -= lr * s[j];
    }
  } else if constexpr (kKind == Kind::adagrad) {
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) {
      s[j] += g[j] * g[j];
      w[j] -= lr * g[j] / (__builtin_sqrtf(s[j]) + eps);
    }
  } else if constexpr (kKind == Kind::rowwise_adagrad) {
    s[0] += squares(g, dim) / static_cast<float>(dim);
    const float step = lr / (__builtin_sqrtf(s[0]) + eps);
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) w[j] -= step * g[j];
  } else if constexpr (kKind == Kind::adam) {
    float *m = s + 1, *v = s + 1 + dim;
    s[0] += 1.0f;
    if (powers.age != s[0]) powers = {s[0], pow(rule.beta1, s[0]), pow(rule.beta2, s[0])};
    const float first = static_cast<float>(lr / (1.0 - powers.one));
    const float second = static_cast<float>(1.0 / sqrt(1.0 - powers.two));
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) {
      m[j] = rule.beta1 * m[j] + (1.0f - rule.beta1) * g[j];
      v[j] = rule.beta2 * v[j] + (1.0f - rule.beta2) * (g[j] * g[j]);
      w[j] -= first * m[j] / (__builtin_sqrtf(v[j]) * second + eps);
    }
  } else {
    float *z = s, *n = s + dim;
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) {
      const float next = n[j] + g[j] * g[j], root = __builtin_sqrtf(next);
      z[j] += g[j] - (root - __builtin_sqrtf(n[j])) / lr * w[j];
      n[j] = next;
      const float size = __builtin_fabsf(z[j]) - rule.l1;
      w[j] = size <= 0 ? 0.0f : -sign(z[j]) * size / ((rule.beta + root) / lr + rule.l2);
    }
  }
}

HETERPS_INLINE void condition(const Rule& rule, const float* __restrict w, float* __restrict g, int dim) {
  if (rule.clip_value < __builtin_inff()) {
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) {
      g[j] = g[j] > rule.clip_value ? rule.clip_value : g[j] < -rule.clip_value ? -rule.clip_value : g[j];
    }
  }
  if (rule.clip_norm < __builtin_inff()) {
    const float norm = __builtin_sqrtf(squares(g, dim));
    if (norm > rule.clip_norm) {
      const float scale = rule.clip_norm / norm;
      HETERPS_ROW
      for (int j = 0; j < dim; ++j) g[j] *= scale;
    }
  }
  if (rule.weight_decay > 0) {
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) g[j] += rule.weight_decay * w[j];
  }
}

HETERPS_INLINE bool is_plain(const Rule& rule) {
  return !(rule.clip_value < __builtin_inff()) && !(rule.clip_norm < __builtin_inff()) && !(rule.weight_decay > 0);
}

template <Kind kKind, int kDim>
void apply(const Rule& rule, const Distinct& call, const Gradients& from, const RowView& rows, int width) {
  const int dim = kDim > 0 ? kDim : width;
  if (!from.summed) sum_repeats<kDim>(call, from, dim);
  const std::size_t count = call.distinct;
  const bool plain = is_plain(rule) && from.scale == nullptr;
  float* copy = from.sums + (from.summed ? 0 : call.repeats) * static_cast<std::size_t>(dim);
  Powers powers;
  const auto fetch = [&](std::size_t u) {
    const std::uint32_t slot = call.slot[u], p = from.summed ? static_cast<std::uint32_t>(u) : call.first[u];
    if (slot == kNoSlot) return;
    __builtin_prefetch(from.row(p, dim));
    prefetch(rows.weights(slot), sizeof(float) * dim);
    if constexpr (kKind == Kind::rowwise_adagrad) {
      __builtin_prefetch(rows.state(slot), 1);
    } else if constexpr (kKind != Kind::sgd) {
      prefetch(rows.state(slot), rows.state_bytes);
    }
  };
  for (std::size_t u = 0; u < count && u < kAhead; ++u) fetch(u);
  for (std::size_t u = 0; u < count; ++u) {
    if (u + kAhead < count) fetch(u + kAhead);
    const std::uint32_t slot = call.slot[u];
    if (slot == kNoSlot) continue;
    float* w = rows.weights(slot);
    const float* g;
    if (from.summed) {
      g = from.grads + u * dim;
    } else if (from.rank[u] != kNoSlot) {
      g = from.sums + static_cast<std::size_t>(from.rank[u]) * dim;
    } else {
      g = from.row(call.first[u], dim);
    }
    if (!plain) {
      const float scale = from.scale != nullptr && from.rank[u] == kNoSlot ? from.scale[call.first[u]] : 1.0f;
      HETERPS_ROW
      for (int j = 0; j < dim; ++j) copy[j] = g[j] * scale;
      condition(rule, w, copy, dim);
      g = copy;
    }
    update<kKind>(rule, w, rows.state(slot), g, dim, powers);
  }
}

template <int kDim>
void pool(const float* const* rows, std::size_t count, bool mean, float* out, int width) {
  const int dim = kDim > 0 ? kDim : width;
  HETERPS_ROW
  for (int j = 0; j < dim; ++j) out[j] = 0.0f;
  for (std::size_t i = 0; i < count; ++i) {
    if (rows[i] == nullptr) continue;
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) out[j] += rows[i][j];
  }
  if (!mean || count == 0) return;
  const float scale = 1.0f / static_cast<float>(count);
  HETERPS_ROW
  for (int j = 0; j < dim; ++j) out[j] *= scale;
}

template <int kDim>
void flat_pull(const float* rows, const std::uint32_t* slot, std::size_t count, float* out, int width) {
  const std::size_t dim = kDim > 0 ? kDim : width;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetch(rows + slot[i + kAhead] * dim, sizeof(float) * dim);
    memcpy(out + i * dim, rows + slot[i] * dim, sizeof(float) * dim);
  }
}

template <int kDim>
void flat_push(const Rule& rule, float* rows, float* state, const std::uint32_t* slot, std::size_t count,
               const float* grads, int width) {
  const std::size_t dim = kDim > 0 ? kDim : width;
  Powers powers;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      prefetch(rows + slot[i + kAhead] * dim, sizeof(float) * dim);
      __builtin_prefetch(state + slot[i + kAhead], 1);
    }
    update<Kind::rowwise_adagrad>(rule, rows + slot[i] * dim, state + slot[i], grads + i * dim, static_cast<int>(dim),
                                  powers);
  }
}

template <int kDim>
Kernels of_width(Kind kind) {
  Kernels out{share, number<kDim>, fetch, probe, gather<kDim>, copy<kDim>, copy_distinct<kDim>, nullptr, pool<kDim>,
              flat_pull<kDim>, flat_push<kDim>};
  switch (kind) {
    case Kind::sgd: out.update = apply<Kind::sgd, kDim>; break;
    case Kind::momentum: out.update = apply<Kind::momentum, kDim>; break;
    case Kind::adagrad: out.update = apply<Kind::adagrad, kDim>; break;
    case Kind::rowwise_adagrad: out.update = apply<Kind::rowwise_adagrad, kDim>; break;
    case Kind::adam: out.update = apply<Kind::adam, kDim>; break;
    case Kind::ftrl: out.update = apply<Kind::ftrl, kDim>; break;
  }
  return out;
}

}  // namespace

Kernels kernels(int dim, Kind kind) {
  switch (dim) {
    case 8: return of_width<8>(kind);
    case 16: return of_width<16>(kind);
    case 32: return of_width<32>(kind);
    case 64: return of_width<64>(kind);
    case 128: return of_width<128>(kind);
    default: return of_width<0>(kind);
  }
}

}  // namespace heterps::store::HETERPS_ISA
