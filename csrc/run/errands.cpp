#include "errands.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

namespace heterps::run {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Errands::Errands(store::Table& table, std::size_t lag, Await await, std::function<void()> done)
    : table_(table), lag_(lag), await_(await), done_(std::move(done)) {
  const auto pull = [this] { return pulls_ < first_ + exchanges_.size() && pulls_ < pushes_ + lag_; };
  const auto push = [this] { return pushes_ < returned_; };
  puller_ = std::thread([this, pull] { serve(pulls_, pull, &Errands::run_pull); });
  pusher_ = std::thread([this, push] { serve(pushes_, push, &Errands::run_push); });
}

void Errands::serve(std::size_t& done, const std::function<bool()>& ready, void (Errands::*work)(Exchange&)) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || ready(); });
    if (stop_) return;
    Exchange& exchange = at(done);   // stays where it is while others come and go
    lock.unlock();
    std::exception_ptr error;
    try {
      (this->*work)(exchange);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) {
      error_ = error_ ? error_ : error;
      stop_ = true;
    } else {
      ++done;
    }
    changed_.notify_all();
    lock.unlock();
    done_();
    lock.lock();
  }
}

void Errands::run_pull(Exchange& exchange) {
  exchange.pull.began = now();
  const auto [distinct, ticket] =
      table_.pull_distinct(exchange.ids, exchange.count, exchange.number, exchange.rows, exchange.seconds);
  exchange.ticket = ticket;
  exchange.pull.distinct = exchange.push.distinct = distinct;
  exchange.pull.ended = now();
}

void Errands::run_push(Exchange& exchange) {
  if (exchange.event != nullptr) {
    if (const int code = await_(exchange.event); code != 0) {
      throw std::runtime_error("gradients did not arrive from the device: error " + std::to_string(code));
    }
  }
  exchange.push.began = now();
  if (exchange.lr) table_.set_lr(*exchange.lr);
  table_.push_distinct(exchange.ids, exchange.count, exchange.ticket, exchange.grads, exchange.pull.distinct,
                       exchange.push_seconds);
  exchange.push.ended = now();
}

void Errands::pull(const std::int64_t* ids, std::size_t count, std::int32_t* number, float* rows,
                   std::uint32_t seconds) {
  const std::lock_guard lock(mutex_);
  exchanges_.push_back({ids, count, number, rows, seconds, 0, {}, {}, nullptr, nullptr, {}, 0});
  changed_.notify_all();
}

void Errands::push(const float* grads, void* event, std::optional<float> lr, std::uint32_t seconds) {
  const std::lock_guard lock(mutex_);
  if (returned_ == pulls_) throw std::invalid_argument("gradients of rows that were not pulled");
  Exchange& exchange = at(returned_++);
  exchange.grads = grads;
  exchange.event = event;
  exchange.lr = lr;
  exchange.push_seconds = seconds;
  changed_.notify_all();
}

std::optional<Errands::Done> Errands::taken(std::size_t& next, std::size_t done, Done Exchange::*which) {
  if (error_) std::rethrow_exception(error_);
  if (next == done) return std::nullopt;
  return at(next++).*which;
}

std::optional<Errands::Done> Errands::pulled() {
  const std::lock_guard lock(mutex_);
  return taken(pulls_taken_, pulls_, &Exchange::pull);
}

std::optional<Errands::Done> Errands::pushed() {
  const std::lock_guard lock(mutex_);
  const std::optional<Done> found = taken(pushes_taken_, pushes_, &Exchange::push);
  for (; first_ < std::min(pushes_taken_, pulls_taken_); ++first_) exchanges_.pop_front();
  return found;
}

void Errands::close() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (puller_.joinable()) puller_.join();
  if (pusher_.joinable()) pusher_.join();
}

}  // namespace heterps::run
