// One thread's share of a table: its rows, their index and their life. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "index.hpp"
#include "kernels.hpp"
#include "rows.hpp"

namespace heterps::store {

struct Config {
  int dim = 0, state_floats = 0;
  Rule rule;
  std::uint64_t init_key = 0;
  float init_scale = 0;
  std::uint32_t admit_after = 1;                      // sights
  std::uint32_t expire_steps = 0, expire_seconds = 0;  // 0: never
  bool tracks = false;
};

struct Now {
  std::uint32_t step = 0, seconds = 0;
};

struct Counters {
  std::uint64_t rows = 0, bytes = 0, candidates = 0, hits = 0, creations = 0, expired = 0;

  Counters& operator+=(const Counters& other);
};

// Rows side by side, as snapshots hold them.
struct Chunk {
  std::vector<std::int64_t> ids;
  std::vector<float> weights, state;
  std::vector<Life> life;              // empty if the table does not track
};

// What to drop; 0: no such rule.
struct Shrink {
  std::uint32_t min_count = 0, unseen_steps = 0, unseen_seconds = 0;
};

class Lane {
 public:
  explicit Lane(const Config& config);

  enum class Access { pull, push, peek };   // peek: neither creates nor counts
  // Finds the rows of a call's ids, makes those that are missing, and copies them to `out`, if given.
  void resolve(Distinct& call, Access access, Now now, float* out);
  // Copies the rows of a call that was resolved to `out`.
  void copy(const Distinct& call, float* out) const;
  // Finds the rows of distinct ids that were numbered, kNoSlot where there is none, and copies them to `out`, if given,
  // by number. Gives how many are missing. Threads may do this with different ids.
  std::size_t find(const Distinct& call, float* out) const;
  // Then makes those that are missing, does to rows what a sight does, and copies those that are new or changed.
  void settle(Distinct call, Access access, Now now, float* out);
  void count_hits(std::size_t ids) { hits_ += ids; }   // misses are taken off by settle
  bool growing() const { return index_.growing(); }
  // An index that grows goes on with that whenever a call looks up so many ids: lookups take longer until it is done. Little
  // by little while many rows are made, as these make it go on, too.
  void grow_on(std::size_t ids) {
    index_.go_on(static_cast<std::uint32_t>(ids / (misses_ > ids / 16 ? 16 : 2) + 1));
  }
  // The row and state of one id as they are, its first ones if it has none. No sight of it.
  void read(std::int64_t id, float* weights, float* state) const;
  // First value of an id without a row.
  void first_value(std::int64_t id, float* row) const;
  // Updates rows by their gradients; they were noted. Threads may do this with different rows.
  void update(const Rule& rule, const Distinct& call, const Gradients& gradients) const;
  // Rows are about to be updated: for snapshots.
  void note(const Distinct& call);
  bool watched() const { return saving_ || watching_; }
  const float* weights(std::uint32_t slot) const { return rows_.weights(slot); }

  std::uint32_t count(std::int64_t id, Now now);
  std::size_t shrink(const Shrink& rule, Now now);
  Counters counters() const;
  void reset_counters() { hits_ = creations_ = expired_ = 0; }
  // Changes whenever slots may mean other ids than before.
  std::uint64_t generation() const { return generation_; }

  // A snapshot of this moment, taken while rows change: what would change first is copied aside. A scan is one that no
  // delta builds on: it ends as a save that did not succeed.
  void begin_scan();
  void begin_save(bool delta);
  bool save_some(std::size_t most, Chunk& chunk);   // adds about so many rows; false: that was all
  const std::vector<std::int64_t>& removed_before_save() const { return frozen_removed_; }
  void end_save(bool succeeded);

  void insert(std::int64_t id, const float* weights, const float* state, const Life* life);
  // The row and state of one id; seen now, though that counts as no sight.
  void put(std::int64_t id, const float* weights, const float* state, Now now) {
    now_ = now;
    insert(id, weights, state, nullptr);
  }
  void remove(std::int64_t id);
  void clear();
  // Ids that are not admitted yet: few enough to be saved whole each time.
  void save_candidates(Chunk& chunk) const;
  void insert_candidate(std::int64_t id, const Life& life);
  void clear_candidates();
  // From here on changes are remembered for a delta.
  void watch_changes();

 private:
  void first_state(float* state) const;
  void make_missing(Distinct& call, std::size_t from);
  void make_missing_rows(Distinct& call, float* out);
  void live(Distinct& call, Access access);
  std::uint32_t sight(std::int64_t id, std::uint32_t slot, Access access, std::uint32_t times);
  std::uint32_t admit(std::int64_t id, std::uint32_t times);
  std::uint32_t create(std::int64_t id);
  void drop(std::int64_t id, std::uint32_t slot);
  void drop_candidate(std::int64_t id, std::uint32_t slot);
  bool expired(const Life& life) const;
  bool unseen(const Life& life, std::uint32_t steps, std::uint32_t seconds) const;
  void seen(Life& life) const { life.seen_step = now_.step, life.seen_seconds = now_.seconds; }
  void protect(std::int64_t id, std::uint32_t slot);
  void note(std::uint32_t slot) {
    if (watching_) changed_.set(slot);
  }
  void append(std::int64_t id, std::uint32_t slot, Chunk& chunk) const;

  Config config_;
  Kernels kernels_;
  Index index_;
  Rows rows_;
  Index candidate_index_;        // ids that are not admitted yet
  Rows candidates_;
  Now now_;
  std::uint64_t hits_ = 0, creations_ = 0, expired_ = 0, misses_ = 0, generation_ = 0;

  bool watching_ = false, saving_ = false, saving_delta_ = false;
  // Since the last snapshot: rows changed, rows made, and ids dropped that it has. Frozen: until the one being taken.
  Bits changed_, made_, frozen_changed_, frozen_made_, saved_;
  std::vector<std::int64_t> removed_, frozen_removed_;
  std::uint64_t save_from_ = 0;   // hashes before this one are saved
  Chunk aside_;                   // rows as they were when saving began
  std::size_t aside_at_ = 0;      // rows of it that were handed out
};

}  // namespace heterps::store
