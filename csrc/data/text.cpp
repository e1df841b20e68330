#include "text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string>

#include "hash.hpp"

namespace heterps::data {
namespace {

// log1p of small whole numbers, which are most of what is counted in such data.
const std::array<float, 1024> kLogs = [] {
  std::array<float, 1024> logs;
  for (std::size_t i = 0; i < logs.size(); ++i) logs[i] = static_cast<float>(std::log1p(static_cast<double>(i)));
  return logs;
}();

float scaled(double value, bool log) {
  if (!log) return static_cast<float>(value);
  if (value <= 0) return 0.0f;
  const auto whole = static_cast<std::size_t>(std::min(value, 1e6));
  if (whole < kLogs.size() && static_cast<double>(whole) == value) return kLogs[whole];
  return static_cast<float>(std::log1p(value));
}

bool read_integer(std::string_view text, std::int64_t& value) {
  const char *p = text.data(), *const end = p + text.size();
  if (p < end && *p == '+' && (++p == end || *p == '-')) return false;
  const auto [stop, error] = std::from_chars(p, end, value);
  return error == std::errc{} && stop == end;
}

bool read_number(std::string_view text, double& value) {
  const char *p = text.data(), *const end = p + text.size();
  if (p < end && *p == '+' && (++p == end || *p == '-')) return false;
  const auto [stop, error] = std::from_chars(p, end, value);
  return error == std::errc{} && stop == end && std::isfinite(value);
}

class Parser {
 public:
  Parser(const Format& format, std::string_view text) : format_(format), text_(text) {
    for (const Field& field : format.fields) {
      if (field.kind == Kind::kInteger || field.kind == Kind::kNumber) width(dense_, field);
      if (field.kind == Kind::kId || field.kind == Kind::kRawId) width(ids_, field);
      if (field.kind == Kind::kBag || field.kind == Kind::kRawBag) width(bags_, field);
      labelled_ |= field.kind == Kind::kClick || field.kind == Kind::kLabel;
    }
  }

  Columns run() {
    const std::size_t most = std::count(text_.begin(), text_.end(), '\n') + 1;
    out_.label.resize(labelled_ ? most : 0);
    out_.dense.resize(most * dense_);
    out_.ids.resize(most * ids_);
    out_.starts.resize(most);
    out_.bags.resize(bags_);
    const char *const begin = text_.data(), *const end = begin + text_.size();
    for (const char* line = begin; line < end;) {
      const void* newline = std::memchr(line, '\n', end - line);
      const char* const stop = newline ? static_cast<const char*>(newline) : end;
      const char* const last = stop > line && stop[-1] == '\r' ? stop - 1 : stop;
      if (last > line) row(line, last, line - begin);
      line = stop + 1;
    }
    out_.label.resize(labelled_ ? out_.rows : 0);
    out_.dense.resize(out_.rows * dense_);
    out_.ids.resize(out_.rows * ids_);
    out_.starts.resize(out_.rows);
    return std::move(out_);
  }

 private:
  static void width(std::size_t& columns, const Field& field) {
    columns = std::max<std::size_t>(columns, field.column + 1);
  }

  void row(const char* p, const char* end, std::int64_t start) {
    const std::string_view line{p, static_cast<std::size_t>(end - p)};
    std::size_t number = 0;
    Fault fault = Fault::kFields;
    for (;; ++number) {
      const bool known = number < format_.fields.size();
      std::string_view value;
      if (format_.quotes && p < end && *p == '"') {
        if (!quoted(p, end, value)) {
          fault = Fault::kQuote;
          break;
        }
      } else {
        const char* const begin = p;
        while (p < end && *p != format_.separator) ++p;
        value = {begin, static_cast<std::size_t>(p - begin)};
      }
      if (known && !take(format_.fields[number], value, fault)) break;
      if (p == end) {
        if (++number == format_.fields.size()) return keep(start);
        fault = Fault::kFields;
        break;
      }
      ++p;
    }
    if (!format_.quotes) {   // the wrong number of fields says more than what this does to one of them
      const std::size_t found = std::count(line.begin(), line.end(), format_.separator) + 1;
      if (found != format_.fields.size()) number = found, fault = Fault::kFields;
    }
    for (Bag& bag : out_.bags) bag.ids.resize(bag.offsets.back());
    out_.bad.push_back({start, static_cast<std::int32_t>(number), fault});
  }

