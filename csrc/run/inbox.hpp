// What a thread of Python's waits for: messages of other threads, and a bell that may be rung without the interpreter.
#pragma once

#include <nanobind/nanobind.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace heterps::run {

class Inbox {
 public:
  // With the interpreter.
  void put(nanobind::object message) {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.notify_one();
  }

  // Without the interpreter.
  void ring() {
    const std::lock_guard lock(mutex_);
    rung_ = true;
    changed_.notify_one();
  }

  // With the interpreter, which it gives up while it waits. The next message; none if there is none and the bell rang,
  // or if it shall not wait.
  nanobind::object get(bool wait) {
    if (wait) {
      const nanobind::gil_scoped_release unlocked;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return rung_ || !messages_.empty(); });
    }
    const std::lock_guard lock(mutex_);
    if (messages_.empty()) {
      rung_ = false;
      return nanobind::none();
    }
    nanobind::object next = std::move(messages_.front());
    messages_.pop_front();
    return next;
  }

 private:
  std::mutex mutex_;   // held for moments, and never while waiting for the interpreter
  std::condition_variable changed_;
  std::deque<nanobind::object> messages_;
  bool rung_ = false;
};

}  // namespace heterps::run
