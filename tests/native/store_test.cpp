// The store's core under sanitizers: random calls against a plain map, and many threads at once. Prints "ok" at the end.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "../run/errands.hpp"
#include "hash.hpp"
#include "slots.hpp"
#include "table.hpp"

using namespace heterps::store;

void near_checks();   // near_test.cpp

namespace {

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::exit(1); \
    } \
  } while (false)

Config config(int dim, Kind kind, bool tracks = false) {
  Config out;
  out.dim = dim;
  out.rule.kind = kind;
  out.rule.lr = 1.0f;
  out.rule.eps = 1e-8f;
  out.rule.clip_value = out.rule.clip_norm = std::numeric_limits<float>::infinity();
  const int floats[] = {0, dim, dim, 1, 2 * dim + 1, 2 * dim};
  out.state_floats = floats[static_cast<int>(kind)];
  out.init_key = init_key(7, "t");
  out.init_scale = 0.5f;
  out.tracks = tracks;
  return out;
}

// SGD with a learning rate of one: a row is its first value less the sum of its gradients.
void random_calls(int dim, int threads, bool tracks, unsigned seed) {
  std::mt19937_64 rng(seed);
  const Config made = config(dim, Kind::sgd, tracks);
  Table table(made, threads);
  std::map<std::int64_t, std::vector<double>> reference;
  const auto row = [&](std::int64_t id) -> std::vector<double>& {
    auto [at, fresh] = reference.try_emplace(id);
    if (fresh) {
      std::vector<float> first(dim);
      init_row(made.init_key, id, made.init_scale, dim, first.data());
      at->second.assign(first.begin(), first.end());
    }
    return at->second;
  };
  for (int call = 0; call < 60; ++call) {
    const std::size_t count = rng() % 700;
    const std::uint64_t range = rng() % 2 ? 50 : 100'000'000;
    std::vector<std::int64_t> ids(count);
    for (auto& id : ids) id = static_cast<std::int64_t>(mix(rng() % range));
    if (count > 2) ids[0] = std::numeric_limits<std::int64_t>::min(), ids[1] = 0, ids[2] = -1;
    std::vector<float> rows(count * dim);
    if (rng() % 3) {
      table.pull(ids.data(), count, rows.data(), true, 0);
      for (std::size_t i = 0; i < count; ++i) {
        for (int j = 0; j < dim; ++j) CHECK(std::abs(row(ids[i])[j] - rows[i * dim + j]) < 1e-3);
      }
    }
    for (auto& value : rows) value = static_cast<float>(rng() % 16) / 16;
    table.push(ids.data(), count, rows.data(), 0);
    for (std::size_t i = 0; i < count; ++i) {
      for (int j = 0; j < dim; ++j) row(ids[i])[j] -= rows[i * dim + j];
    }
    if (call % 20 == 19) {
      table.begin_save(false, 0);
      std::set<std::int64_t> seen;
      while (true) {
        const Chunk chunk = table.save_some(100);
        if (chunk.ids.empty()) break;
        for (std::size_t i = 0; i < chunk.ids.size(); ++i) {
          CHECK(seen.insert(chunk.ids[i]).second);
          CHECK(std::abs(reference.at(chunk.ids[i])[0] - chunk.weights[i * dim]) < 1e-3);
        }
      }
      table.end_save(true);
      CHECK(seen.size() == reference.size());
    }
  }
  CHECK(table.stats().counters.rows == reference.size());
  if (tracks) {
    const std::size_t dropped = table.shrink({2, 0, 0}, 0);
    CHECK(table.stats().counters.rows == reference.size() - dropped);
  }
}

