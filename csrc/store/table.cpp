#include "table.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "hash.hpp"
#include "numbering.hpp"

namespace heterps::store {

namespace {

// So many lanes at most find their own ids each; of more, the ids are brought together by all.
constexpr std::size_t kChoosing = 4 * kLanes;
// Where more than this part of the ids are distinct, they are not told apart, but for every so many'th call.
constexpr double kHardly = 0.9;
constexpr std::uint64_t kSeldom = 16;
// Between what two lanes write: they may write a little too far, and share no cache line.
constexpr std::size_t kApart = 16;

void check_size(std::size_t count) {
  if (count > kMostSlots) throw std::length_error("a call takes at most 4,294,967,280 ids");
}

}  // namespace

Table::Table(const Config& config, int threads)
    : config_(config), pool_(threads), kernels_(kernels(config.dim, config.rule.kind)), scratches_(threads) {
  const std::size_t lanes = threads == 1 ? 1 : threads * kLanes;
  for (std::size_t i = 0; i < lanes; ++i) lanes_.push_back(std::make_unique<Lane>(config));
  ends_.resize(lanes_.size());
  order_.resize(lanes_.size());
  std::iota(order_.begin(), order_.end(), 0);
}

// The table's time. It never goes back: a call that waited for another has looked at the clock before it.
Now Table::advance(std::uint32_t seconds) {
  seconds_ = static_cast<std::uint32_t>(std::max<std::int64_t>(seconds_, seconds + ahead_));
  return {steps_, seconds_};
}

Lane& Table::lane(std::int64_t id) { return *lanes_[lane_of(id, lanes_.size())]; }

Lane& Table::lane_of_share(const Batch& batch, std::size_t share) const {
  return *lanes_[share * lanes_.size() / batch.shares.size()];
}

// Work for each lane, or for each of as many stretches of a call.
void Table::each(const std::function<void(int, Scratch&)>& work) {
  pool_.run(static_cast<int>(lanes_.size()), [&](int piece, int thread) { work(order_[piece], scratches_[thread]); });
}

void Table::each_share(const Batch& batch, const std::function<void(std::size_t, Scratch&)>& work) {
  pool_.run(static_cast<int>(batch.shares.size()), [&](int share, int thread) { work(share, scratches_[thread]); });
}

void Table::Batch::make_room(std::size_t ids, bool repeats) {
  const auto grow = [&](auto& words) {
    if (words.size() < ids) words.resize(ids);
  };
  grow(number), grow(slot), grow(id);
  if (repeats) grow(first), grow(repeat_position), grow(repeat_number);
}

Distinct Table::Batch::view(std::size_t share) {
  const Share& own = shares[share];
  const auto at = [&](auto& words) { return words.empty() ? nullptr : words.data() + own.begin; };
  std::uint32_t* const place = shares.size() > 1 ? at(position) : nullptr;
  return {nullptr, place, own.count, told_apart ? at(number) : nullptr, at(id), at(slot), told_apart ? at(first) : place,
          own.distinct, at(repeat_position), at(repeat_number), own.repeats, nullptr, nullptr, nullptr, 0};
}

std::size_t Table::Batch::distinct() const { return shares.back().before + shares.back().distinct; }

// Brings together the ids of each lane, in so many parts, and in the order of the call.
void Table::share_out(const std::int64_t* ids, std::size_t count, Batch& batch, std::size_t parts) {
  check_size(count);
  const std::size_t lanes = lanes_.size(), shares = lanes * parts;
  batch.shares.resize(shares);
  const bool keeps = !batch.ids.empty();   // what it is known by
  if (shares == 1) {
    batch.shares[0].begin = 0;
    batch.shares[0].count = count;
    if (keeps) std::copy_n(ids, count, batch.ids.data());
    return;
  }
  shared_.resize(std::max(shared_.size(), count));
  share_.resize(std::max(share_.size(), count));
  batch.position.resize(std::max(batch.position.size(), count));
  const auto stretch = [&](int t) { return std::pair{count * t / lanes, count * (t + 1) / lanes}; };
  each([&](int t, Scratch&) {
    const auto [begin, end] = stretch(t);
    ends_[t].assign(4 * shares, 0);
    // A lane's parts are neighbours: the share of an id among all of them says its lane, too.
    kernels_.share(ids + begin, end - begin, shares, share_.data() + begin, ends_[t].data());
    if (keeps) std::copy(ids + begin, ids + end, batch.ids.data() + begin);
  });
  std::uint32_t at = 0;
  for (std::size_t s = 0; s < shares; ++s) {
    batch.shares[s].begin = at;
    for (auto& ends : ends_) at += std::exchange(ends[s], at);
    batch.shares[s].count = at - batch.shares[s].begin;
  }
  each([&](int t, Scratch&) {
    const auto [begin, end] = stretch(t);
    std::uint32_t* const next = ends_[t].data();
    std::int64_t* const shared = shared_.data();
    std::uint32_t* const position = batch.position.data();
    const std::uint16_t* const share = share_.data();
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint32_t to = next[share[i]]++;
      shared[to] = ids[i];
      position[to] = static_cast<std::uint32_t>(i);
    }
  });
}

