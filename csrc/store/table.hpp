// The sparse table: rows of floats under any 64-bit id, their optimizer, their life cycle and snapshots of them.
//
// A table is cut into lanes by a hash of the id, some for each thread. Calls exclude each other; within a call every
// lane works alone, so rows need no locks, and results do not depend on the number of lanes.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lane.hpp"
#include "memory.hpp"
#include "pool.hpp"

namespace heterps::store {

struct Stats {
  Counters counters;
  std::uint32_t steps = 0;
};

// Calls give the seconds since the table was made, by a clock of the caller's.
class Table {
 public:
  Table(const Config& config, int threads);

  // Rows of `count` ids into `out`, one after the other. Without `create`, ids without a row read as first values.
  void pull(const std::int64_t* ids, std::size_t count, float* out, bool create, std::uint32_t seconds);
  // Finds the rows of ids that are pulled soon, and makes those that are missing: the pull then only copies them.
  void prepare(const std::int64_t* ids, std::size_t count, std::uint32_t seconds);
  // Adds up the gradients of equal ids and updates each row once.
  void push(const std::int64_t* ids, std::size_t count, const float* grads, std::uint32_t seconds);
  // The same for a push in parts, one after the other. False, and nothing is done, unless each was pulled lately and has
  // no id twice: what is known of these pulls makes it fast.
  struct Part {
    const std::int64_t* ids;
    std::size_t count;
    const float* grads;
  };
  bool push_parts(const std::vector<Part>& parts);
  // The same for an exchange of distinct rows only: `number` gets each id's number, `rows` (room for `count`) the row of
  // each number. The push takes a gradient for each number, of the same ids, and the pull's ticket.
  struct Pulled {
    std::size_t distinct;
    std::uint64_t ticket;
  };
  Pulled pull_distinct(const std::int64_t* ids, std::size_t count, std::int32_t* number, float* rows,
                       std::uint32_t seconds);
  void push_distinct(const std::int64_t* ids, std::size_t count, std::uint64_t ticket, const float* grads,
                     std::size_t distinct, std::uint32_t seconds);
  // The same for bags: bag b holds the ids from offsets[b] up to offsets[b + 1], the last one up to the end.
  void bag(const std::int64_t* ids, std::size_t count, const std::int64_t* offsets, std::size_t bags, bool mean,
           float* out, bool create, std::uint32_t seconds);
  void push_bag(const std::int64_t* ids, std::size_t count, const std::int64_t* offsets, std::size_t bags, bool mean,
                const float* grads, std::uint32_t seconds);

  // Rows and state of ids as they are, first ones where there is no row; and the inverse, which makes missing rows.
  void peek(const std::int64_t* ids, std::size_t count, float* weights, float* state);
  void put(const std::int64_t* ids, std::size_t count, const float* weights, const float* state,
           std::uint32_t seconds);

  void set_lr(float lr);
  void counts(const std::int64_t* ids, std::size_t count, std::int64_t* out, std::uint32_t seconds);
  std::size_t shrink(const Shrink& rule, std::uint32_t seconds);
  Stats stats();

  // Snapshots. Only one is taken at a time; while it is, shrinking and loading wait.
  struct Beginning {
    Now now;                             // no row was seen later
    std::vector<std::int64_t> removed;   // since the last snapshot
    Chunk candidates;
  };
  Beginning begin_save(bool delta, std::uint32_t seconds);
  void begin_scan();                     // a snapshot for reading alone: no delta builds on it
  Chunk save_some(std::size_t most);     // empty: the end
  void end_save(bool succeeded);
  // Loading, chunk by chunk: rows replace those of the same id. The table's clock goes on from the time that was saved.
  void begin_load(bool clear, Now saved, std::uint32_t seconds);
  void insert(const Chunk& chunk);
  void insert_candidates(const Chunk& chunk);
  void remove(const std::vector<std::int64_t>& ids);
  void end_load();

 private:
  Now advance(std::uint32_t seconds);
  std::unique_lock<std::mutex> begin_saving();
  // The ids of a call, resolved: kept for the push that follows a pull of the same ids.
  struct Share {   // of the ids: a lane's, or a part of them
    std::size_t begin = 0, count = 0, distinct = 0, repeats = 0;
    std::size_t before = 0;                  // distinct ids of the shares before
    std::uint64_t generation = 0;
  };
  struct Batch {
    Scrap<std::int64_t> ids;       // none if it is known by its number alone
    Scrap<std::uint32_t> position; // of each share's ids in the call
    Scrap<std::uint32_t> number, slot, first, repeat_position, repeat_number;   // see Distinct; share by share
    Scrap<std::int64_t> id;
    std::vector<Share> shares;     // as many for each lane; a single one has all ids, in the order of the call
    std::size_t count = 0;         // of ids
    std::uint64_t number_of_call = 0;   // grows with each batch
    bool valid = false;            // remembered, and not pushed yet
    bool prepared = false;         // and not pulled yet
    bool told_apart = true;        // else each id is taken for a distinct one, and has no number

