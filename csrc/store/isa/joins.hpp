// Parts of a push, put together: which rows they update, and by which gradient each.
#pragma once

#include "common.hpp"

namespace heterps::store::HETERPS_ISA {

namespace {

constexpr int kBitsEach = 8;   // of the rows that are told apart: one in eight or sixteen is then looked for in vain

HETERPS_INLINE int log2_of(std::size_t least) {
  int bits = 6;
  while (std::size_t{1} << bits < least) ++bits;
  return bits;
}

// Whether a slot with the same last bits was seen before; from now on it was.
HETERPS_INLINE std::size_t seen_before(std::uint64_t* seen, std::size_t mask, std::uint32_t slot) {
  std::uint64_t& word = seen[(slot & mask) >> 6];
  const std::size_t before = word >> (slot & 63) & 1;
  word |= std::uint64_t{1} << (slot & 63);
  return before;
}

// Rows that were not seen yet are put down at once. Whether one was seen is often as good as random, so it is written to
// both places, and only one of them is kept.
template <int kDim>
HETERPS_INLINE void put_down(const Piece& piece, Joint& out, std::uint64_t* seen, std::size_t mask, int width) {
  const std::size_t dim = kDim > 0 ? kDim : width;
  const Distinct& pull = piece.pull;
  std::size_t distinct = out.distinct, repeats = out.repeats;
  for (std::size_t u = 0; u < pull.distinct; ++u) {
    const std::uint32_t slot = pull.slot[u];
    const float* const grad = piece.grads + (pull.first != nullptr ? pull.first[u] : u) * dim;
    const std::size_t again = seen_before(seen, mask, slot);
    out.slot[distinct] = out.number[repeats] = slot;
    out.grad[distinct] = out.again[repeats] = grad;
    distinct += !again;
    repeats += again;
  }
  for (std::size_t r = 0; r < pull.repeats; ++r) {   // behind the others of its piece: the sum is the same
    out.number[repeats] = pull.slot[pull.repeat_number[r]];
    out.again[repeats++] = piece.grads + pull.repeat_position[r] * dim;
  }
  out.distinct = distinct, out.repeats = repeats;
}

// The rows of what may be repeats: each one's number, or a new one if only the last bits of its slot were seen before.
HETERPS_INLINE void number_again(Joint& out, std::uint64_t* seen, std::size_t mask, std::uint32_t* table) {
  const int bits = log2_of(2 * out.repeats), shift = 64 - bits;
  const std::size_t entries = (std::size_t{1} << bits) - 1;
  memset(seen, 0, (mask + 1) / 8);
  memset(table, 0xFF, (entries + 1) * sizeof *table);
  const auto entry = [&](std::uint32_t slot) {   // where it is, or would be
    std::size_t at = slot * kGolden >> shift;
    while (table[at] != kNoSlot && out.slot[table[at]] != slot) at = (at + 1) & entries;
    return at;
  };
  for (std::size_t r = 0; r < out.repeats; ++r) seen_before(seen, mask, out.number[r]);
  for (std::size_t u = 0; u < out.distinct; ++u) {
    const std::uint32_t slot = out.slot[u];
    if (seen[(slot & mask) >> 6] >> (slot & 63) & 1) table[entry(slot)] = static_cast<std::uint32_t>(u);
  }
  std::size_t repeats = 0;
  for (std::size_t r = 0; r < out.repeats; ++r) {
    const std::uint32_t slot = out.number[r];
    const std::size_t at = entry(slot);
    out.number[repeats] = table[at];
    out.again[repeats] = out.again[r];
    if (table[at] != kNoSlot) {
      ++repeats;
    } else {
      table[at] = static_cast<std::uint32_t>(out.distinct);
      out.slot[out.distinct] = slot;
      out.grad[out.distinct++] = out.again[r];
    }
  }
  out.repeats = repeats;
}

template <int kDim>
void join(const Piece* pieces, std::size_t count, Joint& out, std::uint64_t* seen, std::uint32_t* table, int dim) {
  std::size_t rows = 0;
  for (std::size_t k = 0; k < count; ++k) rows += pieces[k].pull.distinct;
  const std::size_t mask = (std::size_t{1} << log2_of(kBitsEach * rows)) - 1;
  memset(seen, 0, (mask + 1) / 8);
  out.distinct = out.repeats = 0;
  for (std::size_t k = 0; k < count; ++k) put_down<kDim>(pieces[k], out, seen, mask, dim);
  if (out.repeats > 0) number_again(out, seen, mask, table);
}

// Adds up the gradients of rows that have several, in the order of the pieces.
template <int kDim>
void add_up(Joint& joint, float* sums, int width) {
  const std::size_t dim = kDim > 0 ? kDim : width;
  float *end = sums;
  for (std::size_t r = 0; r < joint.repeats; ++r) {
    if (r + kAhead < joint.repeats) prefetch_given(joint.again[r + kAhead], sizeof(float) * dim);
    const float *own = joint.grad[joint.number[r]], *const grad = joint.again[r];
    const bool first = own < sums || own >= end;
    float* const sum = first ? end : sums + (own - sums);
    HETERPS_ROW
    for (std::size_t j = 0; j < dim; ++j) sum[j] = own[j] + grad[j];
    joint.grad[joint.number[r]] = sum;
    end += first ? dim : 0;
  }
}

}  // namespace

}  // namespace heterps::store::HETERPS_ISA