// Finds the ids of a thread's lanes among all: no threads wait for each other, nor for what another one's caches hold.
void Table::choose(const std::int64_t* ids, std::size_t count, Batch& batch, std::size_t thread,
                   Chosen (&chosen)[kLanes]) {
  const std::size_t threads = lanes_.size() / kLanes, room = count + kApart;
  const std::size_t begin = count * thread / threads, end = count * (thread + 1) / threads;
  if (!batch.ids.empty()) std::copy(ids + begin, ids + end, batch.ids.data() + begin);
  for (std::size_t k = 0; k < kLanes; ++k) {
    const std::size_t lane = order_[kLanes * thread + k];
    batch.shares[lane].begin = lane * room;
    chosen[k] = {lane, batch.position.data() + lane * room};
  }
  kernels_.choose(ids, count, lanes_.size(), chosen);
  for (const Chosen& one : chosen) batch.shares[one.lane].count = one.count;
}

// Room to number the ids of a share in.
Distinct Table::numbering(Batch& batch, std::size_t share, Scratch& scratch, const std::int64_t* ids) const {
  Distinct call = batch.view(share);
  call.ids = ids;
  call.distinct = call.repeats = 0;
  // Four times the distinct ids that are to be expected, in steps of powers of two: chains cost more than caches.
  call.table_bits = 10;
  const auto expected = static_cast<std::size_t>(distinct_ * static_cast<double>(call.count));
  const std::size_t entries = std::max(call.count + call.count / 8, 4 * expected);
  while (std::size_t{1} << call.table_bits < entries) ++call.table_bits;
  scratch.table.assign(std::size_t{1} << call.table_bits, kNoSlot);
  call.table = scratch.table.data();
  return call;
}

// Sums up what the shares found.
void Table::numbered(Batch& batch) {
  std::size_t count = 0, distinct = 0;
  for (Share& share : batch.shares) {
    share.before = distinct;
    count += share.count, distinct += share.distinct;
  }
  if (count > 0) distinct_ = static_cast<double>(distinct) / static_cast<double>(count);
}

// Work for each lane on its ids of a call, which lie side by side, or in the call (`spread`).
void Table::each_own(const std::int64_t* ids, std::size_t count, Batch& batch, const LaneWork& work) {
  check_size(count);
  batch.count = count;
  if (lanes_.size() > 1 && lanes_.size() <= kChoosing) {
    const std::size_t room = lanes_.size() * (count + kApart);   // of which only what is used takes memory
    batch.shares.resize(lanes_.size());
    batch.position.resize(std::max(batch.position.size(), room));
    batch.make_room(room, true);
    pool_.run(pool_.threads(), [&](int piece, int thread) {
      Chosen chosen[kLanes];
      choose(ids, count, batch, piece, chosen);
      for (const Chosen& one : chosen) work(one.lane, ids, true, scratches_[thread]);
    });
  } else {
    share_out(ids, count, batch, 1);
    batch.make_room(count, true);
    each([&](int l, Scratch& scratch) {
      work(l, lanes_.size() == 1 ? ids : shared_.data() + batch.shares[l].begin, false, scratch);
    });
  }
  if (lanes_.size() > 1) deal(batch);
}

