// What a client of parameter servers does with a batch: groups ids by shard, gathers rows and sums gradients where the
// rows of each shard lie, without putting them together first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace heterps::store {

// Groups ids by shard, in their order within each: given id i becomes grouped[place[i]]. Returns where each shard begins,
// and the end.
std::vector<std::size_t> split(const std::int64_t* ids, std::size_t count, std::size_t shards, std::int64_t* grouped,
                               std::uint32_t* place);

// About which share of the ids has occurred before: the more of two samples. One has every occurrence of some ids, which
// shows ids that occur a few times; the other has some places, which shows those that occur very often. Of few ids, 1. The
// same for the same ids.
double repeats(const std::int64_t* ids, std::size_t count);

template <typename Float>
struct Stretch {   // rows that lie in one array; several follow each other
  Float* rows;
  std::size_t count;
};

// out[i] = row number index[i] of the stretches. Throws if there is none.
void gather_stretches(const std::vector<Stretch<const float>>& from, const std::uint32_t* index, std::size_t count, int dim,
                      float* out);

// Row number place[n] (n, if place is null) of the stretches = the sum of grads[i] over number[i] == n, for the `distinct`
// numbers that `distinct` gives; without numbers, of grads[n]. Throws if they are others.
void sum_stretches(const float* grads, const std::uint32_t* number, std::size_t count, const std::uint32_t* place,
                   std::size_t distinct, int dim, const std::vector<Stretch<float>>& into);

}  // namespace heterps::store
