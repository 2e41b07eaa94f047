#pragma once
// Batches of samples of any type: which type a batch has, how samples are stacked, and which tensors it
// contains.
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/core/structure.h"
#include "tapestry/data/collate.h"

namespace tapestry::data {
namespace detail {

template <class T>
concept OpenStruct =
    structure::PlainStruct<T> && !structure::is_array<T> && structure::can_be_taken_apart<T>();

/// The types of a struct's members, as a std::tuple.
template <OpenStruct T>
using MembersOf = typename decltype(structure::with_members(std::declval<T&>(), [](auto&... members) {
  return std::type_identity<std::tuple<std::remove_cvref_t<decltype(members)>...>>();
}))::type;

/// Returns references to the parts of a pair, a tuple, an array or a plain struct.
template <class T>
auto parts_of(T& value) {
  const auto tie = [](auto&... parts) { return std::tie(parts...); };
  if constexpr (requires { std::tuple_size<T>::value; }) return std::apply(tie, value);
  else return structure::with_members(value, tie);
}

/// 1 if B contains tensors that for_tensors() finds, 0 if it contains none, and -1 if that is unknown.
template <class B>
constexpr int tensors_within();

template <class... Parts>
constexpr int tensors_within_parts(std::type_identity<std::tuple<Parts...>>) {
  int found = 0;
  for (const int part : {0, tensors_within<Parts>()...}) {
    if (part < 0) return -1;
    found |= part;
  }
  return found;
}

template <class B>
constexpr int tensors_within() {
  if constexpr (std::is_same_v<B, Tensor> || std::is_same_v<B, Example>) return 1;
  else if constexpr (std::is_arithmetic_v<B> || std::is_enum_v<B> || std::is_same_v<B, std::string>) return 0;
  else if constexpr (structure::is_a<B, std::vector> || structure::is_a<B, std::optional>)
    return tensors_within<typename B::value_type>();
  else if constexpr (structure::is_a<B, std::map>) return tensors_within<typename B::mapped_type>();
  else if constexpr (std::is_array_v<B>) return tensors_within<std::remove_extent_t<B>>();
  else if constexpr (structure::is_array<B>) return tensors_within<typename B::value_type>();
  else if constexpr (structure::is_a<B, std::pair>)
    return tensors_within_parts(
        std::type_identity<std::tuple<typename B::first_type, typename B::second_type>>());
  else if constexpr (structure::is_a<B, std::tuple>) return tensors_within_parts(std::type_identity<B>());
  else if constexpr (OpenStruct<B>) return tensors_within_parts(std::type_identity<MembersOf<B>>());
  else return -1;
}

/// Returns std::type_identity of the type of a batch of samples of type E, or of void if default_collate()
/// cannot make one.
template <class E>
constexpr auto batch_type();
template <class E>
using BatchType = typename decltype(batch_type<E>())::type;

template <class... Parts>
constexpr bool all_collatable(std::type_identity<std::tuple<Parts...>>) {
  return (!std::is_void_v<BatchType<Parts>> && ...);
}
/// True if each part has the type of a batch of such parts. A batch of structs is one struct of the same
/// type, so its members must be tensors, or made of tensors alone.
template <class... Parts>
constexpr bool all_keep_their_types(std::type_identity<std::tuple<Parts...>>) {
  return (std::is_same_v<Parts, BatchType<Parts>> && ...);
}
template <class... Parts>
constexpr auto batch_type_of_tuple(std::type_identity<std::tuple<Parts...>> parts) {
  if constexpr (all_collatable(parts)) return std::type_identity<std::tuple<BatchType<Parts>...>>();
  else return std::type_identity<void>();
}
template <class E, std::size_t n>
std::array<BatchType<E>, n> batch_array(const std::array<E, n>&);

template <class E>
constexpr auto batch_type() {
  constexpr std::type_identity<void> none;
  if constexpr (std::is_same_v<E, Tensor> || std::is_same_v<E, Example>) {
    return std::type_identity<E>();
  } else if constexpr (std::is_arithmetic_v<E>) {
    return std::type_identity<Tensor>();
  } else if constexpr (std::is_same_v<E, std::string>) {
    return std::type_identity<std::vector<std::string>>();
  } else if constexpr (structure::is_a<E, std::vector> || structure::is_a<E, std::optional>) {
    using Part = BatchType<typename E::value_type>;
    if constexpr (std::is_void_v<Part> || std::is_same_v<E, std::vector<bool>>) return none;
    else if constexpr (structure::is_a<E, std::vector>) return std::type_identity<std::vector<Part>>();
    else return std::type_identity<std::optional<Part>>();
  } else if constexpr (structure::is_a<E, std::map>) {
    using Part = BatchType<typename E::mapped_type>;
    if constexpr (std::is_void_v<Part>) return none;
    else return std::type_identity<std::map<typename E::key_type, Part>>();
  } else if constexpr (std::is_array_v<E>) {
    return none;
  } else if constexpr (structure::is_array<E>) {
    if constexpr (std::is_void_v<BatchType<typename E::value_type>>) return none;
    else return std::type_identity<decltype(batch_array(std::declval<E>()))>();
  } else if constexpr (structure::is_a<E, std::pair>) {
    using A = BatchType<typename E::first_type>;
    using B = BatchType<typename E::second_type>;
    if constexpr (std::is_void_v<A> || std::is_void_v<B>) return none;
    else return std::type_identity<std::pair<A, B>>();
  } else if constexpr (structure::is_a<E, std::tuple>) {
    return batch_type_of_tuple(std::type_identity<E>());
  } else if constexpr (OpenStruct<E>) {
    if constexpr (all_keep_their_types(std::type_identity<MembersOf<E>>())) return std::type_identity<E>();
    else return none;
  } else {
    return none;
  }
}

}  // namespace detail

/// Types of samples that default_collate() can make a batch of.
template <class E>
concept Collatable = !std::is_void_v<detail::BatchType<E>>;
/// The type of their batch.
template <Collatable E>
using batch_of = detail::BatchType<E>;

namespace detail {

/// Stacks numbers into a vector: bool to bool, float to f32, double to f64, integers to i64.
template <class E>
Tensor stack_numbers(const std::vector<E>& samples) {
  using Item =
      std::conditional_t<std::is_same_v<E, bool>, bool,
                         std::conditional_t<std::is_integral_v<E>, std::int64_t,
                                            std::conditional_t<std::is_same_v<E, float>, float, double>>>;
  Tensor out = empty({static_cast<std::int64_t>(samples.size())}, {dtype_of<Item>, kCPU});
  Item* to = out.data<Item>();
  for (const E value : samples) {
    if constexpr (std::is_integral_v<E> && !std::is_same_v<E, bool>)
      (check)(std::in_range<std::int64_t>(value), "[default_collate] the number ", value,
              " does not fit in int64");
    *to++ = static_cast<Item>(value);
  }
  return out;
}

}  // namespace detail

/// Makes one batch of the samples, as torch.utils.data.default_collate does:
///
/// | sample | batch |
/// |---|---|
/// | Tensor | a Tensor with one more leading dimension |
/// | float, double, bool, any integer | a Tensor of one dimension: f32, f64, bool, i64 |
/// | Example | an Example |
/// | std::string | std::vector<std::string> |
/// | std::pair, std::tuple, std::array, std::map | the same with a batch of each part |
/// | std::vector<T> | a vector of batches: the i-th has the i-th elements of all samples |
/// | std::optional<T> | a batch if all samples have a value, nothing if none has |
/// | a plain struct of at most eight such members | the same struct; its members must be Tensors, or made of
/// Tensors alone |
///
/// Throws ValueError if there is no sample, or if samples differ in a shape, a dtype, a length or a key.
template <Collatable E>
batch_of<E> default_collate(std::vector<E> samples) {
  (check)(!samples.empty(), "[default_collate] there is no sample in the batch");
  const auto column = [&samples]<class Part>(std::type_identity<Part>, std::size_t number, const auto& get) {
    std::vector<Part> parts;
    parts.reserve(samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) parts.push_back(std::move(get(samples[i])));
    try {
      return default_collate<Part>(std::move(parts));
    } catch (Error& e) {
      e.add_place(concat({"part ", number, " of the samples"}));
      throw;
    }
  };
  if constexpr (std::is_same_v<E, Tensor>) {
    return stack_samples(samples);
  } else if constexpr (std::is_same_v<E, Example>) {
    return collate(samples);
  } else if constexpr (std::is_same_v<E, std::string>) {
    return samples;
  } else if constexpr (std::is_arithmetic_v<E>) {
    return detail::stack_numbers(samples);
  } else if constexpr (structure::is_a<E, std::vector>) {
    const std::size_t length = samples[0].size();
    for (std::size_t i = 0; i < samples.size(); ++i)
      (check)(samples[i].size() == length, "[default_collate] sample ", i, " of the batch is a list of ",
              samples[i].size(), " elements and sample 0 has ", length,
              "; make them alike or pass a collate of your own");
    batch_of<E> batch;
    for (std::size_t k = 0; k < length; ++k)
      batch.push_back(column(
          std::type_identity<typename E::value_type>(), k, [k](E & sample) -> auto& { return sample[k]; }));
    return batch;
  } else if constexpr (structure::is_a<E, std::map>) {
    for (std::size_t i = 1; i < samples.size(); ++i) {
      auto first = samples[0].begin();
      bool same = samples[i].size() == samples[0].size();
      for (auto at = samples[i].begin(); same && at != samples[i].end(); ++at, ++first)
        same = !(at->first < first->first) && !(first->first < at->first);
      (check)(same, "[default_collate] sample ", i, " of the batch has other keys than sample 0");
    }
    std::vector<typename E::key_type> keys;
    for (const auto& [key, value] : samples[0]) keys.push_back(key);
    batch_of<E> batch;
    for (std::size_t k = 0; k < keys.size(); ++k)
      batch.emplace(keys[k], column(
                                 std::type_identity<typename E::mapped_type>(),
                                 k, [&](E & sample) -> auto& { return sample.at(keys[k]); }));
    return batch;
  } else if constexpr (structure::is_a<E, std::optional>) {
    for (std::size_t i = 1; i < samples.size(); ++i)
      (check)(samples[i].has_value() == samples[0].has_value(), "[default_collate] sample ", i,
              samples[0] ? " has no value and sample 0 has one" : " has a value and sample 0 has none",
              "; give all of them one, or none");
    if (!samples[0]) return std::nullopt;
    return column(
        std::type_identity<typename E::value_type>(), 0, [](E & sample) -> auto& { return *sample; });
  } else {
    using Parts = decltype(detail::parts_of(samples[0]));
    const auto part = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
      return column(
          std::type_identity<std::remove_cvref_t<std::tuple_element_t<i, Parts>>>(), i,
          [](E & sample) -> auto& { return std::get<i>(detail::parts_of(sample)); });
    };
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      if constexpr (detail::OpenStruct<E>) {
        E batch = samples[0];
        ((std::get<i>(detail::parts_of(batch)) = part(std::integral_constant<std::size_t, i>())), ...);
        return batch;
      } else {
        return batch_of<E>{part(std::integral_constant<std::size_t, i>())...};
      }
    }
    (std::make_index_sequence<std::tuple_size_v<Parts>>());
  }
}

/// The type of a loader's batches of samples of type E, unless its second template argument gives another.
template <class E>
struct DefaultBatch {
  static_assert(
      Collatable<E>,
      "samples of this type cannot be stacked: their members must be Tensors (see default_collate). "
      "Give the type of the batch, DataLoader<Sample, Batch>, and a function `collate` in the "
      "options; DataLoader<Sample, std::vector<Sample>> needs no function");
  using type = std::conditional_t<Collatable<E>, detail::BatchType<E>, std::vector<E>>;
};

/// Calls fn(tensor) for each tensor of a batch. fn may replace the tensor.
template <class B, class F>
void for_tensors(B& batch, const F& fn) {
  if constexpr (std::is_same_v<B, Example>) {  // spares most programs the templates that take structs apart
    fn(batch.input);
    fn(batch.target);
  } else {
    structure::for_each<Tensor>(batch, fn);
  }
}
/// True if B has tensors, and for_tensors() finds all of them: B is a Tensor, or made of tensors, numbers and
/// text by vectors, arrays, optionals, pairs, tuples, maps and plain structs.
template <class B>
inline constexpr bool has_tensors = detail::tensors_within<B>() == 1;

}  // namespace tapestry::data
