// Saving and loading a table, chunk by chunk, while other calls go on.
#include "table.hpp"

namespace heterps::store {

std::unique_lock<std::mutex> Table::begin_saving() {
  std::unique_lock lock(mutex_);
  saved_.wait(lock, [&] { return !saving_; });
  saving_ = true;
  saving_lane_ = 0;
  return lock;
}

Table::Beginning Table::begin_save(bool delta, std::uint32_t seconds) {
  const auto lock = begin_saving();
  Beginning out{.now = advance(seconds), .removed = {}, .candidates = {}};
  for (const auto& lane : lanes_) {
    lane->begin_save(delta);
    const auto& removed = lane->removed_before_save();
    out.removed.insert(out.removed.end(), removed.begin(), removed.end());
    lane->save_candidates(out.candidates);
  }
  return out;
}

void Table::begin_scan() {
  const auto lock = begin_saving();
  for (const auto& lane : lanes_) lane->begin_scan();
}

Chunk Table::save_some(std::size_t most) {
  const std::lock_guard lock(mutex_);
  Chunk chunk;
  while (saving_lane_ < lanes_.size() && chunk.ids.size() < most) {
    if (!lanes_[saving_lane_]->save_some(most, chunk)) ++saving_lane_;
  }
  return chunk;
}

void Table::end_save(bool succeeded) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& lane : lanes_) lane->end_save(succeeded);
    saving_ = false;
  }
  saved_.notify_all();
}

void Table::begin_load(bool clear, Now saved, std::uint32_t seconds) {
  std::unique_lock lock(mutex_);
  saved_.wait(lock, [&] { return !saving_; });
  steps_ = saved.step;
  seconds_ = saved.seconds;
  ahead_ = std::int64_t{saved.seconds} - seconds;
  for (const auto& lane : lanes_) {
    if (clear) lane->clear();
    lane->clear_candidates();
  }
}

void Table::insert(const Chunk& chunk) {
  const std::lock_guard lock(mutex_);
  const std::size_t dim = config_.dim, state = config_.state_floats;
  for (std::size_t i = 0; i < chunk.ids.size(); ++i) {
    lane(chunk.ids[i])
        .insert(chunk.ids[i], chunk.weights.data() + i * dim, chunk.state.data() + i * state,
                chunk.life.empty() ? nullptr : &chunk.life[i]);
  }
}

void Table::insert_candidates(const Chunk& chunk) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < chunk.ids.size(); ++i) {
    lane(chunk.ids[i]).insert_candidate(chunk.ids[i], chunk.life[i]);
  }
}

void Table::remove(const std::vector<std::int64_t>& ids) {
  const std::lock_guard lock(mutex_);
  for (const std::int64_t id : ids) lane(id).remove(id);
}

void Table::end_load() {
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    lane->reset_counters();
    lane->watch_changes();
  }
}

}  // namespace heterps::store
