#include "clerk.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

namespace heterps::near {

namespace {

// Blocks of memory begin a line behind their mark, which is zero when they are free (heterps/ps/shared.py).
constexpr std::size_t kAlign = 64;
constexpr Milliseconds kLongest{1000};   // of a sleep

bool inside(std::uint64_t place, std::uint64_t bytes, std::uint64_t all) {
  return place >= 2 * kAlign && place % kAlign == 0 && place <= all && bytes <= all - place;
}

void write(char (&to)[kWhy], const std::string& why) {
  const std::size_t length = std::min(why.size(), kWhy - 1);
  std::memcpy(to, why.data(), length);
  to[length] = '\0';
}

}  // namespace

Clerk::Clerk(store::Table& table, std::size_t dim, std::byte* bell, std::uint32_t parts, std::int64_t applied,
             std::function<std::uint32_t()> seconds)
    : table_(table), dim_(dim), bell_(*reinterpret_cast<Bell*>(bell)), parts_(parts), applied_(applied),
      seconds_(std::move(seconds)), thread_([this] { run(); }) {}

void Clerk::serve(std::byte* memory, std::size_t bytes, std::size_t desk) {
  if (!inside(desk, sizeof(DeskMemory), bytes)) throw std::invalid_argument("a desk outside of the client's memory");
  const std::lock_guard lock(mutex_);
  clients_.push_back(std::make_unique<Client>(Client{memory, bytes, reinterpret_cast<DeskMemory*>(memory + desk)}));
  bell_.ring();
}

void Clerk::close(const std::string& why) {
  stop_ = true;
  bell_.ring();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  for (const auto& [_, step] : std::exchange(steps_, {})) {
    for (const auto& [__, part] : step) finish(part, why);
  }
  for (const Open& ask : std::exchange(asks_, {})) finish(ask, why);
  for (const auto& client : clients_) {   // those that it has not taken fail by this
    auto& closed = client->desk->closed;
    if (closed.yes.load(std::memory_order_relaxed) == 0) write(closed.why, why);
    closed.yes.store(1, std::memory_order_release);
    client->rings = true;
  }
  ring();
}

void Clerk::run() {
  while (!stop_) {
    const std::uint32_t heard = bell_.heard();
    if (!turn() && !stop_) bell_.wait(heard, kLongest);
  }
}

// Takes the orders that are there; false if there were none.
bool Clerk::turn() {
  const std::lock_guard lock(mutex_);
  bool any = false;
  for (const auto& client : clients_) {
    const std::uint64_t posted = client->desk->posted.orders.load(std::memory_order_acquire);
    if (posted - client->taken > kEntries) continue;   // broken: whoever waits there waits for ever
    for (; client->taken < posted; ++client->taken) {
      take(*client, client->desk->at(client->taken));
      any = true;
    }
  }
  ring();
  return any;
}

void Clerk::take(Client& client, Entry& entry) {
  const Open open{&client, &entry, entry.order};
  ++client.open;
  try {
    if (client.open > kEntries) throw std::invalid_argument("too many orders are open");
    check(client, open.order);
    if (open.order.kind == Kind::part) {
      add(open);
    } else if (open.order.step <= applied_) {
      give(open);
    } else {
      table_.prepare(ids(open), open.order.count, seconds_());
      asks_.push_back(open);
    }
  } catch (const std::exception& error) {
    finish(open, error.what());
  }
}

void Clerk::check(const Client& client, const Order& order) const {
  if (order.kind != Kind::ask && order.kind != Kind::part) throw std::invalid_argument("no such order");
  if (order.count == 0) return;
  if (order.count > client.bytes / sizeof(std::int64_t) ||
      !inside(order.ids, order.count * sizeof(std::int64_t), client.bytes) ||
      !inside(order.rows, order.count * dim_ * sizeof(float), client.bytes)) {
    throw std::invalid_argument("ids or rows outside of the client's memory");
  }
}

void Clerk::add(const Open& part) {
  const Order& order = part.order;
  if (order.step <= applied_) throw std::invalid_argument("step " + std::to_string(order.step) + " is over");
  if (order.part >= parts_) throw std::invalid_argument("part " + std::to_string(order.part) + " does not exist");
  if (order.has_lr && !(std::isfinite(order.lr) && order.lr >= 0)) throw std::invalid_argument("lr: a number from 0 on");
  if (!steps_[order.step].emplace(order.part, part).second) {
    throw std::invalid_argument("part " + std::to_string(order.part) + " of step " + std::to_string(order.step) +
                                " is here already");
  }
  while (!steps_.empty() && steps_.begin()->second.size() == parts_) {
    const Step step = std::move(steps_.begin()->second);
    applied_ = steps_.begin()->first;
    steps_.erase(steps_.begin());
    std::string why;
    try {
      apply(step);
    } catch (const std::exception& error) {
      why = error.what();
    }
    for (const auto& [_, one] : step) finish(one, why);
    std::vector<Open> due;
    std::erase_if(asks_, [&](const Open& ask) { return ask.order.step <= applied_ && (due.push_back(ask), true); });
    for (const Open& ask : due) {
      try {
        give(ask);
      } catch (const std::exception& error) {
        finish(ask, error.what());
      }
    }
  }
}

// One push of all parts, in their order, at the learning rate that they name.
void Clerk::apply(const Step& step) {
  std::vector<store::Table::Part> parts;
  std::size_t count = 0;
  for (const auto& [_, part] : step) {
    if (part.order.has_lr) table_.set_lr(part.order.lr);
    if (part.order.count == 0) continue;
    parts.push_back({ids(part), part.order.count, rows(part)});
    count += part.order.count;
  }
  if (parts.size() > 1 && table_.push_parts(parts)) return;
  if (parts.size() == 1) return table_.push(parts[0].ids, count, parts[0].grads, seconds_());
  std::vector<std::int64_t> all(count);
  std::vector<float> grads(count * dim_);
  std::size_t at = 0;
  for (const store::Table::Part& part : parts) {
    std::copy_n(part.ids, part.count, all.data() + at);
    std::copy_n(part.grads, part.count * dim_, grads.data() + at * dim_);
    at += part.count;
  }
  table_.push(all.data(), count, grads.data(), seconds_());
}

void Clerk::give(const Open& ask) {
  table_.pull(ids(ask), ask.order.count, rows(ask), true, seconds_());
  repeats_ += ask.order.repeats;
  finish(ask, {});
}

// Says what has become of an order. The blocks of a part are free again: its ids, which were asked for, and gradients.
void Clerk::finish(const Open& open, const std::string& why) {
  if (open.order.kind == Kind::part) {
    for (const std::uint64_t place : {open.order.ids, open.order.rows}) {
      if (!inside(place, 0, open.client->bytes)) continue;
      std::atomic_ref(open.client->memory[place - kAlign]).store(std::byte{0}, std::memory_order_release);
    }
  }
  write(open.entry->why, why);
  open.entry->state.store(why.empty() ? State::done : State::failed, std::memory_order_release);
  open.client->rings = true;
  --open.client->open;
}

// Answers leave together: who has its rows first would only take cores from those who wait for theirs.
void Clerk::ring() {
  for (const auto& client : clients_) {
    if (std::exchange(client->rings, false)) client->desk->bell.ring();
  }
}

}  // namespace heterps::near
