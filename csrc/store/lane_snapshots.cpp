// Snapshots of a lane, taken while its rows change, and what loads them.
#include "lane.hpp"

#include <algorithm>

namespace heterps::store {

void Lane::append(std::int64_t id, std::uint32_t slot, Chunk& chunk) const {
  chunk.ids.push_back(id);
  chunk.weights.insert(chunk.weights.end(), rows_.weights(slot), rows_.weights(slot) + config_.dim);
  chunk.state.insert(chunk.state.end(), rows_.state(slot), rows_.state(slot) + config_.state_floats);
  if (config_.tracks) chunk.life.push_back(rows_.life(slot));
}

void Lane::protect(std::int64_t id, std::uint32_t slot) {
  if (!saving_ || saved_.get(slot)) return;
  saved_.set(slot);
  if (!saving_delta_ || frozen_changed_.get(slot)) append(id, slot, aside_);
}

void Lane::watch_changes() {
  watching_ = true;
  changed_.clear();
  made_.clear();
  removed_.clear();
}

void Lane::begin_scan() {
  saving_ = true;
  saving_delta_ = false;
  save_from_ = 0;
}

void Lane::begin_save(bool delta) {
  begin_scan();
  saving_delta_ = delta;
  frozen_changed_ = std::move(changed_);
  frozen_made_ = std::move(made_);
  frozen_removed_ = std::move(removed_);
  watch_changes();
}

// Rows are saved in the order of their ids' hashes, which growing does not change; those copied aside come last.
bool Lane::save_some(std::size_t most, Chunk& chunk) {
  const std::uint64_t rows = std::max<std::uint64_t>(1, index_.size());
  const std::uint64_t stretch = rows <= most ? kLastHash : kLastHash / rows * most;
  while (save_from_ != kLastHash && chunk.ids.size() < most) {
    const std::uint64_t to = kLastHash - save_from_ <= stretch ? kLastHash : save_from_ + stretch;
    index_.each(save_from_, to, [&](std::int64_t id, std::uint32_t slot) {
      if (saved_.get(slot)) return;
      saved_.set(slot);
      if (!saving_delta_ || frozen_changed_.get(slot)) append(id, slot, chunk);
    });
    save_from_ = to;
  }
  if (save_from_ != kLastHash) return true;
  const auto add = [&](auto& to, const auto& from, std::size_t width, std::size_t count) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(aside_at_ * width);
    to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(count * width));
  };
  const std::size_t room = most - std::min(most, chunk.ids.size());
  const std::size_t count = std::min(room, aside_.ids.size() - aside_at_);
  add(chunk.ids, aside_.ids, 1, count);
  add(chunk.weights, aside_.weights, config_.dim, count);
  add(chunk.state, aside_.state, config_.state_floats, count);
  if (config_.tracks) add(chunk.life, aside_.life, 1, count);
  aside_at_ += count;
  return aside_at_ < aside_.ids.size();
}

void Lane::end_save(bool succeeded) {
  if (!succeeded) {   // what was to be saved is still to be saved
    changed_.merge(frozen_changed_);
    made_.merge(frozen_made_);
    removed_.insert(removed_.end(), frozen_removed_.begin(), frozen_removed_.end());
    std::sort(removed_.begin(), removed_.end());
    removed_.erase(std::unique(removed_.begin(), removed_.end()), removed_.end());
  }
  saving_ = false;
  saved_ = {};
  frozen_changed_ = {};
  frozen_made_ = {};
  frozen_removed_ = {};
  aside_ = {};
  aside_at_ = 0;
}

void Lane::insert(std::int64_t id, const float* weights, const float* state, const Life* life) {
  std::uint32_t slot = index_.find(id);
  if (slot == kNoSlot) slot = create(id);
  protect(id, slot);
  note(slot);
  std::copy_n(weights, config_.dim, rows_.weights(slot));
  std::copy_n(state, config_.state_floats, rows_.state(slot));
  if (!config_.tracks) return;
  if (life != nullptr) {
    rows_.life(slot) = *life;
  } else {
    seen(rows_.life(slot));
  }
}

void Lane::remove(std::int64_t id) {
  if (const std::uint32_t slot = index_.find(id); slot != kNoSlot) drop(id, slot);
}

void Lane::save_candidates(Chunk& chunk) const {
  candidate_index_.each(0, kLastHash, [&](std::int64_t id, std::uint32_t slot) {
    chunk.ids.push_back(id);
    chunk.life.push_back(candidates_.life(slot));
  });
}

void Lane::insert_candidate(std::int64_t id, const Life& life) {
  std::uint32_t slot = candidate_index_.find(id);
  if (slot == kNoSlot) {
    slot = candidates_.take();
    candidate_index_.insert(id, slot);
  }
  candidates_.life(slot) = life;
}

void Lane::clear_candidates() {
  candidates_.truncate(0);
  candidate_index_.clear();
}

void Lane::clear() {
  clear_candidates();
  rows_.truncate(0);
  index_.clear();
  ++generation_;
}

}  // namespace heterps::store
