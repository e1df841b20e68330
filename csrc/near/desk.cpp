#include "desk.hpp"

#include <cstring>

namespace heterps::near {

std::optional<std::uint64_t> Desk::post(const Order& order, Milliseconds most) {
  const std::lock_guard lock(posting_);
  const std::uint64_t number = memory_.posted.orders.load(std::memory_order_relaxed);
  Entry& entry = memory_.at(number);
  const auto free = [&] {
    return entry.state.load(std::memory_order_acquire) != State::open || memory_.closed.yes.load() != 0;
  };
  if (!wait_until(memory_.bell, most, free)) return std::nullopt;
  entry.number = number;
  entry.order = order;
  entry.why[0] = '\0';
  entry.state.store(State::open, std::memory_order_relaxed);
  memory_.posted.orders.store(number + 1, std::memory_order_release);
  clerk_.ring();
  return number;
}

State Desk::wait(std::uint64_t number, Milliseconds most) {
  State found = State::open;
  wait_until(memory_.bell, most, [&] {
    Entry& entry = memory_.at(number);
    found = entry.state.load(std::memory_order_acquire);
    if (memory_.posted.orders.load(std::memory_order_acquire) > number + kEntries) found = State::done;
    if (found == State::open && memory_.closed.yes.load(std::memory_order_acquire) != 0) found = State::failed;
    return found != State::open;
  });
  return found;
}

std::string Desk::why(std::uint64_t number) {
  const Entry& entry = memory_.at(number);
  const char* const why = entry.state.load(std::memory_order_acquire) == State::open ? memory_.closed.why : entry.why;
  return {why, strnlen(why, kWhy)};
}

}  // namespace heterps::near
