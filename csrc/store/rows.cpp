#include "rows.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "memory.hpp"

namespace heterps::store {

namespace {

constexpr std::size_t kRows = std::size_t{1} << RowView::kShift;
// Slots that are asked for ahead at a time: a segment's regions are whole megabytes, so these are whole pages.
constexpr std::size_t kStep = kRows / 32;

}  // namespace

Rows::Rows(int dim, int state_floats, bool tracks) : tracks_(tracks) {
  view_.row_bytes = sizeof(float) * dim;
  view_.state_bytes = sizeof(float) * state_floats;
  view_.state_begin = view_.row_bytes * kRows;
  life_begin_ = view_.state_begin + view_.state_bytes * kRows;
  segment_bytes_ = life_begin_ + (tracks ? sizeof(Life) * kRows : 0);
}

std::size_t Rows::slot_bytes() const { return segment_bytes_ / kRows; }

std::byte* Rows::segment(std::size_t number) {
  while (segments_.size() <= number) {
    void* memory = next_.valid() ? next_.get() : allocate(segment_bytes_);
    segments_.push_back(static_cast<std::byte*>(memory));
    view_.segments = segments_.data();
  }
  // A table with half a segment of rows will soon need another one.
  if (!next_.valid() && size_ > kRows * number + kRows / 2) next_ = allocate_later(segment_bytes_, false);
  return segments_[number];
}

// Asks for the memory of the slots that will be used next, in each of a segment's regions.
void Rows::look_ahead() {
  next_look_ = size_ + kStep / 2;
  const std::size_t ahead = lookahead(size_ * slot_bytes()) / slot_bytes() / kStep * kStep;
  for (touched_ = std::max<std::size_t>(touched_, size_ / kStep * kStep); touched_ < size_ + ahead; touched_ += kStep) {
    std::byte* base = segment(touched_ >> RowView::kShift);
    const std::size_t at = touched_ & (kRows - 1);
    touch_later(base + at * view_.row_bytes, kStep * view_.row_bytes);
    touch_later(base + view_.state_begin + at * view_.state_bytes, kStep * view_.state_bytes);
    if (tracks_) touch_later(base + life_begin_ + at * sizeof(Life), kStep * sizeof(Life));
  }
}

std::uint32_t Rows::take() {
  if (!free_.empty()) {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    freed_.set(slot, false);
    return slot;
  }
  if (size_ == kMostSlots) throw std::length_error("a table's lane holds at most 4,294,967,280 rows; use more shards");
  segment(size_ >> RowView::kShift);
  if (size_ >= next_look_) look_ahead();
  return size_++;
}

void Rows::give_up(std::uint32_t slot) {
  free_.push_back(slot);
  freed_.set(slot);
}

void Rows::copy(std::uint32_t from, std::uint32_t to) {
  std::memcpy(weights(to), weights(from), view_.row_bytes);
  std::memcpy(state(to), state(from), view_.state_bytes);
  if (tracks_) life(to) = life(from);
}

void Rows::truncate(std::uint32_t size) {
  size_ = size;
  touched_ = next_look_ = 0;
  free_.clear();
  free_.shrink_to_fit();
  freed_.clear();
  while (!segments_.empty() && (segments_.size() - 1) << RowView::kShift >= size_) {
    release(segments_.back(), segment_bytes_);
    segments_.pop_back();
  }
  view_.segments = segments_.data();
  if (next_.valid()) release(next_.get(), segment_bytes_);
}

std::size_t Rows::bytes() const {
  return size_ * slot_bytes() + free_.capacity() * sizeof(std::uint32_t) + freed_.bytes();
}

}  // namespace heterps::store