void Table::resolve(const std::int64_t* ids, std::size_t count, Batch& batch, float* out, Lane::Access access,
                    std::uint32_t seconds) {
  const Now now = advance(seconds);
  each_own(ids, count, batch, [&](std::size_t lane, const std::int64_t* own, bool spread, Scratch& scratch) {
    Share& share = batch.shares[lane];
    Distinct call = numbering(batch, lane, scratch, own);
    call.spread = spread;
    if (scratch.behind.size() < call.count) scratch.behind.resize(call.count), scratch.home.resize(call.count);
    call.behind = scratch.behind.data();
    call.home = scratch.home.data();
    lanes_[lane]->resolve(call, access, now, out);
    share.distinct = call.distinct;
    share.repeats = call.repeats;
    share.generation = lanes_[lane]->generation();
  });
  numbered(batch);
}

// The same for a pull of ids that hardly repeat: they are not told apart, which takes as long as to find them. Each gets
// the slot of its row; who pushes joins those of the same row.
void Table::spot(const std::int64_t* ids, std::size_t count, Batch& batch, std::uint32_t seconds) {
  const Now now = advance(seconds);
  batch.told_apart = false;
  each_own(ids, count, batch, [&](std::size_t l, const std::int64_t* own, bool spread, Scratch&) {
    Share& share = batch.shares[l];
    Lane& lane = *lanes_[l];
    std::int64_t* const id = batch.id.data() + share.begin;
    const std::uint32_t* const position = batch.position.data() + share.begin;
    for (std::size_t i = 0; i < share.count; ++i) id[i] = own[spread ? position[i] : i];
    share.distinct = share.count;
    share.repeats = 0;
    if (lane.growing()) lane.grow_on(share.count);
    const Distinct call = batch.view(l);
    if (lane.find(call, nullptr) > 0) lane.settle(call, Lane::Access::pull, now, nullptr);
    lane.count_hits(share.count);
    share.generation = lane.generation();
  });
}

// Deals the lanes out to threads for the next call, by the ids that each had in this one: ids are as frequent as they were.
// A thread gets the lanes of one rank from the front and one from the back. Lanes that stay find their rows in the caches, so
// little is not worth it.
void Table::deal(const Batch& batch) {
  const auto ids = [&](int lane) { return batch.shares[lane].count; };
  const auto most = [&](const std::vector<int>& order) {   // ids of a thread
    std::size_t most = 0;
    for (std::size_t i = 0; i < order.size(); i += kLanes) most = std::max(most, ids(order[i]) + ids(order[i + 1]));
    return most;
  };
  std::vector<int> ranks(order_), dealt(order_);
  std::sort(ranks.begin(), ranks.end(), [&](int one, int other) { return ids(one) > ids(other); });
  for (std::size_t rank = 0; rank < ranks.size() / 2; ++rank) {
    dealt[kLanes * rank] = ranks[rank];
    dealt[kLanes * rank + 1] = ranks[ranks.size() - 1 - rank];
  }
  if (most(dealt) + most(dealt) / 32 < most(order_)) order_ = dealt;
}

void Table::fill_first_values(const std::int64_t* ids, Batch& batch, float* out) {
  each([&](int l, Scratch&) {
    const Distinct call = batch.view(l);
    for (std::size_t i = 0; i < call.count; ++i) {
      if (call.slot[call.number[i]] != kNoSlot) continue;
      const std::size_t p = call.position == nullptr ? i : call.position[i];
      lanes_[l]->first_value(ids[p], out + p * config_.dim);
    }
  });
}