  void keep(std::int64_t start) {
    out_.starts[out_.rows++] = start;
    for (Bag& bag : out_.bags) bag.offsets.push_back(static_cast<std::int64_t>(bag.ids.size()));
  }

  // A field in quotes; doubled quotes inside stand for one. After it comes a separator or the end of the line.
  bool quoted(const char*& p, const char* end, std::string_view& value) {
    const char* const begin = ++p;
    bool doubled = false;
    for (;; ++p) {
      p = static_cast<const char*>(p < end ? std::memchr(p, '"', end - p) : nullptr);
      if (p == nullptr) return false;
      if (p + 1 == end || p[1] != '"') break;
      doubled = true, ++p;
    }
    value = {begin, static_cast<std::size_t>(p - begin)};
    if (doubled) {
      plain_.clear();
      for (std::size_t i = 0; i < value.size(); ++i) {
        plain_ += value[i];
        if (value[i] == '"') ++i;
      }
      value = plain_;
    }
    ++p;
    return p == end || *p == format_.separator;
  }

  bool take(const Field& field, std::string_view value, Fault& fault) {
    switch (field.kind) {
      case Kind::kSkip: return true;
      case Kind::kClick:
        fault = Fault::kLabel;
        if (value != "0" && value != "1") return false;
        out_.label[out_.rows] = value == "1" ? 1.0f : 0.0f;
        return true;
      case Kind::kLabel: {
        fault = Fault::kLabel;
        double number;
        if (!read_number(value, number)) return false;
        out_.label[out_.rows] = static_cast<float>(number);
        return true;
      }
      case Kind::kInteger: {
        fault = Fault::kInteger;
        std::int64_t number;
        float& to = out_.dense[out_.rows * dense_ + field.column];
        if (value.empty()) return to = format_.missing, true;
        if (!read_integer(value, number)) return false;
        to = scaled(static_cast<double>(number), format_.log);
        return true;
      }
      case Kind::kNumber: {
        fault = Fault::kNumber;
        double number;
        float& to = out_.dense[out_.rows * dense_ + field.column];
        if (value.empty()) return to = format_.missing, true;
        if (!read_number(value, number)) return false;
        to = scaled(number, format_.log);
        return true;
      }
      case Kind::kId:
        out_.ids[out_.rows * ids_ + field.column] = hashed(field, value);
        return true;
      case Kind::kRawId:
        fault = Fault::kId;
        if (value.empty()) return out_.ids[out_.rows * ids_ + field.column] = hashed(field, value), true;
        return read_integer(value, out_.ids[out_.rows * ids_ + field.column]);
      case Kind::kBag:
      case Kind::kRawBag: fault = Fault::kId; return take_bag(field, value);
    }
    return false;
  }

  // Empty values are no values: an empty field is an empty bag.
  bool take_bag(const Field& field, std::string_view value) {
    std::vector<std::int64_t>& ids = out_.bags[field.column].ids;
    while (!value.empty()) {
      const std::size_t size = std::min(value.find(format_.inner), value.size());
      const std::string_view one = value.substr(0, size);
      value.remove_prefix(std::min(size + 1, value.size()));
      if (one.empty()) continue;
      std::int64_t id = 0;
      if (field.kind == Kind::kBag) id = hashed(field, one);
      else if (!read_integer(one, id)) return false;
      ids.push_back(id);
    }
    return true;
  }

  static std::int64_t hashed(const Field& field, std::string_view value) {
    return static_cast<std::int64_t>(hash_bytes(field.key, value.data(), value.size()));
  }

  const Format& format_;
  std::string_view text_;
  std::size_t dense_ = 0, ids_ = 0, bags_ = 0;
  bool labelled_ = false;
  std::string plain_;
  Columns out_;
};

}  // namespace

Columns parse(const Format& format, std::string_view text) { return Parser(format, text).run(); }

}  // namespace heterps::data
