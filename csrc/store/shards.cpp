#include "shards.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "table.hpp"
#include "views.hpp"

namespace heterps::store {

namespace {

constexpr std::uint64_t kSalt = 0x9FB21C651E98DF25ull;   // SALT of heterps/ps/shards.py
constexpr std::size_t kAhead = 16;                       // rows fetched before they are needed
constexpr std::size_t kEvery = 61;                       // of how many places one is looked at: no usual number of slots
constexpr std::size_t kLeast = 32;                       // of fewer ids nothing can be said

double repeats_among(const std::vector<std::int64_t>& ids) {
  if (ids.size() < kLeast) return 1;
  std::vector<std::int64_t> unique(ids.size());
  std::vector<std::uint32_t> number(ids.size());
  const std::size_t found = distinct(ids.data(), ids.size(), unique.data(), number.data());
  return 1 - static_cast<double>(found) / static_cast<double>(ids.size());
}

std::size_t shard_of(std::int64_t id, std::size_t shards) {
  return ((mix(static_cast<std::uint64_t>(id) ^ kSalt) >> 32) * shards) >> 32;
}

// Where each row of the stretches lies.
template <typename Float>
std::vector<Float*> rows_of(const std::vector<Stretch<Float>>& stretches, int dim) {
  std::size_t total = 0;
  for (const auto& stretch : stretches) total += stretch.count;
  std::vector<Float*> rows;
  rows.reserve(total);
  for (const auto& stretch : stretches) {
    for (std::size_t k = 0; k < stretch.count; ++k) rows.push_back(stretch.rows + k * dim);
  }
  return rows;
}

template <int kDim>
void gather(const std::vector<const float*>& rows, const std::uint32_t* index, std::size_t count, std::size_t width,
            float* out) {
  const std::size_t dim = kDim > 0 ? kDim : width;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(rows[index[i + kAhead]]);
    std::memcpy(out + i * dim, rows[index[i]], sizeof(float) * dim);
  }
}

template <int kDim>
void place_all(const float* grads, std::size_t count, const std::vector<float*>& rows, const std::uint32_t* place,
               std::size_t width) {
  const std::size_t dim = kDim > 0 ? kDim : width;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(rows[place[i + kAhead]], 1);
    std::memcpy(rows[place[i]], grads + i * dim, sizeof(float) * dim);
  }
}

template <int kDim>
void sum(const float* grads, const std::uint32_t* number, std::size_t count, const std::vector<float*>& rows,
         const std::uint32_t* place, std::size_t width) {
  const std::size_t dim = kDim > 0 ? kDim : width;
  const auto row = [&](std::uint32_t n) { return rows[place == nullptr ? n : place[n]]; };
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(row(number[i + kAhead]), 1);
    const float* grad = grads + i * dim;
    float* to = row(number[i]);
    if (number[i] == next) {
      std::memcpy(to, grad, sizeof(float) * dim);
      ++next;
    } else {
      for (std::size_t j = 0; j < dim; ++j) to[j] += grad[j];
    }
  }
}

template <typename Call>
void of_width(int dim, const Call& call) {
  switch (dim) {
    case 8: return call.template operator()<8>();
    case 16: return call.template operator()<16>();
    case 32: return call.template operator()<32>();
    case 64: return call.template operator()<64>();
    default: return call.template operator()<0>();
  }
}

}  // namespace

std::vector<std::size_t> split(const std::int64_t* ids, std::size_t count, std::size_t shards, std::int64_t* grouped,
                               std::uint32_t* place) {
  std::vector<std::size_t> bounds(shards + 1);
  for (std::size_t i = 0; i < count; ++i) ++bounds[(place[i] = static_cast<std::uint32_t>(shard_of(ids[i], shards))) + 1];
  for (std::size_t s = 0; s < shards; ++s) bounds[s + 1] += bounds[s];
  std::vector<std::size_t> next(bounds.begin(), bounds.end() - 1);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = next[place[i]]++;
    grouped[at] = ids[i];
    place[i] = static_cast<std::uint32_t>(at);
  }
  return bounds;
}

double repeats(const std::int64_t* ids, std::size_t count) {
  std::vector<std::int64_t> some(count + 1), spread;
  std::size_t taken = 0;
  for (std::size_t i = 0; i < count; ++i) {   // one of sixteen ids, without a branch on it
    some[taken] = ids[i];
    taken += mix(static_cast<std::uint64_t>(ids[i]) + kGolden) >> 60 == 0;
  }
  some.resize(taken);
  for (std::size_t i = 0; i < count; i += kEvery) spread.push_back(ids[i]);
  return std::max(repeats_among(some), repeats_among(spread));
}

void gather_stretches(const std::vector<Stretch<const float>>& from, const std::uint32_t* index, std::size_t count, int dim,
                      float* out) {
  const auto rows = rows_of(from, dim);
  if (std::any_of(index, index + count, [&](std::uint32_t n) { return n >= rows.size(); })) {
    throw std::invalid_argument("no such row");
  }
  of_width(dim, [&]<int kDim>() { gather<kDim>(rows, index, count, dim, out); });
}

void sum_stretches(const float* grads, const std::uint32_t* number, std::size_t count, const std::uint32_t* place,
                   std::size_t distinct, int dim, const std::vector<Stretch<float>>& into) {
  const auto rows = rows_of(into, dim);
  std::uint32_t next = 0;
  bool sound = rows.size() == distinct;
  for (std::size_t i = 0; number != nullptr && i < count; ++i) {
    sound &= number[i] <= next;
    next += number[i] == next;
  }
  sound &= (number == nullptr ? count : next) == distinct;
  for (std::size_t n = 0; sound && place != nullptr && n < distinct; ++n) sound = place[n] < distinct;
  if (!sound) throw std::invalid_argument("not numbers of `distinct`, or rows for others");
  if (number == nullptr && place == nullptr) {
    for (const auto& stretch : into) {
      std::memcpy(stretch.rows, grads, sizeof(float) * stretch.count * dim);
      grads += stretch.count * dim;
    }
    return;
  }
  if (number == nullptr) return of_width(dim, [&]<int kDim>() { place_all<kDim>(grads, count, rows, place, dim); });
  of_width(dim, [&]<int kDim>() { sum<kDim>(grads, number, count, rows, place, dim); });
}

}  // namespace heterps::store