void Table::pull(const std::int64_t* ids, std::size_t count, float* out, bool create, std::uint32_t seconds) {
  const std::lock_guard lock(mutex_);
  if (!create) {
    resolve(ids, count, scratch_, out, Lane::Access::peek, seconds);
    fill_first_values(ids, scratch_, out);
    return;
  }
  if (Batch* batch = recall(ids, count, true); batch != nullptr) {
    batch->prepared = false;
    each([&](int l, Scratch&) { lanes_[l]->copy(batch->view(l), out); });
    return;
  }
  Batch& batch = next_batch(count);
  if (hardly_repeat()) {
    spot(ids, count, batch, seconds);
    each([&](int l, Scratch&) { lanes_[l]->copy(batch.view(l), out); });
  } else {
    resolve(ids, count, batch, out, Lane::Access::pull, seconds);
  }
  remember(batch);
}

void Table::prepare(const std::int64_t* ids, std::size_t count, std::uint32_t seconds) {
  const std::lock_guard lock(mutex_);
  if (config_.tracks) return;   // there a pull is a sight, which counts when it happens
  Batch& batch = next_batch(count);
  if (hardly_repeat()) {
    spot(ids, count, batch, seconds);
  } else {
    resolve(ids, count, batch, nullptr, Lane::Access::pull, seconds);
  }
  remember(batch);
  batch.prepared = true;
}

// Whether ids of the last calls that told them apart were almost all distinct. Now and then a call does, to know.
bool Table::hardly_repeat() const { return !config_.tracks && distinct_ > kHardly && batches_ % kSeldom != 0; }

void Table::peek(const std::int64_t* ids, std::size_t count, float* weights, float* state) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < count; ++i) {
    lane(ids[i]).read(ids[i], weights + i * config_.dim, state + i * config_.state_floats);
  }
}

void Table::put(const std::int64_t* ids, std::size_t count, const float* weights, const float* state,
                std::uint32_t seconds) {
  const std::lock_guard lock(mutex_);
  const Now now = advance(seconds);
  for (std::size_t i = 0; i < count; ++i) {
    lane(ids[i]).put(ids[i], weights + i * config_.dim, state + i * config_.state_floats, now);
  }
}

// One that was pushed already, so that its memory is in the caches, or else the oldest; for so many ids.
Table::Batch& Table::next_batch(std::size_t count) {
  const auto free = std::find_if(recent_.begin(), recent_.end(), [](const Batch& batch) { return !batch.valid; });
  std::size_t remembered = count;
  for (const Batch& batch : recent_) remembered += batch.valid ? batch.count : 0;
  const bool room = remembered <= most_remembered_ || remembered == count;
  Batch& batch = free != recent_.end() && room
                     ? *free
                     : *std::min_element(recent_.begin(), recent_.end(), [](const Batch& one, const Batch& other) {
                         return one.valid != other.valid ? one.valid : one.number_of_call < other.number_of_call;
                       });
  if (batch.valid && batch.prepared) remember_more(batch.count);   // it was looked up in vain
  batch.valid = false;
  batch.told_apart = true;
  batch.count = count;
  batch.ids.resize(count);
  return batch;
}

// What was asked for had been forgotten.
void Table::remember_more(std::size_t count) {
  if (most_remembered_ < recent_.size() * count) most_remembered_ += count;
}

void Table::remember(Batch& batch) {
  if (config_.tracks) return;   // there a push is a sight of its own
  batch.number_of_call = ++batches_;
  batch.valid = true;
  batch.prepared = false;
}

// The oldest remembered batch of these ids whose rows are still where they were.
Table::Batch* Table::recall(const std::int64_t* ids, std::size_t count, bool prepared) {
  Batch* found = nullptr;
  for (Batch& batch : recent_) {
    // One that is known by its number alone has a count, but no ids.
    if (!batch.valid || batch.prepared != prepared || batch.count != count || batch.ids.size() != count) continue;
    if (found != nullptr && found->number_of_call < batch.number_of_call) continue;
    if (is_current(batch) && std::equal(ids, ids + count, batch.ids.data())) found = &batch;
  }
  if (found == nullptr && !prepared) remember_more(count);
  return found;
}

bool Table::is_current(const Batch& batch) const {
  for (std::size_t s = 0; s < batch.shares.size(); ++s) {
    if (batch.shares[s].generation != lane_of_share(batch, s).generation()) return false;
  }
  return true;
}

