// What Python sees of the data readers; see heterps/_native.pyi for the types.
#include "bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <charconv>
#include <stdexcept>
#include <tuple>

#include "../arrays.hpp"
#include "hash.hpp"
#include "synthetic.hpp"
#include "text.hpp"

namespace nb = nanobind;
using namespace heterps::data;
using heterps::array;

namespace {

using Numbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IdsOut = nb::ndarray<std::int64_t, nb::ndim<1>, nb::device::cpu>;   // may be a column of a matrix
using SlotArgs = std::tuple<std::int64_t, std::int64_t, std::uint64_t, std::vector<float>>;

nb::object bag_arrays(std::vector<std::int64_t> ids, std::vector<std::int64_t> offsets) {
  const std::size_t values = ids.size(), ends = offsets.size();
  return nb::make_tuple(array(std::move(ids), {values}), array(std::move(offsets), {ends}));
}

nb::tuple parse_text(const Format& format, nb::bytes text, std::size_t begin) {
  if (begin > text.size()) throw std::invalid_argument("begins behind the text's end");
  Columns c;
  {
    const std::string_view view{text.c_str() + begin, text.size() - begin};
    nb::gil_scoped_release unlocked;
    c = parse(format, view);
  }
  const std::size_t rows = c.rows, labels = c.label.size(), wide = rows ? c.dense.size() / rows : 0,
                    slots = rows ? c.ids.size() / rows : 0;
  nb::list bags, bad;
  for (Bag& bag : c.bags) bags.append(bag_arrays(std::move(bag.ids), std::move(bag.offsets)));
  for (const BadRow& row : c.bad) bad.append(nb::make_tuple(row.start, row.field, static_cast<int>(row.fault)));
  return nb::make_tuple(array(std::move(c.label), {labels}), array(std::move(c.dense), {rows, wide}),
                        array(std::move(c.ids), {rows, slots}), bags, array(std::move(c.starts), {rows}), bad);
}

void hash_strings(Bytes text, Numbers offsets, std::uint64_t key, IdsOut out) {
  if (offsets.size() != out.shape(0) + 1) throw std::invalid_argument("one offset more than ids");
  const std::int64_t* const at = offsets.data();
  for (std::size_t i = 0; i < out.shape(0); ++i) {
    if (at[i] < 0 || at[i + 1] < at[i]) throw std::invalid_argument("offsets ascend from 0");
  }
  if (at[out.shape(0)] > static_cast<std::int64_t>(text.size())) throw std::invalid_argument("offsets pass the text's end");
  nb::gil_scoped_release unlocked;
  const auto* const bytes = reinterpret_cast<const char*>(text.data());
  for (std::size_t i = 0; i < out.shape(0); ++i) {
    out.data()[static_cast<std::int64_t>(i) * out.stride(0)] =
        static_cast<std::int64_t>(hash_bytes(key, bytes + at[i], at[i + 1] - at[i]));
  }
}

void hash_integers(Numbers values, std::uint64_t key, IdsOut out) {
  if (values.size() != out.shape(0)) throw std::invalid_argument("as many ids as values");
  nb::gil_scoped_release unlocked;
  for (std::size_t i = 0; i < out.shape(0); ++i) {
    char digits[24];
    const char* const end = std::to_chars(digits, digits + sizeof digits, values.data()[i]).ptr;
    out.data()[static_cast<std::int64_t>(i) * out.stride(0)] =
        static_cast<std::int64_t>(hash_bytes(key, digits, end - digits));
  }
}

nb::object permutation(std::uint64_t size, std::uint64_t key, std::uint64_t begin, std::uint64_t stride, std::size_t count) {
  if (size >> 62 || (count > 0 && (stride == 0 || begin + (count - 1) * stride >= size))) {
    throw std::invalid_argument("places lie inside of the permutation");
  }
  std::vector<std::int64_t> out(count);
  {
    nb::gil_scoped_release unlocked;
    const Permutation image(size, key);
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::int64_t>(image(begin + i * stride));
  }
  return nb::cast(array(std::move(out), {count}));
}

std::vector<Slot> slots_of(const std::vector<SlotArgs>& given) {
  std::vector<Slot> slots;
  for (const auto& [size, base, key, amplitude] : given) {
    if (size < 1 || size >> 40 || amplitude.size() < 42) throw std::invalid_argument("a slot of 1 to 2^40 ids");
    slots.push_back({size, base, key, amplitude});
  }
  return slots;
}

nb::tuple make(const Law& law, Numbers numbers) {
  Made made;
  {
    nb::gil_scoped_release unlocked;
    made = make_rows(law, numbers.data(), numbers.size());
  }
  const std::size_t rows = numbers.size(), dense = law.dense.size(), slots = law.slots.size();
  nb::list bags;
  for (std::size_t s = 0; s < made.bag_ids.size(); ++s) {
    bags.append(bag_arrays(std::move(made.bag_ids[s]), std::move(made.bag_offsets[s])));
  }
  return nb::make_tuple(array(std::move(made.label), {rows}), array(std::move(made.dense), {rows, dense}),
                        array(std::move(made.ids), {rows, slots}), bags, array(std::move(made.probability), {rows}));
}

}  // namespace

void bind_data(nb::module_& m) {
  nb::class_<Format>(m, "TextFormat")
      .def("__init__", [](Format* self, const std::vector<std::tuple<int, int, std::uint64_t>>& fields,
                          const std::string& separator, const std::string& inner, bool quotes, bool log, float missing) {
             if (separator.size() != 1 || inner.size() != 1) throw std::invalid_argument("separators are one byte");
             std::vector<Field> known;
             for (const auto& [kind, column, key] : fields) {
               if (kind < 0 || kind > static_cast<int>(Kind::kRawBag) || column < 0 || column > 1'000'000) {
                 throw std::invalid_argument("no such field");
               }
               known.push_back({static_cast<Kind>(kind), column, key});
             }
             new (self) Format{std::move(known), separator[0], inner[0], quotes, log, missing};
           }, nb::kw_only(), nb::arg("fields"), nb::arg("separator"), nb::arg("inner"), nb::arg("quotes"),
           nb::arg("log"), nb::arg("missing"))
      .def("parse", &parse_text, nb::arg("text"), nb::arg("begin"));

  nb::class_<Law>(m, "SyntheticLaw")
      .def("__init__", [](Law* self, std::uint64_t key, std::vector<float> dense, const std::vector<SlotArgs>& slots,
                          const std::vector<SlotArgs>& bags, bool hashed, float bias) {
             new (self) Law{key, std::move(dense), slots_of(slots), slots_of(bags), hashed, bias};
           }, nb::kw_only(), nb::arg("key"), nb::arg("dense"), nb::arg("slots"), nb::arg("bags"), nb::arg("hashed"),
           nb::arg("bias"))
      .def("make", &make, nb::arg("numbers").noconvert());

  m.def("hash_strings", &hash_strings, nb::arg("text").noconvert(), nb::arg("offsets").noconvert(), nb::arg("key"),
        nb::arg("out").noconvert());
  m.def("hash_integers", &hash_integers, nb::arg("values").noconvert(), nb::arg("key"), nb::arg("out").noconvert());
  m.def("permutation", &permutation, nb::arg("size"), nb::arg("key"), nb::arg("begin"), nb::arg("stride"), nb::arg("count"));
}
