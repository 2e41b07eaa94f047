#pragma once
// A batch as a list of tensors, and how it is split into chunks and joined again. A batch may be any value
// that core/structure.h looks into: a Tensor; vectors, arrays, optionals, pairs, tuples and maps of them;
// plain structs of up to eight members.
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/core/structure.h"

namespace tapestry::distributed {

/// Marks a tensor that is not split along with the batch: every chunk gets all of it, as a Tensor.
///   dp(images, Whole{mask})
struct Whole {
  Tensor tensor;
  operator const Tensor&() const { return tensor; }  // NOLINT: forward takes a Tensor
};

/// Calls f(tensor, whole) for every tensor in `value`, in a fixed order. f may replace the tensor. `whole` is
/// true for the tensor of a Whole.
template <class T, class F>
void visit_tensors(T& value, const F& f) {
  structure::for_each<Tensor, Whole>(value, [&f]<class Part>(Part& part) {
    if constexpr (std::is_same_v<std::remove_const_t<Part>, Whole>) f(part.tensor, true);
    else f(part, false);
  });
}

/// What a loss function returns for a part of a batch: the mean over its samples, or a sum, such as a loss that
/// is divided by the number of targets of the whole batch. Means are weighted by samples, and sums added.
enum class LossKind : std::uint8_t { mean, sum };

/// The tensors of a value in the order of visit_tensors(). whole[i] is true if tensors[i] is not split.
struct TensorList {
  std::vector<Tensor> tensors;
  std::vector<bool> whole;
};

/// True if T is a struct whose members cannot be counted because one is a reference that is not const, or a
/// tuple or pair with such a struct. structure::for_each() finds no tensors in it.
template <class T>
constexpr bool hides_references() {
  if constexpr (structure::is_a<T, std::tuple> || structure::is_a<T, std::pair>)
    return []<class... Parts>(std::type_identity<std::tuple<Parts...>>) {
      return (hides_references<std::remove_cvref_t<Parts>>() || ...);
    }(std::type_identity<decltype(std::tuple_cat(std::declval<T>()))>());
  else if constexpr (structure::PlainStruct<T>)
    return !std::is_empty_v<T> && !std::is_copy_assignable_v<T> && structure::count_members<T>() == 0;
  else return false;
}

template <class T>
TensorList tensors_in(const T& value) {
  static_assert(!hides_references<T>(),
                "tensors are not found behind the references of a struct: give it members of type Tensor");
  TensorList list;
  visit_tensors(value, [&](const Tensor& t, bool whole) {
    list.tensors.push_back(t);
    list.whole.push_back(whole);
  });
  return list;
}

/// Replaces the tensors in `value` by others, in the order of visit_tensors().
template <class T>
void put_tensors(T& value, const std::vector<Tensor>& tensors) {
  std::size_t at = 0;
  visit_tensors(value, [&](Tensor& t, bool) { t = tensors.at(at++); });
}

/// A copy of `value` whose tensors are replaced by others, in the order of visit_tensors(). References inside
/// tuples and pairs, such as those of std::tie(), become values. Throws ValueError that begins with [op] if
/// `value` has other references to tensors: the copy would write to the caller's tensors.
template <class T>
structure::Owned<T> with_tensors(const char* op, const T& value, const std::vector<Tensor>& tensors) {
  structure::Owned<T> copy(value);
  std::vector<const Tensor*> places;
  visit_tensors(value, [&](const Tensor& t, bool) { places.push_back(&t); });
  std::size_t at = 0;
  visit_tensors(copy, [&](Tensor& t, bool) {
    (check)(&t != places.at(at++), "[", op,
            "] a batch has references to tensors in a struct, vector, array, optional or map; give that type "
            "members of type Tensor");
  });
  put_tensors(copy, tensors);
  return copy;
}

/// Splits `samples` into `chunks` sizes that differ by at most one, the larger ones first. Returns fewer
/// chunks if there are fewer samples, but at least one. Throws ValueError if `samples` is negative or
/// `chunks` is 0.
std::vector<std::int64_t> chunk_sizes(std::int64_t samples, std::size_t chunks);

/// The weight of chunk `i` in a mean over all samples: its size divided by the sum of `sizes`. 1 if the sum
/// is 0.
double chunk_weight(std::span<const std::int64_t> sizes, std::size_t i);

/// The number of samples in a batch: size(0) of every tensor that has dimensions and is not `whole`. Throws
/// ValueError that begins with [op] if these tensors disagree or there is none.
std::int64_t samples_in(const char* op, const TensorList& batch);

/// Splits a batch along the first dimension: result[c] holds one view of size sizes[c] per tensor. Every
/// chunk gets the `whole` tensors and those without dimensions unsplit.
std::vector<std::vector<Tensor>> split_tensors(const TensorList& batch, std::span<const std::int64_t> sizes);

/// Concatenates the i-th tensors of all chunks along the first dimension, on `device`. Tensors without
/// dimensions are stacked into a vector. Throws ValueError if chunks differ in the number of tensors, or in a
/// tensor's dtype or number of dimensions.
std::vector<Tensor> gather_tensors(const std::vector<std::vector<Tensor>>& chunks, Device device);

/// Returns, on `device`, the gradient of a tensor that was split into `chunks`. The gradients of the chunks
/// are concatenated. If every chunk got the `whole` tensor, they are summed instead. Undefined gradients
/// count as zeros; the result is undefined if all are undefined.
Tensor join_gradients(const std::vector<Tensor>& gradients, const std::vector<Tensor>& chunks, bool whole,
                      Device device);

}  // namespace tapestry::distributed
