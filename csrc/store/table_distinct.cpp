// Exchange of distinct rows only, for callers that spread rows and add up gradients themselves.
#include "table.hpp"

#include <algorithm>
#include <stdexcept>

namespace heterps::store {

namespace {

constexpr int kPieces = 4;   // of a lane's rows: a thread that is held up leaves some to the others

}  // namespace

// Work for pieces of all distinct rows: it gets its number, a lane, some of its distinct ids, and the number of the first.
void Table::each_piece(Batch& batch, const std::function<void(int, Lane&, const Distinct&, std::size_t)>& work) {
  std::vector<std::size_t> first(lanes_.size());
  for (std::size_t l = 1; l < lanes_.size(); ++l) first[l] = first[l - 1] + batch.shares[l - 1].distinct;
  pool_.run(kPieces * static_cast<int>(lanes_.size()), [&](int piece) {
    const std::size_t l = piece / kPieces, k = piece % kPieces, distinct = batch.shares[l].distinct;
    const std::size_t begin = distinct * k / kPieces, end = distinct * (k + 1) / kPieces;
    Distinct some = batch.shares[l].view();
    some.id += begin, some.slot += begin, some.distinct = end - begin;
    work(piece, *lanes_[l], some, first[l] + begin);
  });
}

// Numbers are written by stretches of the call, not by lanes, so that no two threads write to one cache line.
void Table::write_numbers(const Batch& batch, std::size_t stretch, std::int32_t* number) const {
  std::uint32_t first = 0;   // number of the lane's first distinct id
  for (std::size_t l = 0; l < lanes_.size(); first += batch.shares[l++].distinct) {
    const Share& share = batch.shares[l];
    if (share.position == nullptr) {
      std::copy_n(share.number.data(), share.count, number);
      return;
    }
    const std::uint32_t begin = share.position - batch.position.data();
    for (std::uint32_t at = stretch > 0 ? ends_[stretch - 1][l] : begin; at < ends_[stretch][l]; ++at) {
      number[batch.position[at]] = static_cast<std::int32_t>(first + share.number[at - begin]);
    }
  }
}

Table::Pulled Table::pull_distinct(const std::int64_t* ids, std::size_t count, std::int32_t* number, float* rows,
                                   std::uint32_t seconds) {
  const std::lock_guard lock(mutex_);
  Batch& batch = next_batch(count);
  batch.ids.clear();
  resolve(ids, count, batch, nullptr, Lane::Access::pull, seconds, true);
  each_piece(batch, [&](int piece, Lane& lane, const Distinct& some, std::size_t first) {
    if (piece % kPieces == 0) write_numbers(batch, piece / kPieces, number);
    lane.copy_distinct(some, rows + first * config_.dim);
  });
  batch.number = ++batches_;
  batch.valid = !config_.tracks;   // there a push is a sight of its own
  batch.prepared = false;
  std::size_t distinct = 0;
  for (const Share& share : batch.shares) distinct += share.distinct;
  return {distinct, batch.number};
}

void Table::push_distinct(const std::int64_t* ids, std::size_t count, std::uint64_t ticket, const float* grads,
                          std::size_t distinct, std::uint32_t seconds) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const Batch& batch) {
    return batch.valid && batch.number == ticket && is_current(batch);
  });
  Batch& batch = found != recent_.end() ? *found : scratch_;
  if (found == recent_.end()) {
    remember_more(count);
    resolve(ids, count, batch, nullptr, Lane::Access::push, seconds, true);
  }
  batch.valid = false;
  std::size_t total = 0;
  for (const Share& share : batch.shares) total += share.distinct;
  if (total != distinct) throw std::invalid_argument("not as many gradients as distinct ids");
  if (lanes_.front()->watched()) each([&](int l) { lanes_[l]->note(batch.shares[l].view()); });
  each_piece(batch, [&](int, Lane& lane, const Distinct& some, std::size_t first) {
    std::vector<float> scratch(config_.dim);
    const Gradients own{grads + first * config_.dim, nullptr, nullptr, nullptr, scratch.data(), nullptr, true};
    lane.update(config_.rule, some, own);
  });
  ++steps_;
}

}  // namespace heterps::store
