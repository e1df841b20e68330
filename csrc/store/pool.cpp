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
  stop_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::attempt(int thread) {
  const int threads = this->threads();
  try {
    for (int other = thread; other < thread + threads; ++other) {
      const int whose = other % threads, end = pieces_ * (whose + 1) / threads;
      for (int piece; (piece = next_[whose].piece++) < end;) (*work_)(piece, thread);
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

bool Pool::enter() {
  std::uint32_t state = gate_;
  while ((state & kOpen) != 0) {
    if (gate_.compare_exchange_weak(state, state + 1)) return true;
  }
  return false;
}

void Pool::leave() {
  if (--gate_ == 0) gate_.notify_one();   // the work is over, and this was the last one at it
}

void Pool::serve(int thread) {
  std::uint32_t seen = 0;
  while (true) {
    if (!wait_awake([&] { return round_ != seen; })) round_.wait(seen);
    seen = round_;
    if (stop_) return;
    if (!enter()) continue;   // too late
    attempt(thread);
    leave();
  }
}

void Pool::run(int pieces, const std::function<void(int, int)>& work) {
  if (workers_.empty()) {
    for (int piece = 0; piece < pieces; ++piece) work(piece, 0);
    return;
  }
  work_ = &work;
  pieces_ = pieces;
  for (std::size_t t = 0; t < next_.size(); ++t) next_[t].piece = static_cast<int>(pieces * t / next_.size());
  error_ = nullptr;
  gate_ = kOpen;
  ++round_;
  round_.notify_all();
  attempt(0);
  std::uint32_t left = gate_ &= ~kOpen;   // every piece is done or being done
  if (!wait_awake([&] { return (left = gate_) == 0; })) {
    for (; left != 0; left = gate_) gate_.wait(left);
  }
  if (error_) std::rethrow_exception(error_);
}

}  // namespace heterps::store
