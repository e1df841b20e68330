// Sums over processes of one machine: each puts its arrays down in memory that all have mapped, and takes all up.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bell.hpp"

namespace heterps::near {

// One member. All have the same arrays, and put down and take up the same sums in the same order.
class Circle {
 public:
  // Bytes of a member's memory, for arrays of so many floats.
  static std::size_t bytes(const std::vector<std::size_t>& floats);

  // The memory of each member, zero when the first of them begins; it must stay.
  Circle(std::vector<std::byte*> members, std::size_t me, std::vector<std::size_t> floats);

  // Puts down the arrays of the next sum; null for one that this member has not. False if a member that is far behind
  // left no room for it in time.
  bool put(const std::vector<const float*>& arrays, Milliseconds most);
  // Whether all members have put theirs down for a sum, by its number from 0; after some time at the latest.
  bool wait(std::uint64_t number, Milliseconds most);
  // The sums, in the order of members, of what `wait` found; says of which arrays no member had one.
  std::vector<bool> take(std::uint64_t number, const std::vector<float*>& sums);

 private:
  struct alignas(64) Count {
    std::atomic<std::uint64_t> sums;
  };
  struct Header {
    Bell bell;     // rings when this member has put something down, or taken it up
    Count put;
    Count taken;
  };
  Header& header(std::size_t member) const { return *reinterpret_cast<Header*>(members_[member]); }
  // Of a sum: a byte for each array, whether it is there, and their floats.
  std::byte* slot(std::size_t member, std::uint64_t number) const;

  const std::vector<std::byte*> members_;
  const std::size_t me_;
  const std::vector<std::size_t> floats_;
  std::size_t marks_, slot_bytes_;
};

}  // namespace heterps::near
