// The text parser on random bytes, built with the compiler's sanitizers: it never reads or writes outside, and every line
// is a row, a bad row or empty.
#include "text.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "hash.hpp"

using namespace heterps::data;

namespace {

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("%s\n", what);
  std::exit(1);
}

}  // namespace

int main() {
  std::mt19937 rng(0);
  const std::string alphabet = ",,,|\"\"\n\n\r01.5-+eab";
  for (int round = 0; round < 20'000; ++round) {
    Format format{{}, ',', '|', rng() % 2 == 0, rng() % 2 == 0, 0.0f};
    std::int32_t columns[9] = {};
    const auto fields = 1 + rng() % 6;
    for (unsigned i = 0; i < fields; ++i) {
      const auto kind = static_cast<int>(rng() % 9);
      const int group = kind == 3 ? 4 : kind == 6 ? 5 : kind == 8 ? 7 : kind;   // those that share a matrix
      format.fields.push_back({static_cast<Kind>(kind), columns[group]++, rng()});
    }
    const std::size_t size = rng() % 60;
    const std::unique_ptr<char[]> text(new char[size]);   // of its exact size, so that one byte beyond is noticed
    for (std::size_t i = 0; i < size; ++i) text[i] = alphabet[rng() % alphabet.size()];
    const Columns out = parse(format, {text.get(), size});
    std::size_t lines = 0;
    for (std::size_t at = 0; at < size;) {
      std::size_t end = at;
      while (end < size && text[end] != '\n') ++end;
      const std::size_t last = end > at && text[end - 1] == '\r' ? end - 1 : end;
      lines += last > at;
      at = end + 1;
    }
    check(out.rows + out.bad.size() == lines, "a line was lost");
    check(out.starts.size() == out.rows, "starts of other rows");
    check(out.dense.size() == out.rows * columns[4], "dense of another size");
    check(out.ids.size() == out.rows * columns[5], "ids of another size");
    for (const Bag& bag : out.bags) {
      check(bag.offsets.size() == out.rows + 1 && bag.offsets.back() == static_cast<std::int64_t>(bag.ids.size()),
            "a bag of other rows");
    }
  }
  std::printf("ok\n");
}
