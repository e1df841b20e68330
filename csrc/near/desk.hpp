// A client's orders to a clerk of the same machine (clerk.hpp), and what has become of them, in memory that both have
// mapped: no message is sent, and only who waits is woken.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "bell.hpp"

namespace heterps::near {

enum class Kind : std::uint32_t {
  ask,    // rows as they are when a step is applied
  part,   // gradients of a step
};

// Places are offsets in the client's memory.
struct Order {
  Kind kind;
  std::uint32_t part;       // its number among those of a step
  std::int64_t step;
  std::uint64_t count;      // of ids
  std::uint64_t ids, rows;  // places: of rows to be written, or of gradients
  std::uint64_t repeats;    // of an ask: ids that were left out, as they occur again
  float lr;                 // of a part: the learning rate from this step on
  std::uint32_t has_lr;
};

enum class State : std::uint32_t { none, open, done, failed };

constexpr std::size_t kWhy = 160;

struct alignas(64) Entry {
  std::atomic<State> state;
  std::uint64_t number;
  Order order;
  char why[kWhy];   // it failed
};

constexpr std::uint64_t kEntries = 256;   // orders that a client may have open
constexpr std::uint64_t kRefused = ~std::uint64_t{0};   // the number of an order that a closed desk did not take

// Zero before the client begins.
struct DeskMemory {
  struct alignas(64) {
    std::atomic<std::uint64_t> orders;
  } posted;
  Bell bell;        // rings when orders are done
  struct alignas(64) {
    std::atomic<std::uint32_t> yes;
    char why[kWhy];
  } closed;         // the clerk takes no order any more
  Entry entries[kEntries];

  Entry& at(std::uint64_t number) { return entries[number % kEntries]; }
};

// The client's side; for several threads.
class Desk {
 public:
  // The clerk's bell lies in the server's memory.
  Desk(std::byte* memory, std::byte* clerk)
      : memory_(*reinterpret_cast<DeskMemory*>(memory)), clerk_(*reinterpret_cast<Bell*>(clerk)) {}

  // Gives an order, and its number; none if as many as there may be stayed open all that time. At a closed desk it fails.
  std::optional<std::uint64_t> post(const Order& order, Milliseconds most);
  // What has become of an order, after some time at the latest. One that is long past was done, or its failure told.
  State wait(std::uint64_t number, Milliseconds most);
  std::string why(std::uint64_t number);

 private:
  DeskMemory& memory_;
  Bell& clerk_;
  std::mutex posting_;
};

}  // namespace heterps::near
