// Pushes: gradients of equal ids are added up, and each row follows its own once.
#include "table.hpp"

#include <algorithm>

namespace heterps::store {

// A push mostly has the ids of a recent pull, whose rows are then known.
Table::Batch& Table::resolved_for_push(const std::int64_t* ids, std::size_t count, std::uint32_t seconds) {
  if (Batch* batch = recall(ids, count, false); batch != nullptr) {
    batch->valid = false;
    return *batch;
  }
  resolve(ids, count, scratch_, nullptr, Lane::Access::push, seconds);
  return scratch_;
}

void Table::update(Batch& batch, const float* grads, const std::uint32_t* row_of, const float* scale) {
  each([&](int l, Scratch& scratch) {
    const Distinct call = batch.view(l);
    scratch.rank.assign(call.distinct, kNoSlot);
    const std::size_t floats = (call.repeats + 1) * config_.dim;
    if (scratch.sums.size() < floats) scratch.sums.resize(floats);
    lanes_[l]->note(call);
    lanes_[l]->update(config_.rule, call, {grads, row_of, scale, scratch.rank.data(), scratch.sums.data()});
  });
  ++steps_;
}

void Table::push(const std::int64_t* ids, std::size_t count, const float* grads, std::uint32_t seconds) {
  const std::lock_guard lock(mutex_);
  Batch& batch = resolved_for_push(ids, count, seconds);
  batch.told_apart ? update(batch, grads, nullptr, nullptr) : update({&batch}, {{ids, count, grads}});
}

// The pulls of all parts, which are then used up; none unless all are remembered.
std::vector<Table::Batch*> Table::recall_parts(const std::vector<Part>& parts) {
  std::vector<Batch*> found;
  for (const Part& part : parts) {
    Batch* batch = recall(part.ids, part.count, false);
    if (batch == nullptr) {
      for (Batch* other : found) other->valid = true;
      return {};
    }
    batch->valid = false;
    found.push_back(batch);
  }
  return found;
}

bool Table::push_parts(const std::vector<Part>& parts) {
  const std::lock_guard lock(mutex_);
  const std::vector<Batch*> pulls = recall_parts(parts);
  if (pulls.empty()) return false;
  update(pulls, parts);
  return true;
}

// Nothing is looked up: the rows are told apart by their slots, which takes a small part of what their ids would.
void Table::update(const std::vector<Batch*>& pulls, const std::vector<Part>& parts) {
  each([&](int l, Scratch& scratch) {
    scratch.pieces.clear();
    std::size_t count = 1;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      scratch.pieces.push_back({pulls[k]->view(l), parts[k].grads});
      count += scratch.pieces.back().pull.distinct + scratch.pieces.back().pull.repeats;
      lanes_[l]->note(scratch.pieces.back().pull);
    }
    Joint joint = scratch.room_to_join(count);
    kernels_.join(scratch.pieces.data(), parts.size(), joint, scratch.seen.data(), scratch.table.data(), config_.dim);
    const std::size_t floats = (joint.repeats + 1) * config_.dim;
    if (scratch.sums.size() < floats) scratch.sums.resize(floats);
    float* const sums = scratch.sums.data();
    kernels_.add_up(joint, sums, config_.dim);
    Distinct call{};
    call.slot = joint.slot;
    call.distinct = joint.distinct;
    lanes_[l]->update(config_.rule, call,
                      {nullptr, nullptr, nullptr, nullptr, sums + joint.repeats * config_.dim, true, joint.grad});
  });
  ++steps_;
}

Joint Table::Scratch::room_to_join(std::size_t count) {
  const auto grow = [](auto& words, std::size_t least) {
    if (words.size() < least) words.resize(least);
  };
  grow(slot, count), grow(again, count), grow(grad, count), grow(grad_again, count);
  grow(seen, count / 4 + 64);
  grow(table, 4 * count + 64);
  return {slot.data(), grad.data(), 0, again.data(), grad_again.data(), 0};
}

void Table::push_bag(const std::int64_t* ids, std::size_t count, const std::int64_t* offsets, std::size_t bags,
                     bool mean, const float* grads, std::uint32_t seconds) {
  std::vector<std::uint32_t> row_of(count);
  std::vector<float> scale(mean ? count : 0);
  for (std::size_t b = 0; b < bags; ++b) {
    const std::size_t from = offsets[b], to = b + 1 < bags ? offsets[b + 1] : count;
    std::fill(row_of.begin() + from, row_of.begin() + to, static_cast<std::uint32_t>(b));
    if (mean) std::fill(scale.begin() + from, scale.begin() + to, 1.0f / static_cast<float>(to - from));
  }
  const std::lock_guard lock(mutex_);
  Batch* batch = &resolved_for_push(ids, count, seconds);
  if (!batch->told_apart) resolve(ids, count, *(batch = &scratch_), nullptr, Lane::Access::push, seconds);
  update(*batch, grads, row_of.data(), mean ? scale.data() : nullptr);
}

}  // namespace heterps::store
