#include "circle.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace heterps::near {

namespace {

// Sums that a member may be ahead of the slowest one: of one that is computed, one that is late, and the next of each.
constexpr std::uint64_t kSlots = 4;

std::size_t lines(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

std::size_t slot_bytes(const std::vector<std::size_t>& floats) {
  const std::size_t all = std::accumulate(floats.begin(), floats.end(), std::size_t{0});
  return lines(floats.size()) + lines(all * sizeof(float));
}

}  // namespace

std::size_t Circle::bytes(const std::vector<std::size_t>& floats) {
  return sizeof(Header) + kSlots * slot_bytes(floats);
}

Circle::Circle(std::vector<std::byte*> members, std::size_t me, std::vector<std::size_t> floats)
    : members_(std::move(members)), me_(me), floats_(std::move(floats)), marks_(lines(floats_.size())),
      slot_bytes_(slot_bytes(floats_)) {
  if (me_ >= members_.size()) throw std::invalid_argument("no such member");
}

std::byte* Circle::slot(std::size_t member, std::uint64_t number) const {
  return members_[member] + sizeof(Header) + number % kSlots * slot_bytes_;
}

bool Circle::put(const std::vector<const float*>& arrays, Milliseconds most) {
  if (arrays.size() != floats_.size()) throw std::invalid_argument("other arrays than the circle adds up");
  Header& own = header(me_);
  const std::uint64_t number = own.put.sums.load(std::memory_order_relaxed);
  for (std::size_t member = 0; member < members_.size(); ++member) {
    Header& other = header(member);
    const bool room = wait_until(other.bell, most, [&] {
      return other.taken.sums.load(std::memory_order_acquire) + kSlots > number;
    });
    if (!room) return false;
  }
  std::byte* const marks = slot(me_, number);
  float* at = reinterpret_cast<float*>(marks + marks_);
  for (std::size_t k = 0; k < arrays.size(); ++k) {
    marks[k] = std::byte{arrays[k] != nullptr};
    if (arrays[k] != nullptr) std::memcpy(at, arrays[k], floats_[k] * sizeof(float));
    at += floats_[k];
  }
  own.put.sums.store(number + 1, std::memory_order_release);
  own.bell.ring();
  return true;
}

bool Circle::wait(std::uint64_t number, Milliseconds most) {
  return std::all_of(members_.begin(), members_.end(), [&](std::byte* member) {
    Header& other = *reinterpret_cast<Header*>(member);
    return wait_until(other.bell, most, [&] { return other.put.sums.load(std::memory_order_acquire) > number; });
  });
}

std::vector<bool> Circle::take(std::uint64_t number, const std::vector<float*>& sums) {
  if (sums.size() != floats_.size()) throw std::invalid_argument("other arrays than the circle adds up");
  std::vector<bool> missing(floats_.size(), true);
  std::size_t at = 0;
  for (std::size_t k = 0; k < floats_.size(); ++k) {
    float* const to = sums[k];
    std::size_t there = 0;
    for (std::size_t member = 0; member < members_.size(); ++member) {
      const std::byte* const put = slot(member, number);
      if (put[k] == std::byte{0}) continue;
      const float* const from = reinterpret_cast<const float*>(put + marks_) + at;
      if (there++ == 0) {
        std::copy_n(from, floats_[k], to);   // of no floats there is no memory
      } else {
        for (std::size_t i = 0; i < floats_[k]; ++i) to[i] += from[i];
      }
    }
    missing[k] = there == 0;
    if (there > 0 && there < members_.size()) {   // the others' zeros, which make a zero positive
      for (std::size_t i = 0; i < floats_[k]; ++i) to[i] += 0.0f;
    }
    at += floats_[k];
  }
  header(me_).taken.sums.store(number + 1, std::memory_order_release);
  header(me_).bell.ring();
  return missing;
}

}  // namespace heterps::near
