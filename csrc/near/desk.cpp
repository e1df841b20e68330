#include "desk.hpp"

#include <cstring>

namespace heterps::near {

std::optional<std::uint64_t> Desk::post(const Order& order, Milliseconds most) {
  const std::lock_guard lock(posting_);
  const std::uint64_t number = memory_.posted.orders.load(std::memory_order_relaxed);
  Entry& entry = memory_.at(number);
  const auto closed = [&] { return memory_.closed.yes.load(std::memory_order_acquire) != 0; };
  const auto free = [&] { return closed() || entry.state.load(std::memory_order_acquire) != State::open; };
  if (!wait_until(memory_.bell, most, free)) return std::nullopt;
  if (closed()) return kRefused;
  entry.number = number;
  entry.order = order;
  entry.why[0] = '\0';
  entry.state.store(State::open, std::memory_order_relaxed);
  memory_.posted.orders.store(number + 1, std::memory_order_release);
  clerk_.ring();
  return number;
}

State Desk::wait(std::uint64_t number, Milliseconds most) {
  if (number == kRefused) return State::failed;
  State found = State::open;
  wait_until(memory_.bell, most, [&] {
    // Closed first: what was done before it was closed is then seen to be done.
    const bool closed = memory_.closed.yes.load(std::memory_order_acquire) != 0;
    found = memory_.at(number).state.load(std::memory_order_acquire);
    if (memory_.posted.orders.load(std::memory_order_acquire) > number + kEntries) found = State::done;
    if (found == State::open && closed) found = State::failed;
    return found != State::open;
  });
  return found;
}

std::string Desk::why(std::uint64_t number) {
  const Entry& entry = memory_.at(number);
  const bool taken = number != kRefused && entry.state.load(std::memory_order_acquire) != State::open;
  const char* const why = taken ? entry.why : memory_.closed.why;
  return {why, strnlen(why, kWhy)};
}

}  // namespace heterps::near