// Every thread adds one to every row, again and again, while another takes snapshots, each of which is of one moment.
void many_threads(int lanes) {
  constexpr int kWorkers = 3, kRounds = 40, kRows = 3000, kDim = 4;
  Table table(config(kDim, Kind::sgd), lanes);
  std::vector<std::int64_t> ids(kRows);
  for (int i = 0; i < kRows; ++i) ids[i] = static_cast<std::int64_t>(mix(i));
  std::vector<float> zero(kRows * kDim, 0.0f), one(kRows * kDim, -1.0f), first(kRows * kDim);
  table.pull(ids.data(), kRows, first.data(), true, 0);
  std::map<std::int64_t, float> began;
  for (int i = 0; i < kRows; ++i) began[ids[i]] = first[i * kDim];
  std::vector<std::thread> workers;
  for (int w = 0; w < kWorkers; ++w) {
    workers.emplace_back([&] {
      std::vector<float> rows(kRows * kDim);
      for (int round = 0; round < kRounds; ++round) {
        table.push(ids.data(), kRows, one.data(), 0);
        table.pull(ids.data(), kRows, rows.data(), true, 0);
      }
    });
  }
  workers.emplace_back([&] {
    for (int save = 0; save < 8; ++save) {
      table.begin_save(save % 2 == 1, 0);
      std::set<long> moments;
      std::size_t rows = 0;
      while (true) {
        const Chunk chunk = table.save_some(97);
        if (chunk.ids.empty()) break;
        rows += chunk.ids.size();
        for (std::size_t i = 0; i < chunk.ids.size(); ++i) {
          moments.insert(std::lround(chunk.weights[i * kDim] - began.at(chunk.ids[i])));
        }
      }
      table.end_save(true);
      CHECK(rows == kRows || save % 2 == 1);
      CHECK(moments.size() <= 1);
    }
  });
  for (auto& worker : workers) worker.join();
  table.pull(ids.data(), kRows, zero.data(), true, 0);
  for (int i = 0; i < kRows * kDim; ++i) CHECK(std::lround(zero[i] - first[i]) == kWorkers * kRounds);
}

void every_optimizer() {
  for (int kind = 0; kind < 6; ++kind) {
    for (const int dim : {1, 7, 8, 16, 33, 64}) {
      Table table(config(dim, static_cast<Kind>(kind)), 2);
      std::vector<std::int64_t> ids{5, 6, 5, -9};
      std::vector<float> rows(ids.size() * dim), grads(ids.size() * dim, 0.25f);
      const std::vector<std::int64_t> offsets{0, 0, 3};
      for (int step = 0; step < 3; ++step) {
        table.push(ids.data(), ids.size(), grads.data(), 0);
        table.push_bag(ids.data(), ids.size(), offsets.data(), offsets.size(), true, grads.data(), 0);
        table.bag(ids.data(), ids.size(), offsets.data(), offsets.size(), step == 1, rows.data(), step == 2, 0);
      }
      for (const float value : rows) CHECK(std::isfinite(value));
    }
  }
}

// A table that is pulled by number, after ids were looked up ahead or not, is one that is pulled by position.
void distinct_calls(int dim, int threads) {
  std::mt19937_64 rng(5);
  Table one(config(dim, Kind::adagrad), threads), other(config(dim, Kind::adagrad), 1);
  for (int call = 0; call < 40; ++call) {
    const std::size_t count = 1 + rng() % 5'000;
    std::vector<std::int64_t> ids(count);
    for (auto& id : ids) id = static_cast<std::int64_t>(rng() % 3'000) - 1'000;
    std::vector<std::int32_t> number(count);
    std::vector<float> rows(count * dim), expected(count * dim), grads(count * dim);
    const Table::Pulled pulled = one.pull_distinct(ids.data(), count, number.data(), rows.data(), 0);
    if (call % 2 == 0) other.prepare(ids.data(), count, 0);
    other.pull(ids.data(), count, expected.data(), true, 0);
    CHECK(pulled.distinct == std::set<std::int64_t>(ids.begin(), ids.end()).size());
    std::vector<float> sums(pulled.distinct * dim);
    for (std::size_t i = 0; i < count; ++i) {
      for (int j = 0; j < dim; ++j) {
        CHECK(rows[number[i] * dim + j] == expected[i * dim + j]);
        grads[i * dim + j] = static_cast<float>(rng() % 8);   // small whole numbers: sums are exact in any order
        sums[number[i] * dim + j] += grads[i * dim + j];
      }
    }
    other.push(ids.data(), count, grads.data(), 0);
    one.push_distinct(ids.data(), count, pulled.ticket + (call % 3 == 0 ? 1'000'000 : 0), sums.data(), pulled.distinct, 0);
  }
}

// A push in parts of rows that were pulled is one push of them all.
void parts(int dim, int threads) {
  std::mt19937_64 rng(6);
  Table one(config(dim, Kind::adagrad), threads), other(config(dim, Kind::adagrad), 1);
  for (int call = 0; call < 20; ++call) {
    std::vector<std::vector<std::int64_t>> ids(2 + rng() % 3);
    std::vector<std::vector<float>> grads;
    std::vector<Table::Part> given;
    std::vector<std::int64_t> all;
    std::vector<float> whole, rows(3'000 * dim), expected(3'000 * dim);
    for (auto& own : ids) {
      std::set<std::int64_t> distinct;
      for (std::size_t k = 0; k < 1 + rng() % 2'000; ++k) distinct.insert(static_cast<std::int64_t>(rng() % 3'000));
      own.assign(distinct.begin(), distinct.end());
      for (std::size_t k = 0; k < own.size() && rng() % 2 == 0; ++k) own.push_back(own[rng() % own.size()]);
      grads.emplace_back(own.size() * dim);
      for (float& value : grads.back()) value = static_cast<float>(rng() % 8);
      given.push_back({own.data(), own.size(), grads.back().data()});
      all.insert(all.end(), own.begin(), own.end());
      whole.insert(whole.end(), grads.back().begin(), grads.back().end());
      one.pull(own.data(), own.size(), rows.data(), true, 0);
    }
    CHECK(one.push_parts(given));
    CHECK(!one.push_parts(given));   // the pulls are used up
    other.push(all.data(), all.size(), whole.data(), 0);
    one.pull(ids[0].data(), ids[0].size(), rows.data(), false, 0);
    other.pull(ids[0].data(), ids[0].size(), expected.data(), false, 0);
    for (std::size_t i = 0; i < ids[0].size() * dim; ++i) CHECK(rows[i] == expected[i]);
  }
}