    void make_room(std::size_t ids, bool repeats);
    Distinct view(std::size_t share);
    std::size_t distinct() const;
  };
  struct Scratch {   // of a thread, kept for the next call
    Scrap<std::uint32_t> table, rank, behind;
    Scrap<const Bucket*> home;
    Scrap<float> sums;
    std::vector<Piece> pieces;     // of a push in parts, and what they are joined in
    Scrap<std::uint32_t> slot, again;
    Scrap<const float*> grad, grad_again;
    Scrap<std::uint64_t> seen;

    Joint room_to_join(std::size_t count);
  };

  Lane& lane(std::int64_t id);
  Lane& lane_of_share(const Batch& batch, std::size_t share) const;
  void each(const std::function<void(int, Scratch&)>& work);
  void each_share(const Batch& batch, const std::function<void(std::size_t, Scratch&)>& work);
  void write_numbers(const Batch& batch, std::size_t stretch, std::int32_t* number) const;
  void share_out(const std::int64_t* ids, std::size_t count, Batch& batch, std::size_t parts);
  void choose(const std::int64_t* ids, std::size_t count, Batch& batch, std::size_t thread, Chosen (&chosen)[kLanes]);
  using LaneWork = std::function<void(std::size_t, const std::int64_t*, bool, Scratch&)>;
  void each_own(const std::int64_t* ids, std::size_t count, Batch& batch, const LaneWork& work);
  void resolve(const std::int64_t* ids, std::size_t count, Batch& batch, float* out, Lane::Access access,
               std::uint32_t seconds);
  void spot(const std::int64_t* ids, std::size_t count, Batch& batch, std::uint32_t seconds);
  bool hardly_repeat() const;
  void number(const std::int64_t* ids, std::size_t count, Batch& batch);
  void find(Batch& batch, Lane::Access access, std::uint32_t seconds, float* out, std::int32_t* number);
  Batch& resolved_for_push(const std::int64_t* ids, std::size_t count, std::uint32_t seconds);
  void update(Batch& batch, const float* grads, const std::uint32_t* row_of, const float* scale);
  void update(const std::vector<Batch*>& pulls, const std::vector<Part>& parts);
  void fill_first_values(const std::int64_t* ids, Batch& batch, float* out);
  std::vector<const float*> locate(const std::int64_t* ids, std::size_t count, Batch& batch, bool create,
                                   std::vector<float>& firsts);
  Batch& next_batch(std::size_t count);
  void remember_more(std::size_t count);
  Batch* recall(const std::int64_t* ids, std::size_t count, bool prepared);
  bool is_current(const Batch& batch) const;
  std::vector<Batch*> recall_parts(const std::vector<Part>& parts);
  Distinct numbering(Batch& batch, std::size_t share, Scratch& scratch, const std::int64_t* ids) const;
  void numbered(Batch& batch);
  void deal(const Batch& batch);
  void remember(Batch& batch);

  std::mutex mutex_;
  std::condition_variable saved_;
  bool saving_ = false;
  std::size_t saving_lane_ = 0;
  Config config_;
  Pool pool_;
  Kernels kernels_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<int> order_;         // in which threads take them: kLanes of each, one after the other
  std::vector<Scratch> scratches_;
  // The ids of a call, share by share, and where those of each of its stretches end.
  Scrap<std::int64_t> shared_;
  Scrap<std::uint16_t> share_;                     // of each id
  std::vector<std::vector<std::uint32_t>> ends_;   // [stretch][share]
  double distinct_ = 0;                            // of the ids of the last call
  std::uint32_t steps_ = 0;
  std::uint32_t seconds_ = 0;      // the latest that a call came at
  std::int64_t ahead_ = 0;         // of the seconds that calls give: the table's clock, since a load
  std::array<Batch, 32> recent_;   // as many as clients may pull before they push
  // Ids of pulls that are remembered for their push, 36 bytes each: more of them once pushes show that they are needed.
  std::size_t most_remembered_ = 1 << 17;
  std::uint64_t batches_ = 0;
  Batch scratch_;
};

// The distinct ids of a call, in the order of their first occurrence, and for each id the number of its distinct one.
// Both have room for `count`. Returns how many are distinct.
std::size_t distinct(const std::int64_t* ids, std::size_t count, std::int64_t* unique, std::uint32_t* number);
// Adds up the rows of `grads` by number, as `distinct` gives them.
void sum_by_number(const float* grads, const std::uint32_t* number, std::size_t count, int dim, float* sums);

}  // namespace heterps::store