std::vector<const float*> Table::locate(const std::int64_t* ids, std::size_t count, Batch& batch, bool create,
                                        std::vector<float>& firsts) {
  std::vector<const float*> rows(count, nullptr);
  each([&](int l, Scratch&) {
    const Distinct call = batch.view(l);
    for (std::size_t i = 0; i < call.count; ++i) {
      const std::uint32_t slot = call.slot[call.number[i]];
      if (slot != kNoSlot) rows[call.position == nullptr ? i : call.position[i]] = lanes_[l]->weights(slot);
    }
  });
  if (create) return rows;
  const std::size_t missing = std::count(rows.begin(), rows.end(), nullptr);
  firsts.resize(missing * config_.dim);
  float* next = firsts.data();
  for (std::size_t p = 0; p < count; ++p) {
    if (rows[p] != nullptr) continue;
    lane(ids[p]).first_value(ids[p], next);
    rows[p] = next;
    next += config_.dim;
  }
  return rows;
}

void Table::bag(const std::int64_t* ids, std::size_t count, const std::int64_t* offsets, std::size_t bags, bool mean,
                float* out, bool create, std::uint32_t seconds) {
  const std::lock_guard lock(mutex_);
  Batch& batch = create ? next_batch(count) : scratch_;
  resolve(ids, count, batch, nullptr, create ? Lane::Access::pull : Lane::Access::peek, seconds);
  if (create) remember(batch);
  std::vector<float> firsts;
  const std::vector<const float*> rows = locate(ids, count, batch, create, firsts);
  each([&](int t, Scratch&) {
    const std::size_t begin = bags * t / lanes_.size(), end = bags * (t + 1) / lanes_.size();
    for (std::size_t b = begin; b < end; ++b) {
      const std::size_t from = offsets[b], to = b + 1 < bags ? offsets[b + 1] : count;
      kernels_.pool(rows.data() + from, to - from, mean, out + b * config_.dim, config_.dim);
    }
  });
}

void Table::set_lr(float lr) {
  const std::lock_guard lock(mutex_);
  config_.rule.lr = lr;
}

void Table::counts(const std::int64_t* ids, std::size_t count, std::int64_t* out, std::uint32_t seconds) {
  const std::lock_guard lock(mutex_);
  const Now now = advance(seconds);
  for (std::size_t i = 0; i < count; ++i) out[i] = lane(ids[i]).count(ids[i], now);
}

std::size_t Table::shrink(const Shrink& rule, std::uint32_t seconds) {
  std::unique_lock lock(mutex_);
  saved_.wait(lock, [&] { return !saving_; });
  const Now now = advance(seconds);
  std::vector<std::size_t> dropped(lanes_.size());
  each([&](int l, Scratch&) { dropped[l] = lanes_[l]->shrink(rule, now); });
  std::size_t total = 0;
  for (const std::size_t some : dropped) total += some;
  return total;
}

Stats Table::stats() {
  const std::lock_guard lock(mutex_);
  Stats out{.counters = {}, .steps = steps_};
  for (const auto& lane : lanes_) out.counters += lane->counters();
  return out;
}

std::size_t distinct(const std::int64_t* ids, std::size_t count, std::int64_t* unique, std::uint32_t* number) {
  static const Kernels run = kernels(0, Kind::sgd);
  Distinct call = Numbering::of_this_thread().call(ids, count);
  call.number = number;
  run.number(call, 0, count, 0, {}, 0);
  std::copy_n(call.id, call.distinct, unique);
  return call.distinct;
}

void sum_by_number(const float* grads, const std::uint32_t* number, std::size_t count, int dim, float* sums) {
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float* grad = grads + i * dim;
    float* sum = sums + static_cast<std::size_t>(number[i]) * dim;
    if (number[i] == next) {
      std::copy_n(grad, dim, sum);
      ++next;
    } else {
      for (int j = 0; j < dim; ++j) sum[j] += grad[j];
    }
  }
}

}  // namespace heterps::store
