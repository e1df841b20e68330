// Memory of rows: segments that never move, freed slots that are used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <vector>

#include "views.hpp"

namespace heterps::store {

// Kept for each row of a table that tracks.
struct Life {
  std::uint32_t count = 0;         // sights
  std::uint32_t seen_step = 0;
  std::uint32_t seen_seconds = 0;
};

class Bits {
 public:
  bool get(std::size_t i) const { return i / 64 < words_.size() && (words_[i / 64] >> (i % 64) & 1); }
  void set(std::size_t i, bool value = true) {
    if (i / 64 >= words_.size()) words_.resize(i / 64 + 1 + words_.size() / 2);
    const std::uint64_t bit = std::uint64_t{1} << (i % 64);
    words_[i / 64] = value ? words_[i / 64] | bit : words_[i / 64] & ~bit;
  }
  void clear() { words_.clear(); }
  void merge(const Bits& other) {
    if (words_.size() < other.words_.size()) words_.resize(other.words_.size());
    for (std::size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
  }
  std::size_t bytes() const { return words_.size() * sizeof(std::uint64_t); }

 private:
  std::vector<std::uint64_t> words_;
};

class Rows {
 public:
  Rows(int dim, int state_floats, bool tracks);
  ~Rows() { truncate(0); }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  // Stays where it is; its fields change when slots are taken.
  const RowView& view() const { return view_; }
  std::uint32_t size() const { return size_; }                       // slots, freed ones included
  std::size_t live() const { return size_ - free_.size(); }

  // A freed slot, or a new one at the end, with whatever it held before.
  std::uint32_t take();
  void give_up(std::uint32_t slot);
  bool freed(std::uint32_t slot) const { return freed_.get(slot); }
  // Copies all of one slot to another.
  void copy(std::uint32_t from, std::uint32_t to);
  // Keeps the first `size` slots, none of which is free, and gives back the memory behind.
  void truncate(std::uint32_t size);
  // Memory in use.
  std::size_t bytes() const;

  float* weights(std::uint32_t slot) const { return view_.weights(slot); }
  float* state(std::uint32_t slot) const { return view_.state(slot); }
  Life& life(std::uint32_t slot) const {
    return reinterpret_cast<Life*>(segments_[slot >> RowView::kShift] + life_begin_)[RowView::within(slot)];
  }

 private:
  std::byte* segment(std::size_t number);
  void look_ahead();
  std::size_t slot_bytes() const;

  RowView view_;
  bool tracks_;
  std::size_t life_begin_, segment_bytes_;
  std::uint32_t size_ = 0;
  std::size_t touched_ = 0, next_look_ = 0;    // slots: asked for ahead, and when to ask again
  std::vector<std::byte*> segments_;
  std::future<void*> next_;                    // segment
  std::vector<std::uint32_t> free_;
  Bits freed_;
};

}  // namespace heterps::store
