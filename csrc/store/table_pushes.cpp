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
  update(resolved_for_push(ids, count, seconds), grads, nullptr, nullptr);
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
  const std::size_t dim = config_.dim;
  scratch_.shares.resize(lanes_.size());
  std::size_t count = 0;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    Share& share = scratch_.shares[l];
    share.begin = count;
    for (const Batch* pull : pulls) count += pull->shares[l].distinct + pull->shares[l].repeats;
    share.count = count - share.begin;
  }
  scratch_.make_room(count, true);
  each([&](int l, Scratch& scratch) {
    Share& share = scratch_.shares[l];
    scratch.id.resize(share.count), scratch.slot.resize(share.count), scratch.grad.resize(share.count);
    for (std::size_t k = 0, at = 0; k < parts.size(); ++k) {
      const Distinct own = pulls[k]->view(l);
      std::copy_n(own.id, own.distinct, scratch.id.data() + at);
      std::copy_n(own.slot, own.distinct, scratch.slot.data() + at);
      for (std::size_t u = 0; u < own.distinct; ++u) scratch.grad[at++] = parts[k].grads + own.first[u] * dim;
      for (std::size_t r = 0; r < own.repeats; ++r) {   // ids that a part has again follow its others: the sum is the same
        scratch.id[at] = own.id[own.repeat_number[r]];
        scratch.slot[at] = own.slot[own.repeat_number[r]];
        scratch.grad[at++] = parts[k].grads + own.repeat_position[r] * dim;
      }
    }
    Distinct call = numbering(scratch_, l, scratch, scratch.id.data());
    call.position = nullptr;   // all of the parts
    kernels_.number(call, 0, share.count, 0, {}, config_.dim);
    for (std::size_t u = 0; u < call.distinct; ++u) call.slot[u] = scratch.slot[call.first[u]];
    scratch.rank.assign(call.distinct, kNoSlot);
    const std::size_t floats = (call.repeats + 1) * dim;
    if (scratch.sums.size() < floats) scratch.sums.resize(floats);
    lanes_[l]->note(call);
    lanes_[l]->update(config_.rule, call,
                      {nullptr, nullptr, nullptr, scratch.rank.data(), scratch.sums.data(), scratch.grad.data()});
  });
  ++steps_;
  return true;
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
  update(resolved_for_push(ids, count, seconds), grads, row_of.data(), mean ? scale.data() : nullptr);
}

}  // namespace heterps::store
