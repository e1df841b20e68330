// Exchange of distinct rows only, for callers that spread rows and add up gradients themselves.
#include "table.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace heterps::store {

namespace {

// Parts of a lane's ids: a thread that is held up leaves some to the others, and what a part is numbered in stays in a
// core's own caches.
constexpr std::size_t kParts = 2;

}  // namespace

// Numbers are written by stretches of the call, not by shares, so that no two threads write to one cache line.
void Table::write_numbers(const Batch& batch, std::size_t stretch, std::int32_t* number) const {
  if (batch.shares.size() == 1) {
    std::copy_n(batch.number.data(), batch.shares[0].count, number);
    return;
  }
  for (std::size_t s = 0; s < batch.shares.size(); ++s) {
    const Share& share = batch.shares[s];
    const std::size_t begin = stretch > 0 ? ends_[stretch - 1][s] : share.begin;
    for (std::size_t at = begin; at < ends_[stretch][s]; ++at) {
      number[batch.position[at]] = static_cast<std::int32_t>(share.before + batch.number[at]);
    }
  }
}

// Numbers the distinct ids of a call, and does nothing to the table.
void Table::number(const std::int64_t* ids, std::size_t count, Batch& batch) {
  share_out(ids, count, batch, lanes_.size() == 1 ? 1 : kParts);
  batch.make_room(count, config_.tracks);
  each_share(batch, [&](std::size_t s, Scratch& scratch) {
    Share& share = batch.shares[s];
    Distinct call = numbering(batch, s, scratch, batch.shares.size() == 1 ? ids : shared_.data() + share.begin);
    if (!config_.tracks) call.first = nullptr;
    kernels_.number(call, 0, share.count, 0, {}, config_.dim);
    share.distinct = call.distinct;
    share.repeats = call.repeats;
  });
  numbered(batch);
}

// Finds the rows of a numbered call, makes those that are missing, and copies them to `out`, if given; along with that
// it writes their numbers, if asked for.
void Table::find(Batch& batch, Lane::Access access, std::uint32_t seconds, float* out, std::int32_t* number) {
  const std::size_t dim = config_.dim, parts = batch.shares.size() / lanes_.size();
  const auto place = [&](std::size_t s) { return out == nullptr ? nullptr : out + batch.shares[s].before * dim; };
  if (std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->growing(); })) {
    each([&](int l, Scratch&) { lanes_[l]->grow_on(batch.shares[l * parts].count * parts); });
  }
  std::atomic<std::size_t> missing = 0;
  each_share(batch, [&](std::size_t s, Scratch&) {
    if (number != nullptr && s % parts == 0) write_numbers(batch, s / parts, number);
    missing += lane_of_share(batch, s).find(batch.view(s), config_.tracks ? nullptr : place(s));
  });
  if (config_.tracks || missing > 0) {
    const Now now = advance(seconds);
    each([&](int l, Scratch&) {
      for (std::size_t s = l * parts; s < (l + 1) * parts; ++s) {
        lanes_[l]->settle(batch.view(s), access, now, place(s));
      }
    });
  }
  for (std::size_t s = 0; s < batch.shares.size(); ++s) {
    Lane& lane = lane_of_share(batch, s);
    if (access == Lane::Access::pull) lane.count_hits(batch.shares[s].count);
    batch.shares[s].generation = lane.generation();
  }
}

Table::Pulled Table::pull_distinct(const std::int64_t* ids, std::size_t count, std::int32_t* number, float* rows,
                                   std::uint32_t seconds) {
  const std::lock_guard lock(mutex_);
  Batch& batch = next_batch(count);
  batch.ids.clear();
  this->number(ids, count, batch);
  find(batch, Lane::Access::pull, seconds, rows, number);
  batch.number_of_call = ++batches_;
  batch.valid = !config_.tracks;   // there a push is a sight of its own
  batch.prepared = false;
  return {batch.distinct(), batch.number_of_call};
}

void Table::push_distinct(const std::int64_t* ids, std::size_t count, std::uint64_t ticket, const float* grads,
                          std::size_t distinct, std::uint32_t seconds) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const Batch& batch) {
    return batch.valid && batch.number_of_call == ticket && is_current(batch);
  });
  const bool known = found != recent_.end();
  Batch& batch = known ? *found : scratch_;
  if (!known) number(ids, count, batch);
  if (batch.distinct() != distinct) throw std::invalid_argument("not as many gradients as distinct ids");
  if (!known) {
    remember_more(count);
    find(batch, Lane::Access::push, seconds, nullptr, nullptr);
  }
  batch.valid = false;
  const std::size_t parts = batch.shares.size() / lanes_.size();
  if (lanes_.front()->watched()) {
    each([&](int l, Scratch&) {
      for (std::size_t s = l * parts; s < (l + 1) * parts; ++s) lanes_[l]->note(batch.view(s));
    });
  }
  each_share(batch, [&](std::size_t s, Scratch& scratch) {
    scratch.sums.resize(std::max<std::size_t>(scratch.sums.size(), config_.dim));
    const float* own = grads + batch.shares[s].before * config_.dim;
    lane_of_share(batch, s).update(config_.rule, batch.view(s),
                                   {own, nullptr, nullptr, nullptr, scratch.sums.data(), true});
  });
  ++steps_;
}

}  // namespace heterps::store
