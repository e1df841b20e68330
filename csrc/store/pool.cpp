#include "pool.hpp"

#include <chrono>

namespace heterps::store {

namespace {

// Long enough for the next piece of a call, or for the push after a pull; short enough not to take a core from others.
constexpr auto kAwake = std::chrono::microseconds(50);

// Waits for the condition, awake at first; false if it did not come to hold.
template <typename Condition>
bool wait_awake(Condition&& holds) {
  const auto until = std::chrono::steady_clock::now() + kAwake;
  while (!holds()) {
    for (int i = 0; i < 32; ++i) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    if (std::chrono::steady_clock::now() > until) return holds();
  }
  return true;
}

}  // namespace

Pool::Pool(int threads) : next_(threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { serve(i); });
}

Pool::~Pool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::attempt(int number) {
  const int threads = static_cast<int>(next_.size());
  try {
    for (int other = number; other < number + threads; ++other) {
      const int whose = other % threads, end = pieces_ * (whose + 1) / threads;
      for (int piece; (piece = next_[whose].piece++) < end;) (*work_)(piece);
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void Pool::serve(int number) {
  std::uint64_t seen = 0;
  const auto called = [&] { return stop_.load() || round_.load() != seen; };
  while (true) {
    if (!wait_awake(called)) {
      std::unique_lock lock(mutex_);
      start_.wait(lock, called);
    }
    if (stop_) return;
    seen = round_;
    attempt(number);
    const std::lock_guard lock(mutex_);   // so that a caller about to sleep does not miss it
    if (--running_ == 0) done_.notify_one();
  }
}

void Pool::run(int pieces, const std::function<void(int)>& work) {
  if (workers_.empty()) {
    for (int piece = 0; piece < pieces; ++piece) work(piece);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    pieces_ = pieces;
    for (std::size_t t = 0; t < next_.size(); ++t) next_[t].piece = static_cast<int>(pieces * t / next_.size());
    running_ = static_cast<int>(workers_.size());
    error_ = nullptr;
    ++round_;
  }
  start_.notify_all();
  attempt(0);
  const auto finished = [&] { return running_.load() == 0; };
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!wait_awake(finished)) {
    lock.lock();
    done_.wait(lock, finished);
    lock.unlock();
  }
  lock.lock();   // the last worker has let go of it, and of everything here
  if (error_) std::rethrow_exception(error_);
}

}  // namespace heterps::store
