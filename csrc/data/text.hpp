// Lines of text with separated fields, parsed into columns.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace heterps::data {

// What a field becomes. Labels are 0 or 1 (kClick) or any finite number. Ids are hashed or kept as whole numbers (kRaw...).
enum class Kind : int { kSkip, kClick, kLabel, kInteger, kNumber, kId, kRawId, kBag, kRawBag };

struct Field {
  Kind kind;
  std::int32_t column;   // of the dense matrix, the id matrix or the bags
  std::uint64_t key;     // of the slot
};

struct Format {
  std::vector<Field> fields;
  char separator, inner;   // between fields; between the values of a bag
  bool quotes;             // a field may stand in double quotes, doubled inside
  bool log;                // dense values become log1p(max(x, 0))
  float missing;           // stands for an empty dense field, as it is
};

enum class Fault : int { kFields, kLabel, kInteger, kNumber, kId, kQuote };

struct BadRow {
  std::int64_t start;
  std::int32_t field;   // kFields: how many there were
  Fault fault;
};

struct Bag {
  std::vector<std::int64_t> ids, offsets{0};
};

struct Columns {
  std::size_t rows = 0;
  std::vector<float> label, dense;
  std::vector<std::int64_t> ids, starts;   // starts: where each row's line begins in the text
  std::vector<Bag> bags;
  std::vector<BadRow> bad;
};

// A row for every line that is not empty; a last line needs no newline, and "\r\n" ends a line too. A malformed row is
// listed and left out.
Columns parse(const Format& format, std::string_view text);

}  // namespace heterps::data
