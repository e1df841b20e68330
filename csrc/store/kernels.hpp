// The loops that must be fast. They are compiled once for each instruction set (see CMakeLists.txt) and chosen when a
// table is made, so that one build runs well everywhere. Results do not depend on the choice: sums are taken in the
// same order, and products and sums are not contracted.
#pragma once

#include "views.hpp"

namespace heterps::store {

enum class Kind { sgd, momentum, adagrad, rowwise_adagrad, adam, ftrl };

// How a row follows its gradient; see heterps/store/config.py for the formulas.
struct Rule {
  Kind kind = Kind::rowwise_adagrad;
  float lr = 0, eps = 0, initial_accumulator = 0, momentum = 0, beta1 = 0, beta2 = 0, beta = 0, l1 = 0, l2 = 0;
  float weight_decay = 0, clip_value = 0, clip_norm = 0;   // clips: infinity for none
};

// The ids of one call that belong to one lane, and the distinct ones among them, numbered as they first occur. All
// arrays have room for `count`, and one.
struct Distinct {
  const std::int64_t* ids;         // the lane's ids, side by side; or those of the call, if they are `spread` there
  const std::uint32_t* position;   // of them in the call, ascending; null: they are all of the call's
  std::size_t count;               // of the lane's ids
  std::uint32_t* number;           // for each of the lane's ids the number of its distinct one
  std::int64_t* id;                // of each distinct id: itself, its slot and where it first occurs
  std::uint32_t* slot;
  std::uint32_t* first;            // null if neither this nor what follows on repeats is asked for
  std::size_t distinct;
  std::uint32_t* repeat_position;  // ids that occur again: where, and their numbers
  std::uint32_t* repeat_number;
  std::size_t repeats;
  const Bucket** home;             // of each distinct id, while it is looked for
  std::uint32_t* behind;           // scratch
  std::uint32_t* table;            // scratch: kNoSlot everywhere, a power of two and more than `count` of them
  int table_bits;
  bool spread = false;
};

// Gradients of a call: that of position p is grads[row_of ? row_of[p] : p] · (scale ? scale[p] : 1). If `summed`, those of
// equal ids are one already: that of the distinct id u is grads[u], or lies at at[u].
struct Gradients {
  const float* grads;
  const std::uint32_t* row_of;
  const float* scale;
  std::uint32_t* rank;             // scratch: kNoSlot for each distinct id
  float* sums;                     // scratch: room for as many rows as ids that occur again, and one
  bool summed = false;
  const float* const* at = nullptr;

  HETERPS_INLINE const float* row(std::uint32_t p, int dim) const {
    return grads + static_cast<std::size_t>(row_of != nullptr ? row_of[p] : p) * dim;
  }
};

// A part of a push: what its pull found, all of which has a row, and its gradients.
struct Piece {
  Distinct pull;
  const float* grads;
};

// Parts of a push put together. There is room for as many rows and repeats as the parts have ids, and one.
struct Joint {
  std::uint32_t* slot;             // of each row that is updated
  const float** grad;              // where its gradient is: its first one, or the sum
  std::size_t distinct;
  std::uint32_t* number;           // which row each further gradient is for, in the order of the parts
  const float** again;             // and where it is
  std::size_t repeats;
};

// Lanes of a thread, where there are several threads: what a call works in then stays in a core's own caches, and lanes
// with the most frequent ids can be dealt out to different threads.
inline constexpr std::size_t kLanes = 2;

// Positions of the ids of a call that belong to one lane, in the order of the call. There is room for all and 16 more.
struct Chosen {
  std::size_t lane;
  std::uint32_t* position;
  std::size_t count = 0;
};

struct Kernels {
  // Which of so many lanes each id belongs to, and how many each gets: `counts` is zeros, four for each lane.
  void (*share)(const std::int64_t* ids, std::size_t count, std::size_t lanes, std::uint16_t* lane, std::uint32_t* counts);
  // The ids of a thread's lanes, of so many, among those of a call.
  void (*choose)(const std::int64_t* ids, std::size_t count, std::size_t lanes, Chosen (&chosen)[kLanes]);
  // A call is worked on in blocks, and what the next step of a block will read is fetched during one of another block.
  // Numbers the lane's ids from `begin` to `end`, after those before; fetches the rows of the distinct ids from number
  // `waiting` on that were there before.
  void (*number)(Distinct&, std::size_t begin, std::size_t end, std::size_t waiting, const RowView&, int dim);
  // Fetches the buckets of the distinct ids from number `begin` on: to be done again if ids were inserted since.
  void (*fetch)(const Distinct&, std::size_t begin, const IndexView&);
  // Finds the slots of the distinct ids from number `begin` on, kNoSlot where there is none.
  void (*probe)(Distinct&, std::size_t begin, const IndexView&);
  // Copies rows to out[position], zeros where there is none; fetches the buckets of the distinct ids from number
  // `waiting` on.
  void (*gather)(const Distinct&, std::size_t begin, std::size_t end, std::size_t waiting, const IndexView&,
                 const RowView&, int dim, float* out);
  // The same for all ids of a call whose slots are known for some time: fetches the rows itself.
  void (*copy)(const Distinct&, const RowView&, int dim, float* out);
  // Finds the slots of all distinct ids and copies their rows to out[their number], if given. Returns how many are missing.
  std::size_t (*find)(const Distinct&, const IndexView&, const RowView&, int dim, float* out);
  // Copies the row of each distinct id to out[its number], zeros where there is none.
  void (*copy_distinct)(const Distinct&, const RowView&, int dim, float* out);
  // Puts parts together. Scratch: `seen` has eight to sixteen bits for each row of the parts, `table` up to four numbers
  // for each of their ids; 64 of each at least.
  void (*join)(const Piece* pieces, std::size_t count, Joint&, std::uint64_t* seen, std::uint32_t* table, int dim);
  // Then adds up further gradients: `sums` has room for as many rows.
  void (*add_up)(Joint&, float* sums, int dim);
  // Sums up gradients of equal ids and updates the rows that have a slot.
  void (*update)(const Rule&, const Distinct&, const Gradients&, const RowView&, int dim);
  // The sum, or the mean, of `count` rows; a null row is zeros.
  void (*pool)(const float* const* rows, std::size_t count, bool mean, float* out, int dim);
  // The least that pull and push must move, for comparison: rows and state in flat arrays, slots known. Fetches so many
  // rows ahead.
  void (*flat_pull)(const float* rows, const std::uint32_t* slot, std::size_t count, float* out, int dim,
                    std::size_t ahead);
  void (*flat_push)(const Rule&, float* rows, float* state, const std::uint32_t* slot, std::size_t count,
                    const float* grads, int dim, std::size_t ahead);
};

// The best this processor has, for rows of the given width.
Kernels kernels(int dim, Kind kind);

}  // namespace heterps::store