// Ids keep their slots, whoever asks first.
void slots_by_many_threads() {
  Slots slots;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&slots, t] {
      std::mt19937_64 rng(t);
      std::vector<std::int64_t> ids(3'000);
      std::vector<std::int32_t> found(ids.size()), number(ids.size());
      for (int call = 0; call < 20; ++call) {
        for (auto& id : ids) id = static_cast<std::int64_t>(mix(rng() % 20'000));
        const std::size_t distinct = slots.resolve(ids.data(), ids.size(), found.data(), number.data());
        for (std::size_t i = 0; i < ids.size(); ++i) {
          const std::int32_t slot = found[number[i]];
          CHECK(static_cast<std::size_t>(number[i]) < distinct && slot > 0);
          CHECK(slots.ids(slot, slot + 1).front() == ids[i]);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const auto all = slots.ids(1, slots.size());
  CHECK(std::set<std::int64_t>(all.begin(), all.end()).size() == all.size());
}

// Exchanges by threads of their own, asked for by one and watched by another, end as calls one by one do.
void errands(int threads) {
  constexpr std::size_t count = 500, dim = 4, exchanges = 60;
  Table one(config(dim, Kind::rowwise_adagrad), threads), other(config(dim, Kind::rowwise_adagrad), threads);
  std::mt19937_64 rng(11);
  std::vector<std::vector<std::int64_t>> ids(exchanges, std::vector<std::int64_t>(count));
  std::vector<std::vector<std::int32_t>> number(exchanges, std::vector<std::int32_t>(count));
  std::vector<std::vector<float>> rows(exchanges, std::vector<float>(count * dim));
  const std::vector<float> grads(count * dim, 0.25f);
  for (auto& own : ids) {
    for (auto& id : own) id = static_cast<std::int64_t>(rng() % 300);
  }
  std::atomic<int> rung = 0;
  heterps::run::Errands work(one, 1, nullptr, [&] { ++rung; });
  std::thread asks([&] {
    for (std::size_t i = 0; i < exchanges; ++i) work.pull(ids[i].data(), count, number[i].data(), rows[i].data(), 0);
  });
  std::size_t pulled = 0, pushed = 0;
  while (pushed < exchanges) {
    if (work.pulled()) work.push(grads.data(), nullptr, 0.5f, 0), ++pulled;
    if (work.pushed()) ++pushed;
  }
  asks.join();
  work.close();
  CHECK(pulled == exchanges && rung == 2 * exchanges);
  other.set_lr(0.5f);
  std::vector<std::int32_t> numbers(count);
  std::vector<float> expected(count * dim);
  for (std::size_t i = 0; i < exchanges; ++i) {
    const auto [distinct, ticket] = other.pull_distinct(ids[i].data(), count, numbers.data(), expected.data(), 0);
    for (std::size_t j = 0; j < distinct * dim; ++j) CHECK(rows[i][j] == expected[j]);
    other.push_distinct(ids[i].data(), count, ticket, grads.data(), distinct, 0);
  }
}

}  // namespace

int main() {
  for (unsigned seed = 0; seed < 3; ++seed) {
    for (const int threads : {1, 2}) {
      random_calls(16, threads, seed == 1, seed);
      random_calls(5, threads, seed == 2, seed + 100);
    }
  }
  every_optimizer();
  many_threads(1);
  many_threads(2);
  for (const int threads : {1, 3}) {
    distinct_calls(16, threads);
    distinct_calls(5, threads);
    parts(16, threads);
    parts(5, threads);
  }
  slots_by_many_threads();
  for (const int threads : {1, 2}) errands(threads);
  near_checks();
  std::puts("ok");
}
