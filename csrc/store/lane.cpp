#include "lane.hpp"

#include <algorithm>
#include <limits>

#include "hash.hpp"

namespace heterps::store {

namespace {

// Ids that are numbered, found and copied before the next ones: their rows stay in the nearest caches.
constexpr std::size_t kBlock = 1024;
constexpr std::size_t kAhead = 16;     // new ids whose buckets are fetched ahead
constexpr std::size_t kNear = 65536;   // rows, with their state, that caches hold for a while

std::uint32_t plus(std::uint32_t count, std::uint32_t more) {
  const std::uint32_t sum = count + more;
  return sum < count ? std::numeric_limits<std::uint32_t>::max() : sum;
}

// How long ago `then` was; 0 if it lies ahead, as that of a row from a snapshot may.
std::uint32_t since(std::uint32_t then, std::uint32_t now) { return now > then ? now - then : 0; }

// Moves the last rows into the gaps, so that the memory behind is given back; moved(id, to) tells of each.
template <typename Moved>
void compact(Rows& rows, const Index& index, Moved&& moved) {
  std::vector<std::int64_t> ids(rows.size());
  index.each(0, kLastHash, [&](std::int64_t id, std::uint32_t slot) { ids[slot] = id; });
  std::uint32_t end = rows.size();
  for (std::uint32_t hole = 0; hole < end; ++hole) {
    if (!rows.freed(hole)) continue;
    while (end > hole + 1 && rows.freed(end - 1)) --end;
    if (--end == hole) break;
    rows.copy(end, hole);
    moved(ids[end], end, hole);
  }
  rows.truncate(end);
}

}  // namespace

Counters& Counters::operator+=(const Counters& other) {
  rows += other.rows, bytes += other.bytes, candidates += other.candidates;
  hits += other.hits, creations += other.creations, expired += other.expired;
  return *this;
}

Lane::Lane(const Config& config)
    : config_(config),
      kernels_(kernels(config.dim, config.rule.kind)),
      rows_(config.dim, config.state_floats, config.tracks),
      candidates_(0, 0, true) {}

void Lane::first_value(std::int64_t id, float* row) const {
  if (config_.admit_after > 1) {
    std::fill_n(row, config_.dim, 0.0f);
  } else {
    init_row(config_.init_key, id, config_.init_scale, config_.dim, row);
  }
}

void Lane::first_state(float* state) const {
  const bool adagrad = config_.rule.kind == Kind::adagrad || config_.rule.kind == Kind::rowwise_adagrad;
  std::fill_n(state, config_.state_floats, adagrad ? config_.rule.initial_accumulator : 0.0f);
  if (config_.rule.kind == Kind::ftrl) {
    std::fill_n(state + config_.dim, config_.dim, config_.rule.initial_accumulator);
  }
}

void Lane::read(std::int64_t id, float* weights, float* state) const {
  const std::uint32_t slot = index_.find(id);
  if (slot == kNoSlot) {
    first_value(id, weights);
    first_state(state);
    return;
  }
  std::copy_n(rows_.weights(slot), config_.dim, weights);
  std::copy_n(rows_.state(slot), config_.state_floats, state);
}

void Lane::copy(const Distinct& call, float* out) const { kernels_.copy(call, rows_.view(), config_.dim, out); }

std::size_t Lane::find(const Distinct& call, float* out) const {
  return kernels_.find(call, index_.view(), rows_.view(), config_.dim, out);
}

void Lane::settle(Distinct call, Access access, Now now, float* out) {
  now_ = now;
  misses_ = 0;
  if (!config_.tracks) {
    make_missing_rows(call, out);
  } else {
    live(call, access);
    if (out != nullptr) kernels_.copy_distinct(call, rows_.view(), config_.dim, out);
  }
  if (access == Access::pull) hits_ -= misses_;
}

std::uint32_t Lane::create(std::int64_t id) {
  const std::uint32_t slot = rows_.take();
  if (saving_) saved_.set(slot);   // it is not of the moment that is being saved
  init_row(config_.init_key, id, config_.init_scale, config_.dim, rows_.weights(slot));
  first_state(rows_.state(slot));
  if (config_.tracks) rows_.life(slot) = {};
  index_.insert(id, slot);
  note(slot);
  if (watching_) made_.set(slot);
  ++creations_;
  return slot;
}

void Lane::drop(std::int64_t id, std::uint32_t slot) {
  protect(id, slot);
  index_.erase(id);
  rows_.give_up(slot);
  // A delta tells of those only that its parent has, so there are never more than that had rows.
  if (watching_ && !made_.get(slot)) removed_.push_back(id);
  ++expired_;
  ++generation_;
}

void Lane::drop_candidate(std::int64_t id, std::uint32_t slot) {
  candidate_index_.erase(id);
  candidates_.give_up(slot);
}

bool Lane::unseen(const Life& life, std::uint32_t steps, std::uint32_t seconds) const {
  return (steps > 0 && since(life.seen_step, now_.step) > steps) ||
         (seconds > 0 && since(life.seen_seconds, now_.seconds) > seconds);
}

bool Lane::expired(const Life& life) const { return unseen(life, config_.expire_steps, config_.expire_seconds); }

// An id without a row was seen: it gets one if that was often enough.
std::uint32_t Lane::admit(std::int64_t id, std::uint32_t times) {
  std::uint32_t candidate = candidate_index_.find(id);
  if (candidate == kNoSlot) {
    candidate = candidates_.take();
    candidates_.life(candidate) = {};
    candidate_index_.insert(id, candidate);
  } else if (expired(candidates_.life(candidate))) {
    candidates_.life(candidate) = {};
  }
  Life& life = candidates_.life(candidate);
  life.count = plus(life.count, times);
  seen(life);
  if (life.count < config_.admit_after) return kNoSlot;
  const std::uint32_t count = life.count - times;   // the row counts these sights itself
  drop_candidate(id, candidate);
  const std::uint32_t slot = create(id);
  rows_.life(slot).count = count;
  return slot;
}

// What a sight of an id, `times` over, does to its row: the slot it then has, if any.
std::uint32_t Lane::sight(std::int64_t id, std::uint32_t slot, Access access, std::uint32_t times) {
  if (slot != kNoSlot && expired(rows_.life(slot))) {
    if (access != Access::peek) drop(id, slot);
    slot = kNoSlot;
  }
  if (access == Access::peek) return slot;
  if (slot == kNoSlot) {
    const bool at_once = config_.admit_after <= 1;
    slot = at_once ? create(id) : access == Access::pull ? admit(id, times) : kNoSlot;
    misses_ += slot == kNoSlot ? times : 1;
    if (slot == kNoSlot) return slot;
  }
  protect(id, slot);
  note(slot);
  Life& life = rows_.life(slot);
  if (access == Access::pull) life.count = plus(life.count, times);
  seen(life);
  return slot;
}

void Lane::live(Distinct& call, Access access) {
  std::vector<std::uint32_t> times(call.distinct, 1);
  for (std::size_t r = 0; r < call.repeats; ++r) ++times[call.repeat_number[r]];
  for (std::size_t u = 0; u < call.distinct; ++u) {
    call.slot[u] = sight(call.id[u], call.slot[u], access, times[u]);
  }
}

void Lane::make_missing(Distinct& call, std::size_t from) {
  for (std::size_t u = from; u < call.distinct; ++u) {
    if (call.slot[u] != kNoSlot) continue;
    call.slot[u] = create(call.id[u]);
    ++misses_;
  }
}

void Lane::make_missing_rows(Distinct& call, float* out) {
  std::vector<std::uint32_t> missing;
  for (std::size_t u = 0; u < call.distinct; ++u) {
    if (call.slot[u] == kNoSlot) missing.push_back(static_cast<std::uint32_t>(u));
  }
  for (std::size_t m = 0; m < missing.size(); ++m) {
    if (m + kAhead < missing.size()) index_.fetch(call.id[missing[m + kAhead]]);
    const std::size_t u = missing[m];
    // Ids that were not told apart may be missing twice.
    if (call.number == nullptr) call.slot[u] = index_.find(call.id[u]);
    if (call.slot[u] != kNoSlot) continue;
    ++misses_;
    call.slot[u] = create(call.id[u]);
    if (out != nullptr) std::copy_n(rows_.weights(call.slot[u]), config_.dim, out + u * config_.dim);
  }
}

void Lane::resolve(Distinct& call, Access access, Now now, float* out) {
  now_ = now;
  if (access != Access::peek) grow_on(call.count);
  misses_ = 0;
  // Life depends on how often an id occurs in the whole call, so that is found out first where rows are tracked.
  const std::size_t block = config_.tracks ? std::max<std::size_t>(1, call.count) : kBlock;
  // Rows that are not copied at once are fetched only if they will still be near when all are known.
  const bool few = call.count <= kNear;
  std::size_t end = std::min(block, call.count), found = 0;
  kernels_.number(call, 0, end, 0, rows_.view(), config_.dim);
  kernels_.fetch(call, 0, index_.view());
  for (std::size_t begin = 0; begin < call.count;) {
    kernels_.probe(call, found, index_.view());
    if (config_.tracks) {
      live(call, access);
    } else if (access != Access::peek) {
      make_missing(call, found);
    }
    const std::size_t known = call.distinct, next = std::min(end + block, call.count);
    kernels_.number(call, end, next, out != nullptr || few ? found : known, rows_.view(), config_.dim);
    if (out != nullptr) {
      kernels_.gather(call, begin, end, known, index_.view(), rows_.view(), config_.dim, out);
    } else {
      kernels_.fetch(call, known, index_.view());
    }
    begin = end, end = next, found = known;
  }
  if (access == Access::pull) hits_ += call.count - misses_;
}

void Lane::note(const Distinct& call) {
  if (!watched()) return;
  for (std::size_t u = 0; u < call.distinct; ++u) {
    if (call.slot[u] == kNoSlot) continue;
    protect(call.id[u], call.slot[u]);
    note(call.slot[u]);
  }
}

void Lane::update(const Rule& rule, const Distinct& call, const Gradients& gradients) const {
  kernels_.update(rule, call, gradients, rows_.view(), config_.dim);
}

std::uint32_t Lane::count(std::int64_t id, Now now) {
  now_ = now;
  const std::uint32_t slot = index_.find(id), candidate = slot == kNoSlot ? candidate_index_.find(id) : kNoSlot;
  if (slot == kNoSlot && candidate == kNoSlot) return 0;
  const Life& life = slot != kNoSlot ? rows_.life(slot) : candidates_.life(candidate);
  return expired(life) ? 0 : life.count;
}

std::size_t Lane::shrink(const Shrink& rule, Now now) {
  now_ = now;
  const auto old = [&](const Life& life) {
    return expired(life) || unseen(life, rule.unseen_steps, rule.unseen_seconds);
  };
  std::vector<std::pair<std::int64_t, std::uint32_t>> rows, candidates;
  if (config_.tracks) {
    index_.each(0, kLastHash, [&](std::int64_t id, std::uint32_t slot) {
      if (old(rows_.life(slot)) || rows_.life(slot).count < rule.min_count) rows.emplace_back(id, slot);
    });
    candidate_index_.each(0, kLastHash, [&](std::int64_t id, std::uint32_t slot) {
      if (old(candidates_.life(slot))) candidates.emplace_back(id, slot);
    });
  }
  for (const auto& [id, slot] : rows) drop(id, slot);
  for (const auto& [id, slot] : candidates) drop_candidate(id, slot);
  compact(rows_, index_, [&](std::int64_t id, std::uint32_t from, std::uint32_t to) {
    index_.move(id, to);
    if (!watching_) return;
    changed_.set(to, changed_.get(from));
    made_.set(to, made_.get(from));
  });
  compact(candidates_, candidate_index_,
          [&](std::int64_t id, std::uint32_t, std::uint32_t to) { candidate_index_.move(id, to); });
  index_.fit();
  candidate_index_.fit();
  ++generation_;
  return rows.size();
}

Counters Lane::counters() const {
  return {.rows = rows_.live(),
          .bytes = rows_.bytes() + index_.bytes() + candidates_.bytes() + candidate_index_.bytes() + changed_.bytes() +
                   made_.bytes() + frozen_changed_.bytes() + frozen_made_.bytes() + saved_.bytes() +
                   (removed_.capacity() + frozen_removed_.capacity()) * sizeof(std::int64_t) +
                   (aside_.weights.capacity() + aside_.state.capacity()) * sizeof(float),
          .candidates = candidates_.live(),
          .hits = hits_,
          .creations = creations_,
          .expired = expired_};
}

}  // namespace heterps::store
